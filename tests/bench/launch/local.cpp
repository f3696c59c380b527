// The rows of one machine.
#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <sys/wait.h>

#include "bench/launch/bench.h"

namespace mtl::bench {
namespace {

using namespace std::chrono_literals;
constexpr int kRanks = 8;

Measured time_of(const Setup& setup, const Words& argv, std::chrono::milliseconds limit = 60s) {
  Process process(argv, setup.dir / "out");
  const auto code = process.wait(limit);
  if (!code) return {-1, "still there after " + std::to_string(limit.count() / 1000) + " s"};
  return {process.seconds(), "code " + std::to_string(*code)};
}

// The same program under everybody. `options` are mtl's.
std::vector<Contender> everybody(const Setup& setup, const Words& options, const Words& program,
                                 int slow_runs, std::chrono::milliseconds limit = 60s) {
  const auto run = [&setup, limit](const Words& argv) {
    return [&setup, argv, limit] { return time_of(setup, argv, limit); };
  };
  return {
      {"mtl", run(setup.mtl_launch(kRanks, options, program))},
      {"mpirun", run(setup.mpirun(kRanks, program)), setup.has_mpirun ? "" : "not installed"},
      {"srun", run(setup.srun(kRanks, program)), setup.has_srun ? "" : "no cluster answers"},
      {"torchrun, polling each 0.1 s", run(setup.torchrun(kRanks, {}, program)),
       setup.has_torch ? "" : "not installed", slow_runs},
      {"accelerate launch", run(setup.accelerate(kRanks, program)),
       setup.venv.empty() ? "not installed" : "", slow_runs},
  };
}

// In a file, because torchrun replaces $$ and the like on its command line.
Words shell(const Setup& setup, const std::string& name, const std::string& script) {
  const std::filesystem::path file = setup.dir / (name + ".sh");
  std::ofstream(file) << script << "\n";
  return {"/bin/sh", file.string()};
}

// Rank 3, by whatever name the launcher gives it.
const std::string kRank3 = "[ \"${OMPI_COMM_WORLD_RANK:-${RANK:-$SLURM_PROCID}}\" = 3 ]";

Measured orphans(const Setup& setup, const Words& argv, const std::string& mark) {
  Process process(argv, setup.dir / "out");
  const auto until = Clock::now() + 30s;
  while (marked(mark).size() < kRanks && Clock::now() < until) std::this_thread::sleep_for(5ms);
  // The launchers carry the mark on their own command lines, so only sleeps are counted.
  kill(process.pid(), SIGKILL);
  process.wait(10s);
  const auto start = Clock::now();
  while (!marked(mark).empty() && Clock::now() - start < 2s) std::this_thread::sleep_for(2ms);
  const double gone = std::chrono::duration<double>(Clock::now() - start).count();
  const std::vector<pid_t> left = marked(mark);
  for (const pid_t pid : left) kill(pid, SIGKILL);
  return {left.empty() ? gone : -1, std::to_string(left.size()) + " orphans after 2 s"};
}

void calibration(const Setup& setup) {
  std::vector<double> floor, import;
  for (int i = 0; i < setup.runs; ++i) {
    const auto start = Clock::now();
    for (int rank = 0; rank < kRanks; ++rank) {
      if (fork() == 0) {
        execl("/bin/true", "true", nullptr);
        _exit(127);
      }
    }
    while (wait(nullptr) > 0) continue;
    floor.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(floor.begin(), floor.end());
  double torch = -1;
  if (setup.has_torch) {
    torch = time_of(setup, {"/usr/bin/python3", "-c", "import torch.distributed"}).seconds;
  }
  std::printf(
      "calibration: 8 x fork, exec and wait of true %.1f ms; one import of torch %.2f s; "
      "%ld cores\n\n",
      floor[floor.size() / 2] * 1e3, torch, sysconf(_SC_NPROCESSORS_ONLN));
}

void workers_row(const Setup& setup) {
  const std::filesystem::path recipe = setup.dir / "train.yaml";
  {
    std::ofstream text(setup.dir / "corpus.txt");
    for (int i = 0; i < 4000; ++i)
      text << "the quick brown fox jumps over the lazy dog " << i << "\n";
  }
  std::ofstream(recipe)
      << "run:\n  name: tiny\n  dir: " << (setup.dir / "runs").string()
      << "\nmodel:\n  layers: 2\n  hidden: 32\n  heads: 4\n"
         "train:\n  micro_batch: 1\n  global_batch: 8\n  seq_len: 16\n  steps: 1\n"
         "data:\n  train: "
      << (setup.dir / "corpus.txt").string() << "\n  tokenizer:\n    type: chars\n";
  const auto ours = [&](int ranks, const Words& more) {
    Words argv = {setup.mtl, "launch",       "--num_processes", std::to_string(ranks),
                  "--fresh", recipe.string()};
    argv.insert(argv.end(), more.begin(), more.end());
    return [&setup, argv] { return time_of(setup, argv); };
  };
  const std::string gloo = R"(import torch.distributed as dist
dist.init_process_group("gloo"); dist.barrier())";
  std::ofstream(setup.dir / "gloo.py") << gloo;
  const Words python = {"/usr/bin/python3", (setup.dir / "gloo.py").string()};
  const std::string no_torch = setup.has_torch ? "" : "not installed";
  row("8 workers: launch, join, barrier, exit", "<= 60 ms", setup.runs,
      {{"mtl test --until rendezvous",
        [&] {
          return time_of(setup,
                         {setup.mtl, "test", "--num_processes", "8", "--until", "rendezvous"});
        }},
       {"mtl, one step of a tiny model, checkpoint written", ours(8, {})},
       {"mtl, the same with one rank (what is not joining)", ours(1, {"train.global_batch=1"})},
       {"mtl, 8 gloo workers in Python",
        [&] { return time_of(setup, setup.mtl_launch(8, {}, python)); }, no_torch, 1},
       {"torchrun, 8 gloo workers in Python",
        [&] { return time_of(setup, setup.torchrun(8, {}, python)); }, no_torch, 1},
       {"floor of both: 8 x import torch.distributed at once",
        [&] {
          return time_of(setup, shell(setup, "imports",
                                      "for i in 1 2 3 4 5 6 7 8; do /usr/bin/python3 -c "
                                      "'import torch.distributed' & done; wait"));
        },
        no_torch, 1}});
}

}  // namespace

void local_rows(const Setup& setup) {
  calibration(setup);
  print_head();
  row("8 x true, start to exit", "<= 15 ms", setup.runs, everybody(setup, {}, {"/bin/true"}, 2));
  workers_row(setup);
  row("rank 3 exits 42, the others sleep", "<= 0.10 s, code 42", setup.runs,
      everybody(setup, {}, shell(setup, "code", kRank3 + " && exit 42; exec sleep 100"), 2));
  row("rank 3 dies of SIGSEGV", "<= 0.10 s, code 139", setup.runs,
      everybody(
          setup, {},
          shell(setup, "segv", kRank3 + " && { ulimit -c 0; kill -SEGV $$; }; exec sleep 100"), 2));
  row("rank 3 exits 1, the others ignore SIGTERM; mtl --grace 2", "<= 2.2 s", 1,
      everybody(setup, {"--grace", "2"},
                shell(setup, "deaf",
                      "trap '' TERM; " + kRank3 +
                          " && { sleep 0.1; exit 1; }; "
                          "n=0; while [ $n -lt 450 ]; do sleep 0.1; n=$((n+1)); done"),
                1));
  std::vector<Contender> killed = everybody(setup, {}, {"/bin/true"}, 1);
  for (Contender& contender : killed) {
    const std::string name = contender.name;
    contender.run = [&setup, name] {
      // Its length is a mark that is on no launcher's command line: a shell puts it together.
      const std::string mark = "3600." + std::to_string(getpid());
      const Words program = shell(setup, "sleep", "n=3600; exec sleep $n." + mark.substr(5));
      const Words argv = name == "mtl"      ? setup.mtl_launch(kRanks, {}, program)
                         : name == "mpirun" ? setup.mpirun(kRanks, program)
                         : name == "srun"   ? setup.srun(kRanks, program)
                         : name[0] == 't'   ? setup.torchrun(kRanks, {}, program)
                                            : setup.accelerate(kRanks, program);
      return orphans(setup, argv, mark);
    };
  }
  row("kill -9 of the launcher of 8 sleeps: until all are gone", "0 orphans", setup.runs, killed);
}

}  // namespace mtl::bench
