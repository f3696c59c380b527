// The real program with the real trainer: plan, launch, resume, stop, generate.
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"

using mtl::test::file_text;
using mtl::test::Outcome;
using mtl::test::Shell;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A model of a few thousand parameters on a text that repeats itself.
void write_recipe(const Shell& shell, int steps) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "the quick brown fox jumps over the lazy dog " + std::to_string(i % 7) + "\n";
  shell.write("corpus.txt", text);
  shell.write("train.yaml",
              "run:\n  name: tiny\n"
              "model:\n  layers: 2\n  hidden: 32\n  heads: 4\n"
              "train:\n  micro_batch: 2\n  global_batch: 4\n  seq_len: 16\n  steps: " +
                  std::to_string(steps) +
                  "\n  eval:\n    iters: 2\n"
                  "data:\n  train: corpus.txt\n  tokenizer:\n    type: chars\n"
                  "checkpoint:\n  every: 5\nlog:\n  every: 5\n");
}

// The one run of that name.
fs::path run_of(const Shell& shell) {
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(shell.dir() / "runs/tiny")) {
    if (entry.is_directory() && !entry.is_symlink()) runs.push_back(entry.path());
  }
  REQUIRE(runs.size() == 1);
  return runs[0];
}

std::vector<json> metrics_of(const fs::path& run) {
  std::vector<json> lines;
  std::istringstream in(file_text(run / "metrics.jsonl"));
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("plan says what a run needs and starts nothing") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome text = shell.mtl({"plan", "--num_processes", "4", "train.yaml", "parallel.tp=2"});
  CAPTURE(text.err);
  CHECK(text.code == 0);
  CHECK(has(text.out, "4 ranks = 2 data x 2 tensor"));
  CHECK(has(text.out, "[0 1] [2 3]"));
  CHECK(has(text.out, "memory per rank"));
  CHECK(has(text.out, "stage 0"));
  const Outcome data = shell.mtl({"plan", "--json", "train.yaml"});
  CHECK(data.code == 0);
  CHECK(json::parse(data.out)["schema"] == "mtl.plan/1");
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
}

TEST_CASE("all configuration errors at once, exit code 3, and nothing is started") {
  Shell shell;
  write_recipe(shell, 10);
  shell.write("bad.yaml", file_text(shell.dir() / "train.yaml") + "trian:\n  steps: 3\n");
  shell.write("launch.yaml", "num_proceses: 4\n");
  const Outcome outcome =
      shell.mtl({"launch", "--config_file", "launch.yaml", "bad.yaml", "lr.max=x"});
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "num_proceses"));
  CHECK(has(outcome.err, "trian"));
  CHECK(has(outcome.err, "lr.max"));
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
  CHECK(shell.mtl({"launch", "missing.yaml"}).code == 3);
  CHECK(shell.mtl({"launch", "train.yaml", "data.train=missing.txt"}).code == 6);
}

TEST_CASE("what the machine has no memory for is refused before it starts") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome outcome =
      shell.mtl({"launch", "train.yaml", "model.hidden=32768", "model.layers=200"});
  CHECK(outcome.code == 5);
  CHECK(has(outcome.err, "error[memory.host]"));
  CHECK(has(outcome.err, "optimizer"));
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
  // Planning for a larger machine is still possible.
  CHECK(shell.mtl({"plan", "train.yaml", "model.hidden=32768", "model.layers=200"}).code == 0);
}

TEST_CASE("--dry-run shows the plan and the origin of each value, and starts nothing") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome outcome =
      shell.mtl({"launch", "--dry-run", "train.yaml", "lr.max=0.01"}, {{"MTL_TRAIN__SEED", "7"}});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "memory per rank"));
  CHECK(has(outcome.out, "seed: 7"));
  // A misspelt variable is said; it may also be meant for another program.
  const Outcome misspelt =
      shell.mtl({"launch", "--dry-run", "train.yaml"}, {{"MTL_TRAIN__STEPZ", "7"}});
  CHECK(misspelt.code == 0);
  CHECK(has(misspelt.err, "MTL_TRAIN__STEPZ"));
  CHECK(has(outcome.out, "0.01"));
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
}

TEST_CASE("a run trains, reports, is complete, and goes on with more steps") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome first = shell.mtl({"launch", "--num_processes", "2", "train.yaml"});
  CAPTURE(first.err);
  REQUIRE(first.code == 0);
  CHECK(first.out.empty());
  CHECK_FALSE(has(first.err, "\r"));
  CHECK_FALSE(has(first.err, "\033"));
  CHECK(has(first.err, "Z step=1 loss="));
  CHECK(has(first.err, "Z step=10 loss="));
  const fs::path run = run_of(shell);
  const auto lines = metrics_of(run);
  REQUIRE(lines.size() >= 4);
  CHECK(lines[0]["step"] == 1);
  CHECK(lines[0]["loss"].get<double>() > lines[lines.size() - 2]["loss"].get<double>());
  CHECK(lines.back()["valid_loss"].is_number());
  CHECK(json::parse(file_text(run / "status.json"))["state"] == "done");
  CHECK(fs::exists(run / "logs/rank-00001.log"));

  const Outcome again = shell.mtl({"launch", "--num_processes", "2", "train.yaml"});
  CHECK(again.code == 0);
  CHECK(has(again.err, "is complete"));
  CHECK(has(again.err, "--fresh"));
  CHECK(metrics_of(run).size() == lines.size());

  const Outcome more = shell.mtl(
      {"launch", "--num_processes", "2", "train.yaml", "train.steps=15", "lr.schedule=constant"});
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(has(file_text(run / "events.jsonl"), "\"resumed\""));
  int at_15 = 0;
  for (const json& line : metrics_of(run_of(shell))) {
    at_15 += line["step"] == 15 && line.contains("loss") ? 1 : 0;
  }
  CHECK(at_15 == 1);

  const Outcome words = shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "});
  CAPTURE(words.err);
  CHECK(words.code == 0);
  CHECK(words.out.size() >= 20);
  // A prompt longer than the context (16) is cut at its beginning.
  const Outcome tail =
      shell.mtl({"generate", "runs/tiny", std::string(100, 'e') + " the", "--tokens", "40"});
  CHECK(tail.code == 0);
  CHECK(tail.out.size() >= 40);
  CHECK(shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "}).out == words.out);
}

TEST_CASE("TERM stops with a complete checkpoint and code 75, and the same command goes on") {
  Shell shell;
  write_recipe(shell, 100000);
  const pid_t pid = shell.start({MTL_PROGRAM, "launch", "--num_processes", "2", "train.yaml"});
  for (int i = 0; i < 600 && !has(file_text(shell.dir() / "stderr.txt"), "step=5 "); ++i) {
    usleep(100'000);
  }
  // Meanwhile the run is nobody else's.
  kill(pid, SIGUSR1);  // writes a checkpoint, so that there is something to resume
  for (int i = 0; i < 600 && !has(file_text(shell.dir() / "stderr.txt"), "checkpoint="); ++i) {
    usleep(100'000);
  }
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

TEST_CASE("a rank that is killed is the headline, and the run is recorded as failed") {
  Shell shell;
  write_recipe(shell, 100000);
  const pid_t pid =
      shell.start({MTL_PROGRAM, "launch", "--num_processes", "2", "--grace", "2", "train.yaml"});
  for (int i = 0; i < 600 && !has(file_text(shell.dir() / "stderr.txt"), "step=5 "); ++i) {
    usleep(100'000);
  }
  // The worker of rank 1 is found by its environment.
  pid_t victim = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string environment = file_text(entry.path() / "environ");
    if (has(environment, std::string("HF_HOME=") + (shell.dir() / "hf").string()) &&
        has(environment, std::string("\0RANK=1\0", 8))) {
      victim = std::stoi(entry.path().filename().string());
    }
  }
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
}
