// A crash, a power loss, a full or broken disk at every single step of a save: the previous
// checkpoint stays intact, a new one is whole or not there, and the next attempt works.
#include <cerrno>
#include <filesystem>
#include <random>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>

#include <doctest/doctest.h>

#include "common/files.h"
#include "faulty_disk.h"
#include "model_fixture.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using namespace test;
namespace fs = std::filesystem;

// Two committed checkpoints and what attempts at step 3 by more ranks left behind: one of this
// version, and one of earlier ones, which wrote into the folder itself.
struct Scene {
  TempDir dir;
  std::vector<GlobalTensor> model = small_model();
  std::mt19937_64 random{5};
  fs::path checkpoints = dir.path() / "checkpoints";

  Scene() {
    auto ranks = random_layout(model, 2, random);
    save(checkpoints, 1, model, ranks);
    save(checkpoints, 2, model, ranks);
    auto more = random_layout(model, 3, random);
    const CheckpointAttempt attempt = {checkpoint_path(checkpoints, 3)};
    prepare_checkpoint(attempt);
    for (int rank = 0; rank < 3; ++rank) write_shards(attempt, rank, more[rank].tensors);
    fs::copy(written_path(attempt), attempt.dir);
  }
  // Saves step 3 and prunes step 1.
  void attempt() {
    auto ranks = random_layout(model, 2, random);
    save(checkpoints, 3, model, ranks, 2);
  }
  // Step 2 or step 3 is the newest and whole, and so is whatever else calls itself committed.
  void check_survived() {
    Diagnostics diagnostics;
    const fs::path newest = newest_checkpoint(checkpoints, diagnostics);
    CHECK(!diagnostics.has_errors());
    CHECK((newest == checkpoint_path(checkpoints, 2) || newest == checkpoint_path(checkpoints, 3)));
    CHECK(intact(newest, model));
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      if (check_commit(entry.path()).state == CommitState::committed &&
          entry.path().extension().empty()) {
        CHECK(intact(entry.path(), model));
      }
    }
    std::error_code error;
    const fs::path latest = fs::read_symlink(dir.path() / "latest", error);
    CHECK(!error);
    CHECK(check_commit(dir.path() / latest).state == CommitState::committed);
  }
  void check_next_attempt() {
    if (check_commit(checkpoint_path(checkpoints, 3)).state != CommitState::committed) {
      attempt();
    } else {
      auto ranks = random_layout(model, 1, random);
      save(checkpoints, 4, model, ranks, 3);
    }
    Diagnostics diagnostics;
    const fs::path newest = newest_checkpoint(checkpoints, diagnostics);
    CHECK(diagnostics.all().empty());
    CHECK(intact(newest, model));
    CHECK(dir.path() / fs::read_symlink(dir.path() / "latest") == newest);
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      CHECK(entry.path().extension().empty());  // nothing half deleted is left
      CHECK(intact(entry.path(), model));
    }
  }
};

int64_t calls_of_an_attempt() {
  Scene scene;
  arm(Fault::count, 0);
  scene.attempt();
  return disarm();
}

TEST_CASE("crash and power loss at every change of the disk") {
  const int64_t calls = calls_of_an_attempt();
  CHECK(calls > 40);
  int crashes = 0;
  int committed = 0;
  for (const Fault fault : {Fault::crash, Fault::power_loss}) {
    for (int64_t at = 1; at <= calls + 1; at += kStride) {
      CAPTURE(static_cast<int>(fault));
      CAPTURE(at);
      Scene scene;
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        arm(fault, at);
        try {
          scene.attempt();
        } catch (...) {
          ::_exit(1);
        }
        ::_exit(0);
      }
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      REQUIRE(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == (at <= calls ? kCrashExit : 0));
      crashes += WEXITSTATUS(status) == kCrashExit;
      committed +=
          check_commit(checkpoint_path(scene.checkpoints, 3)).state == CommitState::committed;
      scene.check_survived();
      scene.check_next_attempt();
    }
  }
  CHECK(crashes == 2 * ((calls + kStride - 1) / kStride));
  CHECK(committed > (kSanitized ? 0 : 2));
  MESSAGE(crashes << " crashes, " << committed << " of them after the commit");
}

TEST_CASE("an error of the disk at every change of it") {
  const int64_t calls = calls_of_an_attempt();
  int errors = 0;
  for (const Fault fault : {Fault::error, Fault::full}) {
    for (int64_t at = 1; at <= calls; at += kStride) {
      CAPTURE(static_cast<int>(fault));
      CAPTURE(at);
      Scene scene;
      arm(fault, at, EIO);
      std::string code;
      try {
        scene.attempt();
        disarm();
      } catch (const Error& error) {
        disarm();
        const Diagnostic& diagnostic = error.diagnostics()[0];
        code = diagnostic.code;
        CHECK(error.exit() == Exit::environment);
        CHECK(diagnostic.what.find(scene.checkpoints.string()) != std::string::npos);
        const std::string reason = fault == Fault::error ? "Input/output" : "No space left";
        CHECK(diagnostic.what.find(reason) != std::string::npos);
        // An Error means that there is no new checkpoint.
        CHECK(check_commit(checkpoint_path(scene.checkpoints, 3)).state != CommitState::committed);
        ++errors;
      }
      CHECK((code.empty() || code == "ckpt.write"));
      scene.check_survived();
      scene.check_next_attempt();
    }
  }
  CHECK(errors > calls / kStride);
}

TEST_CASE("a disk that is full after some bytes: the file is named and removed") {
  Scene scene;
  RankTensors rank = whole_layout(scene.model);
  const CheckpointAttempt attempt = {checkpoint_path(scene.checkpoints, 9)};
  prepare_checkpoint(attempt);
  int pipe_fds[2];
  REQUIRE(::pipe(pipe_fds) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string text = "no error";
    try {
      write_shards(attempt, 0, rank.tensors);
    } catch (const Error& error) {
      text = error.what();
    }
    const ssize_t put = ::write(pipe_fds[1], text.data(), text.size());
    ::_exit(put == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(pipe_fds[1]);
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(pipe_fds[0], text.data(), 4096))));
  ::close(pipe_fds[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(text.find("ckpt.write") != std::string::npos);
  CHECK(text.find("model-r00000.safetensors") != std::string::npos);
  CHECK(text.find("File too large") != std::string::npos);
  CHECK(fs::is_empty(written_path(attempt)));
}

TEST_CASE("killed at random instants, again and again, in one directory") {
  TempDir dir;
  const auto model = small_model();
  const fs::path checkpoints = dir.path() / "checkpoints";
  std::mt19937_64 random(11);
  int64_t newest_step = 0;
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    const uint64_t seed = random();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::mt19937_64 layouts(seed);
      for (int64_t step = newest_step + 1; step < newest_step + 100; ++step) {
        auto ranks = random_layout(model, 2, layouts);
        try {
          save(checkpoints, step, model, ranks, 2);
        } catch (...) {
          ::_exit(1);
        }
      }
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(random() % 20000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    Diagnostics diagnostics;
    const fs::path newest = newest_checkpoint(checkpoints, diagnostics);
    if (newest.empty()) {
      CHECK(newest_step == 0);
      continue;
    }
    CHECK(intact(newest, model));
    const auto step = CheckpointReader(newest).state()["step"].get<int64_t>();
    CHECK(step >= newest_step);
    newest_step = step;
  }
}

}  // namespace
}  // namespace mtl
