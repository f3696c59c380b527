// Ranks that were given up but wake up again, at any instant of a save: whatever the ranks of the
// next fence find or write stays as it is.
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/files.h"
#include "faulty_disk.h"
#include "model_fixture.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using namespace test;
namespace fs = std::filesystem;

// A run of fence 1 with checkpoints 1 and 2, and what an older version left of an attempt at 3.
struct FencedRun {
  TempDir dir;
  std::vector<GlobalTensor> model = small_model();
  std::mt19937_64 random{7};
  fs::path checkpoints = dir.path() / "checkpoints";
  int64_t fence = 1;  // of the run

  FencedRun() {
    save_as(1, 1, 2, 0);
    save_as(1, 2, 2, 0);
    fs::create_directories(checkpoints / "step-00000003");
    std::ofstream(checkpoints / "step-00000003" / "model-r00000.safetensors") << "left over";
  }
  // By ranks that read the fence as workers do.
  void save_as(int64_t own, int64_t step, int ranks, int64_t keep_last) {
    auto layout = random_layout(model, ranks, random);
    save(checkpoints, step, model, layout, keep_last, own, [&] {
      if (own < fence) throw Error(Exit::run_failed, Diagnostic{.code = "fenced", .what = ""});
    });
  }
  // Step 3, and only that is kept.
  void old_attempt() { save_as(1, 3, 2, 1); }
  int64_t newest() {
    Diagnostics diagnostics;
    const fs::path path = newest_checkpoint(checkpoints, diagnostics);
    CHECK(!diagnostics.has_errors());
    return CheckpointReader(path).state()["step"];
  }
  // What readers see: every file of every checkpoint, and `latest`.
  std::map<std::string, std::string> visible() {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      if (check_commit(entry.path()).state != CommitState::committed) continue;
      for (const auto& file : fs::directory_iterator(entry.path())) {
        files[file.path().lexically_relative(dir.path()).string()] = read_file(file.path());
      }
    }
    files["latest"] = fs::read_symlink(dir.path() / "latest").string();
    return files;
  }
  std::set<std::string> names() const { return names_in(checkpoints); }
};

TEST_CASE("frozen at every change of the disk: the next fence finds and keeps what it has") {
  FencedRun counted;
  arm(Fault::count, 0);
  counted.old_attempt();
  const int64_t calls = disarm();
  CHECK(calls > 40);
  int resumed_from_it = 0;
  int woke_to_nothing = 0;
  for (const bool saved_meanwhile : {true, false}) {
    for (int64_t at = 1; at <= calls; at += kStride) {
      CAPTURE(saved_meanwhile);
      CAPTURE(at);
      FencedRun scene;
      int64_t from = 0;
      std::map<std::string, std::string> before;
      const auto go_on = [&] {
        for (int64_t step = from + 1; step <= 4; ++step) scene.save_as(2, step, 1, 0);
      };
      freeze_at(at, [&] {
        scene.fence = 2;
        fence_off_attempts(scene.checkpoints, scene.fence);
        from = scene.newest();
        if (saved_meanwhile) go_on();
        before = scene.visible();
      });
      std::string code;
      try {
        scene.old_attempt();
      } catch (const Error& error) {
        code = error.diagnostics()[0].code;
      }
      disarm();
      REQUIRE(from > 0);
      CHECK((from == 2 || from == 3));
      // It can have succeeded only if that is where the others went on from.
      CHECK((!code.empty() || from == 3));
      resumed_from_it += from == 3;
      woke_to_nothing += !code.empty();
      const auto after = scene.visible();
      CHECK(after == before);
      if (!saved_meanwhile) {
        CHECK(scene.newest() == from);
        CHECK_NOTHROW(go_on());
      }
      for (int64_t step = 1; step <= 4; ++step) {
        const fs::path path = checkpoint_path(scene.checkpoints, step);
        if (step <= from && !fs::exists(path)) continue;  // it had kept fewer before
        CHECK(intact(path, scene.model));
        CHECK(CheckpointReader(path).state()["fence"] == (step > from ? 2 : 1));
      }
      CHECK(fs::read_symlink(scene.dir.path() / "latest") == fs::path("checkpoints/step-00000004"));
      scene.save_as(2, 5, 1, 1);
      CHECK(scene.names() == std::set<std::string>{"step-00000005"});
    }
  }
  CHECK(resumed_from_it > 4 / kStride);
  CHECK(woke_to_nothing > calls / kStride);
}

TEST_CASE("shards that an old fence goes on writing are in no checkpoint of the new one") {
  FencedRun scene;
  const CheckpointAttempt old = {checkpoint_path(scene.checkpoints, 3), 1};
  prepare_checkpoint(old);
  const fs::path shard = written_path(old) / "model-r00000.safetensors";
  const Fd file(::open(shard.c_str(), O_WRONLY | O_CREAT, 0644));
  REQUIRE(file);
  scene.fence = 2;
  fence_off_attempts(scene.checkpoints, 2);
  RankTensors late = whole_layout(scene.model);
  auto layout = random_layout(scene.model, 2, scene.random);
  int looks = 0;
  const auto between = [&] {
    if (++looks < 2) return;
    // All shards of the new one are written, and it is not committed.
    CHECK_THROWS_AS(write_shards(old, 0, late.tensors), Error);
  };
  save(scene.checkpoints, 3, scene.model, layout, 0, 2, between);
  CHECK(looks == 2);
  const auto before = scene.visible();
  const std::string garbage(1 << 16, 'x');
  CHECK(::write(file.get(), garbage.data(), garbage.size()) ==
        static_cast<ssize_t>(garbage.size()));
  CHECK_THROWS_AS(write_shards(old, 1, late.tensors), Error);
  CHECK(scene.visible() == before);
  CHECK(intact(old.dir, scene.model));
  CHECK(!fs::exists(shard));
}

// As the clients of network file systems do: their folders are handles, not names.
TEST_CASE("a late rename by the handle of its folder changes nothing") {
  FencedRun scene;
  const CheckpointAttempt old = {checkpoint_path(scene.checkpoints, 4), 1};
  prepare_checkpoint(old);
  const fs::path folder = written_path(old).parent_path();
  std::ofstream(written_path(old) / kMarkerName) << "whole";
  fs::create_directory_symlink("checkpoints/step-00000004", folder / "latest");
  const Fd handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY));
  REQUIRE(handle);
  const auto before = scene.visible();
  fence_off_attempts(scene.checkpoints, 2);
  const fs::path first = checkpoint_path(scene.checkpoints, 1);
  CHECK(::renameat(handle.get(), "checkpoint", AT_FDCWD, old.dir.c_str()) != 0);
  CHECK(::renameat(handle.get(), "latest", AT_FDCWD, (scene.dir.path() / "latest").c_str()) != 0);
  CHECK(::renameat(AT_FDCWD, first.c_str(), handle.get(), "step-00000001") != 0);
  CHECK(scene.visible() == before);
}

TEST_CASE("fencing off touches older attempts alone") {
  FencedRun scene;
  fence_off_attempts(scene.dir.path() / "no such folder", 3);
  for (const int64_t fence : {0, 1, 3, 4}) {
    prepare_checkpoint({checkpoint_path(scene.checkpoints, 10 + fence), fence});
  }
  // Each prepared folder has deleted the older ones.
  fs::create_directories(scene.checkpoints / "step-00000011.writing-1" / "checkpoint");
  fs::create_directories(scene.checkpoints / "step-00000012.writing-2" / "checkpoint");
  fs::create_directories(scene.checkpoints / "step-00000013.writing-3" / "checkpoint");
  fs::create_directories(scene.checkpoints / "step-00000011.writing-1.deleted" / "in the way");
  const auto before = scene.visible();
  fence_off_attempts(scene.checkpoints, 3);
  CHECK(scene.visible() == before);
  CHECK(scene.names() == std::set<std::string>{"step-00000001", "step-00000002", "step-00000003",
                                               "step-00000013.writing-3",
                                               "step-00000014.writing-4"});
}

}  // namespace
}  // namespace mtl
