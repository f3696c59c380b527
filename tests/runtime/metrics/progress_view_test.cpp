// ProgressView: records in, terminal or plain text out.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <doctest/doctest.h>

#include "runtime/metrics/reporter.h"

using namespace mtl;

namespace {

// A FILE* that keeps what was written.
class Screen {
 public:
  Screen() : file_(open_memstream(&text_, &size_)) { REQUIRE(file_ != nullptr); }
  ~Screen() {
    std::fclose(file_);
    std::free(text_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  std::FILE* file() { return file_; }
  std::string all() {
    std::fflush(file_);
    return std::string(text_, size_);
  }
  // What was written since the last call.
  std::string next() {
    const std::string text = all();
    std::string part = text.substr(seen_);
    seen_ = text.size();
    return part;
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  size_t seen_ = 0;
  std::FILE* file_;
};

struct Clock {
  std::chrono::steady_clock::time_point time{};
};

ViewOptions terminal(Screen& screen, const Clock& clock) {
  ViewOptions options;
  options.out = screen.file();
  options.terminal = true;
  options.columns = 60;
  options.now = [&clock] { return clock.time; };
  return options;
}

std::string step_record(int step, bool logged, int steps = 100) {
  return "{\"step\":" + std::to_string(step) +
         ",\"time\":\"2026-11-21T01:42:10Z\",\"loss\":2.5,\"lr\":0.001,\"grad_norm\":0.5,"
         "\"tokens_per_s\":1000,\"step_time_s\":0.25,\"mfu\":0.3,\"memory_bytes\":1073741824,"
         "\"kind\":\"step\",\"steps\":" +
         std::to_string(steps) + ",\"eta_s\":12,\"logged\":" + (logged ? "true" : "false") + "}";
}

const std::string kStatus1 = "step    1/100  1.0%  loss 2.5000  1.0k tok/s  eta 12s";

}  // namespace

TEST_CASE("a skipped step is said, once, on a terminal and in plain text") {
  std::string record = step_record(2, true);
  record.replace(record.find("\"kind\":\"step\""), 13, "\"kind\":\"skip\",\"skipped\":1");
  Screen plain;
  ViewOptions options;
  options.out = plain.file();
  ProgressView plain_view(options);
  plain_view.record(record);
  CHECK(plain.all() ==
        "2026-11-21T01:42:10Z step=2 skipped: loss 2.5000, gradient norm 0.50: no update; 1 step "
        "skipped so far\n");
  Screen screen;
  const Clock clock;
  ProgressView view(terminal(screen, clock));
  view.record(step_record(1, true));
  screen.next();
  view.record(record);
  CHECK(screen.next() ==
        "\r\033[Kskip   step 2  loss 2.5000, gradient norm 0.50: no update; 1 step skipped so far\n"
        "\rstep    2/100  2.0%  loss 2.5000  1.0k tok/s  eta 12s\033[K");
}

TEST_CASE("plain: one line per logged step, and never a carriage return or colour") {
  Screen screen;
  ViewOptions options;
  options.out = screen.file();
  ProgressView view(options);
  view.record("{\"kind\":\"start\",\"lines\":[\"run runs/x\",\"grid 1 rank\"]}");
  view.record(step_record(1, true));
  view.record(step_record(2, false));
  view.record("{\"kind\":\"eval\",\"time\":\"T\",\"step\":2,\"valid_loss\":3.25}");
  view.record("{\"kind\":\"checkpoint\",\"time\":\"T\",\"step\":2,\"path\":\"c/step-2\"}");
  view.text("10%\r50%\rdone\r");
  view.record("{\"kind\":\"finish\",\"lines\":[\"done in 4 s\"]}");
  view.close();
  CHECK(screen.all() ==
        "run runs/x\ngrid 1 rank\n"
        "2026-11-21T01:42:10Z step=1 loss=2.5000 lr=1.0e-3 gnorm=0.50 tok_s=1000 mfu=0.300 "
        "mem_gib=1 eta_s=12\n"
        "T step=2 valid_loss=3.2500\n"
        "T step=2 checkpoint=c/step-2\n"
        "done\n"
        "done in 4 s\n");
}

TEST_CASE("terminal: one line, redrawn at most ten times per second") {
  Screen screen;
  Clock clock;
  ProgressView view(terminal(screen, clock));
  view.record(step_record(1, true));
  CHECK(screen.next() == "\r" + kStatus1 + "\033[K");
  view.record(step_record(2, false));
  clock.time += std::chrono::milliseconds(99);
  view.record(step_record(3, false));
  CHECK(screen.next().empty());
  clock.time += std::chrono::milliseconds(1);
  view.record(step_record(4, false));
  CHECK(screen.next().rfind("\rstep    4/100", 0) == 0);
  // The last step is always drawn.
  view.record(step_record(100, true));
  CHECK(screen.next().rfind("\rstep  100/100  100.0%", 0) == 0);
}

TEST_CASE("terminal: other lines are printed above the status line") {
  Screen screen;
  Clock clock;
  ProgressView view(terminal(screen, clock));
  view.text("before");
  CHECK(screen.next() == "before\n");
  view.record(step_record(1, true));
  screen.next();
  view.record("{\"kind\":\"eval\",\"step\":1,\"valid_loss\":3.25}");
  CHECK(screen.next() == "\r\033[Keval   step 1  valid_loss 3.2500\n\r" + kStatus1 + "\033[K");
  view.record(R"({"kind":"eval","step":1,"valid_loss":3.25,"valid_loss/b":3.0})");
  CHECK(screen.next() ==
        "\r\033[Keval   step 1  valid_loss 3.2500  valid_loss/b 3.0000\n\r" + kStatus1 + "\033[K");
  view.text("from a worker");
  CHECK(screen.next() == "\r\033[Kfrom a worker\n\r" + kStatus1 + "\033[K");
}

TEST_CASE("terminal: closing leaves the newest status and a fresh line, once") {
  Screen screen;
  Clock clock;
  {
    ProgressView view(terminal(screen, clock));
    view.record(step_record(1, true));
    view.record(step_record(2, false));
    screen.next();
    view.close();
    const std::string end = screen.next();
    CHECK(end.rfind("\rstep    2/100", 0) == 0);
    CHECK(end.back() == '\n');
    view.close();
  }
  CHECK(screen.next().empty());
}

TEST_CASE("terminal: the end's lines stand below the last status") {
  Screen screen;
  Clock clock;
  ProgressView view(terminal(screen, clock));
  view.record(step_record(1, true));
  screen.next();
  view.record("{\"kind\":\"finish\",\"state\":\"done\",\"lines\":[\"loss 2.5\",\"bye\"]}");
  CHECK(screen.next() == "\r" + kStatus1 + "\033[K\nloss 2.5\nbye\n");
}

TEST_CASE("the width is respected, with a column to spare") {
  Screen screen;
  Clock clock;
  ViewOptions options = terminal(screen, clock);
  options.columns = 20;
  ProgressView view(options);
  view.record(step_record(1, true));
  CHECK(screen.next() == "\rstep    1/100  los~\033[K");
}

TEST_CASE("what is not a record is shown as it is, and what is unknown is ignored") {
  Screen screen;
  ViewOptions options;
  options.out = screen.file();
  ProgressView view(options);
  view.record("{\"kind\":\"step\",");
  CHECK(screen.next() == "{\"kind\":\"step\",\n");
  view.record("Segmentation fault");
  CHECK(screen.next() == "Segmentation fault\n");
  view.record("[1,2]");
  CHECK(screen.next() == "[1,2]\n");
  view.record("{\"kind\":\"weather\",\"lines\":[\"x\"]}");
  view.record("{\"kind\":7}");
  view.record("{}");
  CHECK(screen.next().empty());
  view.record("{\"kind\":\"start\",\"lines\":[1,null,\"ok\"]}");
  CHECK(screen.next() == "ok\n");
  view.record("{\"kind\":\"start\",\"lines\":\"no\"}");
  CHECK(screen.next().empty());
  // Wrong types inside a step: shown as unknown.
  view.record("{\"kind\":\"step\",\"step\":\"x\",\"loss\":null,\"eta_s\":[]}");
  CHECK(screen.next() ==
        " step=0 loss=nan lr=nan gnorm=nan tok_s=nan mfu=nan mem_gib=0 eta_s=nan\n");
}

TEST_CASE("what a model writes is one line, cut to the terminal") {
  Screen screen;
  Clock clock;
  const std::string record =
      R"({"kind":"generated","step":20,"time":"T","prompt":"ROMEO:","text":" a\n\u001b[2Jb\"c)" +
      std::string(80, 'x') + "\"}";
  {
    ProgressView view(terminal(screen, clock));
    view.record(record);
  }
  const std::string shown = screen.next();
  CHECK(shown.starts_with("text   step 20  ROMEO: a\\n\xef\xbf\xbd[2Jb\"cxxx"));
  CHECK(shown.ends_with("xxx~\n"));
  CHECK(shown.size() == 59 + 2 + 1);  // columns, of which one takes three bytes, and the line break
  ViewOptions plain;
  plain.out = screen.file();
  {
    ProgressView view(plain);
    view.record(record);
  }
  CHECK(screen.next() ==
        R"(T step=20 prompt="ROMEO:" text=" a\n\u001b[2Jb\"c)" + std::string(80, 'x') + "\"\n");
}
