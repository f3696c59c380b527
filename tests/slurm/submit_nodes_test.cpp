// mtl submit of runs on several nodes: from typing to the last step, with the losses of a local
// run.
#include <fstream>
#include <map>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "slurm/submit_run.h"
#include "support/text.h"

using namespace mtl::test;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

// The one run of a name; empty if there is none.
fs::path run_of(const Slurm& slurm, const std::string& name) {
  fs::path found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(slurm.work() / "runs" / name, none)) {
    if (!fs::exists(entry.path() / "resolved.yaml")) continue;
    CHECK(found.empty());
    found = entry.path();
  }
  return found;
}

std::map<int, double> losses(const fs::path& run) {
  std::map<int, double> all;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const json record = json::parse(line);
    if (record.contains("loss")) all[record["step"].get<int>()] = record["loss"].get<double>();
  }
  return all;
}

std::string log_of(const Slurm& slurm, const std::string& id) {
  const CommandEnd end = slurm.run({MTL_PROGRAM, "logs", id});
  return end.out + end.err;
}

}  // namespace

TEST_CASE("a run submitted to four nodes has the losses of a local one") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(4);
  write_tiny(slurm, 6);
  const CommandEnd local = slurm.run(
      {MTL_PROGRAM, "launch", "--cpu", "--num_processes", "8", "train.yaml", "run.name=local"});
  CAPTURE(local.err);
  REQUIRE(local.code == 0);
  const std::string id =
      submitted(slurm, {"--num_machines", "4", "--nproc_per_node", "2", "train.yaml"});
  const bool done = slurm.reaches(id, {"COMPLETED", "FAILED", "CANCELLED"});
  const std::string log = log_of(slurm, id);
  CAPTURE(log);
  REQUIRE(done);
  CHECK(slurm.state(id) == "COMPLETED");
  CHECK(losses(run_of(slurm, "local")).size() == 6);
  CHECK(losses(run_of(slurm, "tiny")) == losses(run_of(slurm, "local")));
  CHECK(slurm.processes().empty());
}

TEST_CASE("a submitted run whose time is over goes on where it was") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(2);
  write_tiny(slurm, 1'000'000);
  // --fresh is meant once: the job that goes on is no fresh one.
  const std::string id =
      submitted(slurm, {"--num_machines", "2", "--nproc_per_node", "1", "--fresh", "train.yaml"});
  const auto trains = [&] {
    const size_t before = losses(run_of(slurm, "tiny")).size();
    for (int i = 0; i < 600 && losses(run_of(slurm, "tiny")).size() < before + 5; ++i) {
      usleep(50'000);
    }
  };
  for (int round = 1; round <= 2; ++round) {
    REQUIRE(slurm.reaches(id, {"RUNNING"}));
    trains();
    slurm.ask({"scancel", "--batch", "--signal=USR2", id});
    const bool queued = slurm.reaches(id, {"PENDING"});
    const std::string log = log_of(slurm, id);
    CAPTURE(log);
    REQUIRE(queued);
    CHECK(slurm.start_again(id));
  }
  const bool again = slurm.reaches(id, {"RUNNING"});
  const std::string log = log_of(slurm, id);
  const std::string state = slurm.state(id);
  CAPTURE(log);
  CAPTURE(state);
  REQUIRE(again);
  trains();
  const CommandEnd end = slurm.run({MTL_PROGRAM, "stop", id});
  CAPTURE(end.out);
  CHECK(end.code == 0);
  CHECK(slurm.exit_code(id) == "75:0");
  // One run directory, every step once and in its order.
  const std::map<int, double> all = losses(run_of(slurm, "tiny"));
  REQUIRE_FALSE(all.empty());
  CHECK(all.rbegin()->first == static_cast<int>(all.size()));
  CHECK(slurm.processes().empty());
}

TEST_CASE("watching goes on with the job that goes on") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(1);
  write_tiny(slurm, 400);
  Command watched = slurm.start(
      {MTL_PROGRAM, "submit", "--cpu", "--wait", "--chain", "dependency", "train.yaml"});
  CHECK(watched.says("step=5", std::chrono::seconds(180)));
  const int job = slurm.first_job();
  slurm.ask({"scancel", "--batch", "--signal=USR2", std::to_string(job)});
  const CommandEnd end = watched.wait(std::chrono::seconds(180));
  CAPTURE(end.out);
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK(has(end.err, fmt::format("job {} goes on as job {}", job, job + 1)));
  CHECK(losses(run_of(slurm, "tiny")).size() == 400);
}

TEST_CASE("tasks of an array are runs of their own") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(2);
  write_tiny(slurm, 3);
  const std::string id =
      submitted(slurm, {"--array", "1-3", "train.yaml", "run.name=sweep-%a", "train.seed=%a"});
  for (const char* task : {"1", "2", "3"}) {
    const std::string one = fmt::format("{}_{}", id, task);
    const bool done = slurm.reaches(one, {"COMPLETED", "FAILED"});
    const std::string log = log_of(slurm, one);
    CAPTURE(log);
    REQUIRE(done);
    CHECK(slurm.state(one) == "COMPLETED");
    CHECK(losses(run_of(slurm, fmt::format("sweep-{}", task))).size() == 3);
  }
  CHECK(losses(run_of(slurm, "sweep-1")) != losses(run_of(slurm, "sweep-2")));
}
