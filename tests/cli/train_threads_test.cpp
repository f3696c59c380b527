// The real program with the real trainer: ranks as threads are as good as processes.
#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE("threads compute the bits of processes") {
  for (const char* layout : {"parallel.dp=2", "parallel.tp=2"}) {
    CAPTURE(layout);
    std::map<std::string, std::vector<json>> losses;
    std::map<std::string, std::map<std::string, std::string>> tensors;
    for (const std::string spawn : {"processes", "threads"}) {
      Shell shell;
      write_recipe(shell, 10);
      const Outcome outcome = shell.mtl({"launch", "--num_processes", "2", "train.yaml", layout,
                                         "log.every=1", "launch.spawn=" + spawn});
      CAPTURE(outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK(has(outcome.err, spawn == "threads" ? "2 threads of one process" : "2 processes"));
      const fs::path run = run_of(shell);
      CHECK(fs::exists(run / "logs/rank-00001.log") == (spawn == "processes"));
      for (json line : metrics_of(run)) {
        for (const char* timed : {"time", "tokens_per_s", "step_time_s", "mfu", "mfu_of_flops"})
          line.erase(timed);
        losses[spawn].push_back(line);
      }
      tensors[spawn] = tensors_of(run / "latest");
    }
    CHECK(losses["processes"].size() == 11);
    CHECK(losses["threads"] == losses["processes"]);
    CHECK(tensors["processes"].size() > 20);
    CHECK(tensors["threads"] == tensors["processes"]);
  }
}

TEST_CASE("ranks as threads obey signals together and go on as processes") {
  Shell shell;
  write_recipe(shell, 1'000'000);
  const pid_t pid = shell.start(
      {MTL_PROGRAM, "launch", "--num_processes", "2", "train.yaml", "launch.spawn=threads"});
  wait_for_text(shell, "step=5 ");
  kill(pid, SIGUSR1);
  wait_for_text(shell, "checkpoint=");
  CHECK(has(file_text(shell.dir() / "stderr.txt"), "checkpoint="));
  kill(pid, SIGTERM);
  const Outcome stopped = shell.finish(pid);
  CAPTURE(stopped.err);
  REQUIRE(stopped.code == 75);
  CHECK(has(stopped.err, "asked 2 ranks to stop"));
  const json status = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(status["state"] == "stopped");
  const int64_t step = status["step"];
  const Outcome more = shell.mtl(
      {"launch", "--num_processes", "2", "train.yaml", "train.steps=" + std::to_string(step + 3)});
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["step"] == step + 3);
}

TEST_CASE("a rank that fails is the headline among processes and among threads") {
  for (const std::string spawn : {"processes", "threads"}) {
    CAPTURE(spawn);
    Shell shell;
    write_recipe(shell, 1'000'000);
    const pid_t pid = shell.start({MTL_PROGRAM, "launch", "--num_processes", "2", "train.yaml",
                                   "checkpoint.every=0", "launch.spawn=" + spawn});
    wait_for_text(shell, "step=5 ");
    // Only rank 0 makes the folder of a checkpoint.
    const fs::path checkpoints = run_of(shell) / "checkpoints";
    fs::remove_all(checkpoints);
    shell.write(checkpoints.string(), "in the way");
    // The last one has to be written: without it the run has failed.
    kill(pid, SIGTERM);
    const Outcome outcome = shell.finish(pid);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 4);
    const size_t headline = outcome.err.rfind("error[rank.died]");
    REQUIRE(headline != std::string::npos);
    const std::string report = outcome.err.substr(headline);
    CHECK(has(report, spawn == "threads" ? ": ranks 0-1 (pid " : ": rank 0 (pid "));
    CHECK(has(report, "error[ckpt.write]"));
    CHECK(has(report, checkpoints.string()));
    CHECK(has(report, "]: rank 0: ") == (spawn == "threads"));
    CHECK_FALSE(has(outcome.err, "comm.peer_lost"));
    CHECK(json::parse(file_text(run_of(shell) / "status.json"))["state"] == "failed");
  }
}

TEST_CASE("a process of rank threads that is killed is the headline") {
  Shell shell;
  write_recipe(shell, 1'000'000);
  const pid_t pid =
      shell.start({MTL_PROGRAM, "launch", "--num_processes", "3", "train.yaml",
                   "launch.spawn=threads", "train.global_batch=6", "train.micro_batch=1"});
  wait_for_text(shell, "step=5 ");
  pid_t victim = 0;
  int workers = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string environment = file_text(entry.path() / "environ");
    if (has(environment, std::string("HF_HOME=") + (shell.dir() / "hf").string()) &&
        has(environment, std::string("\0RANK=", 6))) {
      ++workers;
      victim = std::stoi(entry.path().filename().string());
      CHECK(has(environment, std::string("\0MTL_RANK_THREADS=3\0", 20)));
      CHECK(has(environment, std::string("\0WORLD_SIZE=3\0", 14)));
      CHECK_FALSE(has(environment, "MTL_TOKEN_FD="));
    }
  }
  REQUIRE(workers == 1);
  // Also where there is more to complain about.
  fs::create_directories(run_of(shell) / "report.html/in the way");
  kill(victim, SIGKILL);
  const Outcome outcome = shell.finish(pid);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 137);
  CHECK(has(outcome.err, "report.html"));
  CHECK(outcome.err.rfind("warning: ") < outcome.err.rfind("error["));
  CHECK(has(outcome.err, "ranks 0-2 (pid " + std::to_string(victim) + ") was killed by SIGKILL"));
}

TEST_CASE("a worker told to run some ranks of several processes as threads refuses") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome outcome =
      shell.mtl({"worker", "."}, {{"MTL_RANK_THREADS", "2"}, {"WORLD_SIZE", "4"}});
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "error[worker.environment]"));
  CHECK(has(outcome.err, "MTL_RANK_THREADS=2"));
}
