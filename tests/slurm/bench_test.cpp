// Not a test: how long a job of four nodes takes from its command line to the first step. Run by
//   build/tests/test_slurm -ns -tc="bench: first step on four nodes"
#include <algorithm>
#include <cstdio>

#include <doctest/doctest.h>

#include "slurm/slurm_run.h"

using namespace mtl::test;
using std::chrono::seconds;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 9;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string words(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  char text[80];
  std::snprintf(text, sizeof text, "%.3f s (%.3f-%.3f)", times[times.size() / 2], times.front(),
                times.back());
  return text;
}

double middle(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

TEST_CASE("bench: first step on four nodes" * doctest::skip()) {
  const Slurm slurm(4);
  write_recipe(slurm, 1);
  // A shell of salloc that lends us its environment.
  Command shell = slurm.start({"salloc", "-Q", "-N4", "sh", "-c", "env -0 >env.txt; sleep 600"});
  for (int i = 0; i < 500 && file_text(slurm.work() / "env.txt").empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::map<std::string, std::string> job;
  std::istringstream entries(file_text(slurm.work() / "env.txt"));
  for (std::string entry; std::getline(entries, entry, '\0');) {
    if (entry.starts_with("SLURM_")) {
      job[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
    }
  }
  REQUIRE(job.count("SLURM_JOB_ID") == 1);
  const auto ended = [&](const std::vector<std::string>& argv,
                         const std::map<std::string, std::string>& env) {
    const auto start = Clock::now();
    REQUIRE(slurm.run(argv, env).code == 0);
    return since(start);
  };
  // Until the line of the first step is on the console: all ranks have taken part in it.
  int runs = 0;
  const auto stepped = [&](std::vector<std::string> argv,
                           const std::map<std::string, std::string>& env) {
    argv.push_back("run.name=bench" + std::to_string(++runs));
    const auto start = Clock::now();
    Command command = slurm.start(argv, env);
    const bool said = command.says("step=1 loss", seconds(60));
    const double time = since(start);
    REQUIRE_MESSAGE(said, command.err());
    REQUIRE(command.wait(seconds(60)).code == 0);
    return time;
  };
  std::vector<double> bare, here, all, over;
  for (int round = -1; round < kRounds; ++round) {
    const double srun = ended({"srun", "-N4", "-n4", "true"}, job);
    const double local = stepped({kMtl, "launch", "--num_processes", "8", "train.yaml"}, {});
    const double nodes = stepped({kMtl, "launch", "--nproc_per_node", "2", "train.yaml"}, job);
    if (round < 0) continue;  // disks are cold
    bare.push_back(srun);
    here.push_back(local);
    all.push_back(nodes);
    over.push_back(nodes - srun);
  }
  std::printf("srun -N4 true                            %s\n", words(bare).c_str());
  std::printf("mtl launch, 8 ranks here, to step 1      %s\n", words(here).c_str());
  std::printf("mtl launch, 4 nodes x 2, to step 1       %s\n", words(all).c_str());
  std::printf("  more than srun true                    %s\n", words(over).c_str());
  std::printf("  more than srun true and the ranks here %.3f s\n",
              middle(all) - middle(bare) - middle(here));
  shell.signal(15);
}
