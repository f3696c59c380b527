// The real program with the real trainer: runs that are stopped, killed, lost, or out of time.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE("TERM stops with a complete checkpoint and code 75, and the same command goes on") {
  Shell shell;
  write_recipe(shell, 1'000'000);
  const pid_t pid = shell.start({MTL_PROGRAM, "launch", "--num_processes", "2", "train.yaml"});
  wait_for_text(shell, "step=5 ");
  // Meanwhile the run is nobody else's.
  kill(pid, SIGUSR1);  // writes a checkpoint, so that there is something to resume
  wait_for_text(shell, "checkpoint=");
  CHECK(has(file_text(shell.dir() / "stderr.txt"), "checkpoint="));
  const Outcome second = shell.mtl({"launch", "train.yaml"});
  CHECK(second.code == 4);
  CHECK(has(second.err, "error[run.busy]"));
  kill(pid, SIGTERM);
  const Outcome stopped = shell.finish(pid);
  CAPTURE(stopped.err);
  REQUIRE(stopped.code == 75);
  CHECK(has(stopped.err, "the same command goes on"));
  const fs::path run = run_of(shell);
  const json status = json::parse(file_text(run / "status.json"));
  CHECK(status["state"] == "stopped");
  const int64_t step = status["step"];
  CHECK(step >= 5);
  const Outcome more = shell.mtl(
      {"launch", "--num_processes", "2", "train.yaml", "train.steps=" + std::to_string(step + 3)});
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["step"] == step + 3);
}

TEST_CASE("a run whose folder is moved while it trains does not promise to go on") {
  Shell shell;
  write_recipe(shell, 1'000'000);
  const pid_t pid = shell.start({MTL_PROGRAM, "launch", "train.yaml"});
  wait_for_text(shell, "step=5 ");
  fs::rename(run_of(shell), shell.dir() / "moved");
  kill(pid, SIGTERM);
  const Outcome stopped = shell.finish(pid);
  CAPTURE(stopped.err);
  CHECK(stopped.code == 75);
  CHECK(has(stopped.err, "the same command begins anew"));
  CHECK_FALSE(has(stopped.err, "goes on from it"));
}

TEST_CASE("mtl stop --now does not wait for a rank that does not stop") {
  Shell shell;
  write_recipe(shell, 1'000'000);
  const std::map<std::string, std::string> env = {
      {"XDG_STATE_HOME", (shell.dir() / "state").string()}};
  const pid_t pid = shell.start({MTL_PROGRAM, "launch", "--grace", "1000", "train.yaml"}, env);
  wait_for_text(shell, "step=5 ");
  const pid_t worker = worker_with(shell, "");
  REQUIRE(worker > 0);
  kill(worker, SIGSTOP);
  const Shell other;
  const Outcome stop = other.mtl({"stop", "--now", "--no-wait", "p" + std::to_string(pid)}, env);
  CAPTURE(stop.err);
  CHECK(stop.code == 0);
  const Outcome killed = shell.finish(pid);
  CAPTURE(killed.err);
  CHECK(killed.code == 143);
  CHECK(has(killed.err, "killed before its first checkpoint; the same command begins anew"));
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["state"] == "stopped");
}

TEST_CASE("TERM within an evaluation leaves it, and the same command does it") {
  Shell shell;
  write_recipe(shell, 7);
  // More than any machine evaluates before a signal comes.
  std::string text;
  for (int i = 0; i < 400'000; ++i) text += "lazy dogs jump " + std::to_string(i % 7) + "\n";
  shell.write("valid.txt", text);
  const auto command = [](const std::string& dir, const std::string& batches) {
    return std::vector<std::string>{"launch",
                                    "--num_processes",
                                    "2",
                                    "train.yaml",
                                    "data.valid=valid.txt",
                                    "log.every=1",
                                    "parallel.tp=2",
                                    "run.dir=" + dir,
                                    "train.eval.every=5",
                                    "train.eval.iters=" + batches};
  };
  std::vector<std::string> endless = command("runs", "0");
  endless.insert(endless.begin(), MTL_PROGRAM);
  const pid_t pid = shell.start(endless);
  wait_for_text(shell, "step=5 ");
  kill(pid, SIGTERM);
  const Outcome stopped = shell.finish(pid);
  CAPTURE(stopped.err);
  REQUIRE(stopped.code == 75);
  CHECK(has(stopped.err, "[eval.left] evaluation after step 5 left behind "));
  CHECK(has(stopped.err, "stopped on request after step 5"));
  CHECK(has(stopped.err, "the same command goes on"));
  CHECK_FALSE(has(file_text(run_of(shell) / "metrics.jsonl"), "valid_loss"));
  CHECK(status_of(run_of(shell))["checkpoint_step"] == 5);
  // The rest of it, and with fewer batches, as if nobody had asked.
  const Outcome more = shell.mtl(command("runs", "2"));
  CAPTURE(more.err);
  REQUIRE(more.code == 0);
  REQUIRE(shell.mtl(command("whole", "2")).code == 0);
  const auto valid_losses = [&](const std::string& dir) {
    std::vector<std::string> losses;
    for (const auto& entry : fs::directory_iterator(shell.dir() / dir / "tiny")) {
      if (!entry.is_directory() || entry.is_symlink()) continue;
      for (const json& line : metrics_of(entry.path())) {
        if (line.contains("valid_loss")) losses.push_back(line["valid_loss"].dump());
      }
    }
    return losses;
  };
  CHECK(valid_losses("whole").size() == 2);
  CHECK(valid_losses("runs") == valid_losses("whole"));
  CHECK(losses_below(shell.dir() / "runs/tiny") == losses_below(shell.dir() / "whole/tiny"));
}

namespace {

// The age that the launcher gave the job's ranks of this start; -1: there are none.
int age_of_job(const Shell& shell, const std::string& start) {
  const std::string text = "TORCHELASTIC_RESTART_COUNT=" + start;
  const pid_t worker = worker_with(shell, text + std::string("\0", 1));
  const std::string environment = file_text("/proc/" + std::to_string(worker) + "/environ");
  const std::string name = "MTL_JOB_AGE_S=";
  const size_t at = environment.find(name);
  return at == std::string::npos ? -1 : std::atoi(environment.c_str() + at + name.size());
}

}  // namespace

TEST_CASE("health.max_time counts from the begin of the job, also if its ranks start again") {
  Shell shell;
  write_recipe(shell, 1'000'000);
  const pid_t pid = shell.start(
      {MTL_PROGRAM, "launch", "--max_restarts", "1", "train.yaml", "health.max_time=1h"});
  wait_for_text(shell, "step=5 ");
  const int first = age_of_job(shell, "0");
  CHECK(first >= 1);
  sleep(1);
  const pid_t victim = worker_with(shell, std::string("\0RANK=0\0", 8));
  REQUIRE(victim > 0);
  kill(victim, SIGKILL);
  wait_for_text(shell, "restart 1 of 1");
  const auto goes_on = [&] {
    const std::string text = file_text(shell.dir() / "stderr.txt");
    const size_t again = text.find("restart 1 of 1");
    return again != std::string::npos && has(text.substr(again), "step=");
  };
  CHECK(wait_until(goes_on));
  CHECK(age_of_job(shell, "1") > first);
  kill(pid, SIGTERM);
  CHECK(shell.finish(pid).code == 75);
  // So ranks of a job that is as old as that do one more step.
  const json before = json::parse(file_text(run_of(shell) / "status.json"));
  const Outcome old = shell.mtl({"worker", run_of(shell).string()}, {{"MTL_JOB_AGE_S", "3600"}});
  CAPTURE(old.err);
  CHECK(old.code == 75);
  const json after = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(after["step"].get<int>() == before["step"].get<int>() + 1);
}

TEST_CASE("health.max_time stops a run as a request would, and not before") {
  Shell shell;
  write_recipe(shell, 3);
  CHECK(shell.mtl({"launch", "train.yaml", "health.max_time=1h", "run.name=short"}).code == 0);
  write_recipe(shell, 1'000'000);
  const Outcome stopped =
      shell.mtl({"launch", "--num_processes", "2", "train.yaml", "health.max_time=1s"});
  CAPTURE(stopped.err);
  REQUIRE(stopped.code == 75);
  CHECK(has(stopped.err, "stopped by health.max_time after step "));
  CHECK(has(stopped.err, "the same command goes on"));
  const json status = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(status["state"] == "stopped");
  CHECK(status["step"] >= 1);
}

TEST_CASE("a rank that is killed is the headline, and the run is recorded as failed") {
  Shell shell;
  write_recipe(shell, 1'000'000);
  const pid_t pid =
      shell.start({MTL_PROGRAM, "launch", "--num_processes", "2", "--grace", "2", "train.yaml"});
  wait_for_text(shell, "step=5 ");
  const pid_t victim = worker_with(shell, std::string("\0RANK=1\0", 8));
  REQUIRE(victim > 0);
  // The token is in no environment and on no command line.
  const std::string environment = file_text("/proc/" + std::to_string(victim) + "/environ");
  CHECK(has(environment, "MTL_TOKEN_FD="));
  CHECK_FALSE(has(environment, "MTL_TOKEN="));
  CHECK(file_text("/proc/" + std::to_string(victim) + "/cmdline").size() < 300);
  kill(victim, SIGKILL);
  const Outcome outcome = shell.finish(pid);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 137);
  CHECK(has(outcome.err, "rank 1"));
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["state"] == "failed");
  CHECK(has(file_text(run_of(shell) / "report.html"), "Failed with exit code 137."));
}

TEST_CASE("a run that was killed with its launcher is lost, and goes on from its checkpoint") {
  Shell shell;
  const std::string state = (shell.dir() / "state").string();
  write_recipe(shell, 1'000'000);
  const pid_t pid = shell.start({MTL_PROGRAM, "launch", "train.yaml"}, {{"XDG_STATE_HOME", state}});
  wait_for_text(shell, "checkpoint=");
  const auto said = [&] {
    Outcome report = shell.mtl({"report", "runs/tiny", "--json"});
    CHECK_MESSAGE(report.code == 0, report.err);
    return json::parse(report.out)["runs"][0]["state"].get<std::string>();
  };
  CHECK(said() == "running");
  kill(pid, SIGKILL);
  shell.finish(pid);
  CHECK(wait_until([&] { return worker_with(shell, "MTL_RUN_FENCE=") == 0; }));
  CHECK(said() == "lost");
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["state"] == "running");
  CHECK(shell.mtl({"report", "runs/tiny"}).code == 0);
  CHECK(has(file_text(run_of(shell) / "report.html"), "No longer running since about "));
  const Outcome jobs = shell.mtl({"ps", "--all"}, {{"XDG_STATE_HOME", state}});
  CHECK(has(jobs.out, "LOST"));
  const Outcome more = shell.mtl({"launch", "train.yaml", "health.max_time=1s"});
  CHECK(more.code == 75);
  CHECK(said() == "stopped");
}

TEST_CASE("a launch that ends before any rank has failed, and not been lost") {
  Shell shell;
  write_recipe(shell, 5);
  const std::map<std::string, std::string> state = {
      {"XDG_STATE_HOME", (shell.dir() / "state").string()}};
  const Outcome outcome = shell.mtl(
      {"launch", "--cpu", "--hosts", "x1,x2", "--ssh_config", "nofile", "train.yaml"}, state);
  CAPTURE(outcome.err);
  CHECK(has(outcome.err, "error[ssh.config]"));
  const json status = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(status["state"] == "failed");
  CHECK(status["reason"] == "the ssh configuration cannot be read");
  CHECK(has(file_text(run_of(shell) / "logs/launcher.log"), "error[ssh.config]"));
  const std::string jobs = shell.mtl({"ps", "--all"}, state).out;
  CHECK(has(jobs, "FAILED"));
  CHECK_FALSE(has(jobs, "LOST"));
}

TEST_CASE("a run is found from any folder by what mtl ps calls it") {
  Shell shell, elsewhere;
  write_recipe(shell, 5);
  const std::map<std::string, std::string> state = {
      {"XDG_STATE_HOME", (shell.dir() / "state").string()}};
  REQUIRE(shell.mtl({"launch", "train.yaml"}, state).code == 0);
  const std::string run = run_of(shell).string();
  const json jobs = json::parse(elsewhere.mtl({"ps", "--all", "--json"}, state).out)["jobs"];
  REQUIRE(jobs.size() == 1);
  for (const std::string& name : {std::string("tiny"), jobs[0]["id"].get<std::string>()}) {
    CAPTURE(name);
    CHECK(has(elsewhere.mtl({"report", name}, state).out, run + "/report.html"));
    CHECK(json::parse(elsewhere.mtl({"ckpt", "ls", "--json", name}, state).out)["run"] == run);
    CHECK(elsewhere.mtl({"ckpt", "verify", name}, state).code == 0);
    CHECK(elsewhere.mtl({"generate", "--tokens", "4", name, "the"}, state).code == 0);
  }
  CHECK(has(elsewhere.mtl({"report", "tinny"}, state).err, "error[run.missing]"));
  // What deletes wants to be told where.
  CHECK(elsewhere.mtl({"ckpt", "prune", "--keep_last", "1", "tiny"}, state).code == 6);
}
