// Which checkpoint is the newest, what `latest` says, and which ones are deleted.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/fsuid.h>

#include <doctest/doctest.h>

#include "model_fixture.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using namespace test;
namespace fs = std::filesystem;

struct Run {
  TempDir dir;
  std::vector<GlobalTensor> model = {{"w", DType::f32, {3, 2}, false}};
  fs::path checkpoints = dir.path() / "checkpoints";
  std::vector<RankTensors> ranks;
  Run() { ranks.push_back(whole_layout(model)); }
  void save_step(int64_t step, int64_t keep_last) {
    save(checkpoints, step, model, ranks, keep_last);
  }
  fs::path newest(size_t warnings = 0) {
    Diagnostics diagnostics;
    const fs::path path = newest_checkpoint(checkpoints, diagnostics);
    CHECK(!diagnostics.has_errors());
    CHECK(diagnostics.all().size() == warnings);
    for (const auto& diagnostic : diagnostics.all()) CHECK(diagnostic.code == "ckpt.incomplete");
    return path;
  }
  std::set<std::string> names() const { return names_in(checkpoints); }
};

TEST_CASE("newest: none, then the highest step, whatever order they were written in") {
  Run run;
  CHECK(run.newest().empty());
  fs::create_directories(run.checkpoints);
  CHECK(run.newest().empty());
  run.save_step(200, 0);
  run.save_step(99, 0);
  CHECK(run.newest() == run.checkpoints / "step-00000200");
  run.save_step(1234567890, 0);
  CHECK(run.newest() == run.checkpoints / "step-1234567890");
  CHECK(run.names().size() == 3);
}

TEST_CASE("newest: what is not a complete checkpoint is passed over and named") {
  Run run;
  run.save_step(1, 0);
  run.save_step(2, 0);
  fs::create_directories(run.checkpoints / "step-00000003");
  for (const char* other :
       {"step-4", "step-0000000x", "step-00000005.deleted", "step-00000005.writing-",
        "step-00000005.writing-1x", "step-00000005.writing-1.deleted", "step-00000005.damaged",
        "step-00000002.writing-7", "step-00000001.writing-8", "other"}) {
    fs::create_directories(run.checkpoints / other);
  }
  std::ofstream(run.checkpoints / "step-00000009") << "a file";
  CHECK(run.newest(1) == run.checkpoints / "step-00000002");
  // A whole checkpoint that did not get its name is none.
  const fs::path attempt = run.checkpoints / "step-00000003.writing-7";
  fs::create_directories(attempt);
  fs::copy(run.checkpoints / "step-00000001", attempt, fs::copy_options::recursive);
  fs::copy(run.checkpoints / "step-00000001", attempt / "checkpoint");
  CHECK(run.newest(2) == run.checkpoints / "step-00000002");
  Diagnostics diagnostics;
  CHECK(newest_intact_checkpoint(run.checkpoints, Damaged::set_aside, diagnostics) ==
        run.checkpoints / "step-00000002");
  REQUIRE(diagnostics.all().size() == 2);
  CHECK(diagnostics.all()[1].what.find(attempt.string() + ": it is not complete") !=
        std::string::npos);
  fs::remove_all(attempt);
  std::ofstream(run.checkpoints / "step-00000002" / kManifestName, std::ios::app) << " ";
  CHECK(run.newest(3) == run.checkpoints / "step-00000001");  // and an attempt at the same step
  fs::remove(run.checkpoints / "step-00000001" / kMarkerName);
  CHECK(run.newest(5).empty());
}

TEST_CASE("pruning keeps the newest K and removes what was never complete") {
  Run run;
  for (int64_t step = 10; step <= 60; step += 10) run.save_step(step, 3);
  CHECK(run.names() == std::set<std::string>{"step-00000040", "step-00000050", "step-00000060"});
  for (const auto& name : run.names()) CHECK(intact(run.checkpoints / name, run.model));
  fs::create_directories(run.checkpoints / "step-00000065");
  fs::create_directories(run.checkpoints / "step-00000099");
  fs::create_directories(run.checkpoints / "step-00000001.deleted");
  fs::create_directories(run.checkpoints / "step-00000099.writing-0" / "checkpoint");
  fs::create_directories(run.checkpoints / "other");
  run.save_step(70, 2);
  CHECK(run.names() ==
        std::set<std::string>{"other", "step-00000060", "step-00000070", "step-00000099"});
  run.save_step(80, 0);
  CHECK(run.names().size() == 5);
  run.save_step(81, 1);
  CHECK(run.names() == std::set<std::string>{"other", "step-00000081", "step-00000099"});
}

TEST_CASE("pruning never deletes the checkpoint that was just written") {
  Run run;
  run.save_step(50, 1);
  run.save_step(60, 2);
  run.save_step(40, 1);
  CHECK(run.names() == std::set<std::string>{"step-00000040"});
  CHECK(run.newest() == run.checkpoints / "step-00000040");
}

TEST_CASE("latest: a relative link to the newest commit, also when the run moves") {
  Run run;
  run.save_step(1, 0);
  run.save_step(2, 0);
  const fs::path latest = run.dir.path() / "latest";
  CHECK(fs::read_symlink(latest) == fs::path("checkpoints/step-00000002"));
  CHECK(CheckpointReader(latest).state()["step"] == 2);
  fs::create_directories(run.dir.path() / "moved");
  fs::rename(run.checkpoints, run.dir.path() / "moved" / "checkpoints");
  fs::rename(latest, run.dir.path() / "moved" / "latest");
  CHECK(CheckpointReader(run.dir.path() / "moved" / "latest").state()["step"] == 2);
}

TEST_CASE("latest: also when the checkpoints lie on another file system") {
  Run run;
  const TempDir here;
  const fs::path memory = fs::path("/dev/shm") / here.path().filename();
  std::error_code none;
  if (!fs::create_directory(memory, none)) return;
  fs::create_directory_symlink(memory, run.checkpoints);
  for (int64_t step : {1, 2}) {
    run.save_step(step, 1);
    const fs::path latest = fs::read_symlink(run.dir.path() / "latest");
    CHECK(latest == checkpoint_path("checkpoints", step));
  }
  CHECK(CheckpointReader(run.dir.path() / "latest").state()["step"] == 2);
  CHECK(run.names() == std::set<std::string>{"step-00000002"});
  fs::remove_all(memory);
}

TEST_CASE("latest: a checkpoint is complete even if the link cannot be made") {
  Run run;
  fs::create_directories(run.dir.path() / "latest" / "in the way");
  run.checkpoints = run.dir.path() / "checkpoints" / "";  // a slash at the end changes nothing
  const auto dir = checkpoint_path(run.checkpoints, 1);
  prepare_checkpoint({dir / ""});
  fill(run.ranks[0], run.model, 1);
  const auto chunks = write_shards({dir}, 0, run.ranks[0].tensors);
  const auto warnings = commit_checkpoint({dir / ""}, chunks, {{"step", 1}}, {.last = 1});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].severity == Diagnostic::Severity::warning);
  CHECK(warnings[0].code == "ckpt.tidy");
  CHECK(fs::is_directory(run.dir.path() / "latest" / "in the way"));
  CHECK(check_commit(dir).state == CommitState::committed);
}

TEST_CASE("prepare: an empty folder of its own, and never one of another name") {
  Run run;
  const CheckpointAttempt attempt = {checkpoint_path(run.checkpoints, 4), 3};
  fs::create_directories(written_path(attempt) / "sub");
  std::ofstream(written_path(attempt) / "model-r00007.safetensors") << "left over";
  prepare_checkpoint(attempt);
  CHECK(fs::is_empty(written_path(attempt)));
  CHECK(run.names() == std::set<std::string>{"step-00000004.writing-3"});
  // Those of older fences go, whatever their step; nobody touches those of newer ones.
  prepare_checkpoint({checkpoint_path(run.checkpoints, 2), 4});
  prepare_checkpoint({checkpoint_path(run.checkpoints, 9), 3});
  CHECK(run.names() == std::set<std::string>{"step-00000002.writing-4", "step-00000009.writing-3"});
  std::ofstream(run.dir.path() / "thesis.tex") << "precious";
  CHECK_THROWS_AS(prepare_checkpoint({run.dir.path()}), Error);
  CHECK_THROWS_AS(prepare_checkpoint({run.checkpoints / "step-00000002.writing-4"}), Error);
  CHECK(fs::exists(run.dir.path() / "thesis.tex"));
}

TEST_CASE("a checkpoint replaces what was never one under its name") {
  Run run;
  const fs::path dir = checkpoint_path(run.checkpoints, 4);
  SUBCASE("an attempt of an earlier version") {
    fs::create_directories(dir / "sub");
    std::ofstream(dir / "model-r00007.safetensors") << "left over";
  }
  SUBCASE("an empty folder") {
    fs::create_directories(dir);
  }
  SUBCASE("a file") {
    fs::create_directories(run.checkpoints);
    std::ofstream(dir) << "left over";
  }
  run.save_step(4, 0);
  CHECK(run.names() == std::set<std::string>{"step-00000004"});
  CHECK(intact(dir, run.model));
}

// Flips the last byte of a file: data of its last chunk.
void spoil(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(stream.get() ^ 1);
  stream.seekp(-1, std::ios::end);
  stream.put(byte);
}

TEST_CASE("intact: a damaged shard makes the checkpoint before it the newest") {
  Run run;
  for (int64_t step : {20, 40, 60}) run.save_step(step, 0);
  const fs::path newest = run.checkpoints / "step-00000060";
  SUBCASE("a flipped byte") {
    spoil(newest / "model-r00000.safetensors");
  }
  SUBCASE("a truncated file") {
    fs::resize_file(newest / "model-r00000.safetensors",
                    fs::file_size(newest / "model-r00000.safetensors") - 1);
  }
  SUBCASE("a missing file") {
    fs::remove(newest / "model-r00000.safetensors");
  }
  SUBCASE("a damaged manifest") {
    spoil(newest / "manifest.json");
  }
  Diagnostics diagnostics;
  CHECK(newest_intact_checkpoint(run.checkpoints, Damaged::pass_over, diagnostics) ==
        run.checkpoints / "step-00000040");
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(!diagnostics.has_errors());
  CHECK(diagnostics.all()[0].what.find("step-00000060") != std::string::npos);
  CHECK(fs::exists(newest));
  // Set aside, it is in nobody's way: the step can be saved again, and nothing of it is lost.
  newest_intact_checkpoint(run.checkpoints, Damaged::set_aside, diagnostics);
  CHECK(!fs::exists(newest));
  CHECK(fs::exists(run.checkpoints / "step-00000060.damaged"));
  run.save_step(60, 0);
  CHECK(run.newest() == newest);
  CHECK(fs::exists(run.checkpoints / "step-00000060.damaged"));
}

TEST_CASE("intact: when none is, that is an error and nothing is renamed") {
  Run run;
  run.save_step(20, 0);
  spoil(run.checkpoints / "step-00000020" / "model-r00000.safetensors");
  Diagnostics diagnostics;
  CHECK(newest_intact_checkpoint(run.checkpoints, Damaged::set_aside, diagnostics).empty());
  CHECK(diagnostics.has_errors());
  CHECK(diagnostics.all().back().code == "ckpt.none_intact");
  CHECK(fs::exists(run.checkpoints / "step-00000020"));
}

// Root may read everything, unless it looks with the eyes of another.
class AsNobody {
 public:
  AsNobody() { ::setfsuid(65534); }
  ~AsNobody() { ::setfsuid(::geteuid()); }
};

TEST_CASE("newest: a checkpoint that may not be read is neither damaged nor passed over") {
  for (const char* unreadable : {"COMMITTED", "manifest.json", "model-r00000.safetensors", ""}) {
    CAPTURE(unreadable);
    Run run;
    fs::permissions(run.dir.path(), fs::perms(0755));
    run.save_step(5, 0);
    run.save_step(10, 0);
    const std::set<std::string> before = run.names();
    const fs::path path = run.checkpoints / "step-00000010" / unreadable;
    const fs::perms perms = fs::status(path).permissions();
    fs::permissions(path, fs::perms::none);
    {
      const AsNobody nobody;
      Diagnostics diagnostics;
      CHECK(error_of(
                [&] { newest_intact_checkpoint(run.checkpoints, Damaged::set_aside, diagnostics); },
                "ckpt.unreadable", Exit::environment)
                .find("Permission denied") != std::string::npos);
      CHECK(diagnostics.all().empty());
      const std::string committed = unreadable;
      if (committed != "model-r00000.safetensors") {
        CHECK(newest_checkpoint(run.checkpoints, diagnostics).empty());
        REQUIRE(diagnostics.all().size() == 1);
        CHECK(diagnostics.all()[0].code == "ckpt.unreadable");
      }
    }
    fs::permissions(path, perms);
    CHECK(run.names() == before);
    CHECK(run.newest().filename() == "step-00000010");
  }
}

}  // namespace
}  // namespace mtl
