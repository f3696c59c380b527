// Which calls are enqueued, recorded and launched.
#include "runtime/device/replays.h"

#include <set>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/error.h"

namespace mtl::test {

namespace {

// Ops are words; what is done stands in `done`.
class Words final : public Recorder {
 public:
  void op(const std::string& word) { (recorded_ ? *recorded_ : done).push_back(word); }

  void begin() override { recorded_ = std::make_unique<std::vector<std::string>>(); }
  Recording end() override {
    if (refuses) {
      recorded_.reset();
      throw Error(Exit::run_failed,
                  {.code = "device.cuda", .what = "no recording today", .help = ""});
    }
    if (recorded_->empty()) {
      recorded_.reset();
      return nullptr;
    }
    alive.insert(recorded_.get());
    return recorded_.release();
  }
  void abandon() override { recorded_.reset(); }
  void launch(Recording recording) override {
    REQUIRE(alive.count(recording) == 1);
    ++launches;
    for (const std::string& word : *static_cast<std::vector<std::string>*>(recording)) op(word);
  }
  void destroy(Recording recording) override {
    REQUIRE(alive.erase(recording) == 1);
    delete static_cast<std::vector<std::string>*>(recording);
  }

  std::vector<std::string> done;
  std::set<void*> alive;
  int launches = 0;
  bool refuses = false;

 private:
  std::unique_ptr<std::vector<std::string>> recorded_;
};

using Done = std::vector<std::string>;

}  // namespace

TEST_CASE("replays: the first call is enqueued and the second recorded and later ones launched") {
  Words words;
  {
    Replays replays(words);
    int calls = 0;
    for (int i = 0; i < 5; ++i) {
      replays.run("a", [&] {
        CHECK(replays.recording() == (i == 1));
        words.op(fmt::format("a{}", calls++));
      });
      replays.run("b", [&] { words.op("b"); });
    }
    CHECK(calls == 2);
    CHECK(words.done == Done{"a0", "b", "a1", "b", "a1", "b", "a1", "b", "a1", "b"});
    CHECK(words.launches == 8);
    CHECK(words.alive.size() == 2);
  }
  CHECK(words.alive.empty());
}

TEST_CASE("replays: memory that moves while something is enqueued ends all recordings") {
  Words words;
  Replays replays(words);
  const auto call = [&](const std::string& key, bool moves = false) {
    replays.run(key, [&] {
      if (moves) replays.forget();
      words.op(key);
    });
  };
  call("a"), call("a"), call("a");
  CHECK(words.launches == 2);
  call("b", true);
  CHECK(words.alive.empty());
  call("a");  // as the first time: it may need more memory now
  CHECK(words.launches == 2);
  call("a");
  CHECK(words.launches == 3);
  call("b"), call("b"), call("b");
  CHECK(words.done == Done{"a", "a", "a", "b", "a", "a", "b", "b", "b"});
  CHECK(words.launches == 5);
}

TEST_CASE("replays: what cannot be recorded is enqueued from then on and the reason is kept") {
  Words words;
  Replays replays(words);
  words.refuses = true;
  int calls = 0;
  const auto call = [&] { replays.run("a", [&] { words.op("a"), ++calls; }); };
  call();
  CHECK(replays.trouble().empty());
  call();  // tried, then enqueued
  CHECK(replays.trouble() == "no recording today");
  CHECK_FALSE(replays.recording());
  call();
  CHECK(words.done == Done{"a", "a", "a"});
  CHECK(words.launches == 0);
  CHECK(calls == 4);
}

TEST_CASE("replays: an op that is refused while it is recorded is enqueued as usual") {
  Words words;
  Replays replays(words);
  const auto call = [&] {
    replays.run("a", [&] {
      words.op("a");
      if (replays.recording())
        throw Error(Exit::run_failed, {.code = "device.cuda", .what = "a copy", .help = ""});
      words.op("copy");
    });
  };
  call(), call(), call();
  CHECK(replays.trouble() == "a copy");
  CHECK(words.done == Done{"a", "copy", "a", "copy", "a", "copy"});
  // Another failure is the caller's.
  Replays other(words);
  const auto defect = [&] {
    other.run("b", [&] {
      if (other.recording()) throw std::logic_error("a defect");
    });
  };
  defect();
  CHECK_THROWS_AS(defect(), std::logic_error);
  CHECK_FALSE(other.recording());
}

TEST_CASE("replays: what is done anew has its place among what is recorded") {
  Words words;
  Replays replays(words);
  int times = 0;
  const auto call = [&] {
    replays.run("a", [&] {
      words.op("a");
      replays.anew([&] { words.op(fmt::format("new {}", ++times)); });
      // Nothing lies between these two, so nothing is recorded there.
      replays.anew([&] { CHECK_FALSE(replays.recording()); });
      words.op("b");
      words.op("c");
      replays.anew([&] { words.op("end"); });
    });
  };
  call();
  CHECK(times == 1);  // outside of a recording at once
  call();
  CHECK(times == 2);
  CHECK(words.alive.size() == 2);
  call();
  CHECK(words.launches == 4);
  Done expected;
  for (const char* time : {"new 1", "new 2", "new 3"}) {
    expected.insert(expected.end(), {"a", time, "b", "c", "end"});
  }
  CHECK(words.done == expected);
  // It is the caller's, what is thrown there; the recording stays what it was.
  bool fails = true;
  const auto failing = [&] {
    replays.run("b", [&] {
      words.op("d");
      replays.anew([&] {
        if (fails) throw std::runtime_error("cut off");
      });
      words.op("e");
    });
  };
  fails = false;
  failing(), failing();
  fails = true;
  CHECK_THROWS_AS(failing(), std::runtime_error);
  CHECK(words.done.back() == "d");
  fails = false;
  failing();
  CHECK(words.done.back() == "e");
}

TEST_CASE("replays: memory that moves in what is done anew ends recordings when that is over") {
  Words words;
  Replays replays(words);
  bool moves = false;
  const auto call = [&] {
    replays.run("a", [&] {
      words.op("a");
      replays.anew([&] {
        if (!moves) return;
        replays.forget();
        CHECK(words.alive.size() == 2);
      });
      words.op("b");
    });
  };
  call(), call(), call();
  CHECK(words.launches == 4);
  moves = true;
  call();
  CHECK(words.launches == 6);
  CHECK(words.alive.empty());
  moves = false;
  call();  // as the first time
  CHECK(words.launches == 6);
  call();
  CHECK(words.done == Done{"a", "b", "a", "b", "a", "b", "a", "b", "a", "b", "a", "b"});
  CHECK(words.launches == 8);
}

TEST_CASE("replays: a recording that fails behind something that is done anew leaves nothing") {
  Words words;
  Replays replays(words);
  int anew = 0;
  const auto call = [&] {
    replays.run("a", [&] {
      words.op("a");
      replays.anew([&] { ++anew; });
      if (replays.recording())
        throw Error(Exit::run_failed, {.code = "device.cuda", .what = "a copy", .help = ""});
    });
  };
  call(), call();
  CHECK(replays.trouble() == "a copy");
  CHECK(anew == 2);
  CHECK(words.done == Done{"a", "a"});
  CHECK(words.alive.empty());
}

TEST_CASE("replays: so many recordings and no more") {
  Words words;
  Replays replays(words);
  const auto call = [&](const std::string& key) { replays.run(key, [&] { words.op(key); }); };
  call("old"), call("old");
  for (size_t i = 0; i < 2 * Replays::kMost; ++i) {
    call("kept");
    call(fmt::format("key {}", i));
    call(fmt::format("key {}", i));
    CHECK(words.alive.size() <= Replays::kMost);
  }
  const int launches = words.launches;
  call("kept");
  CHECK(words.launches == launches + 1);
  call("old");  // forgotten, so as the first time
  CHECK(words.launches == launches + 1);
  CHECK(words.done.back() == "old");
}

}  // namespace mtl::test
