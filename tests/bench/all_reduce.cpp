// all_reduce of f32 on one machine, ours over TCP and in shared memory beside gloo and OpenMPI.
//   build/bench/all_reduce [ranks=2] [rounds=7]
// In every round each contestant runs once, as fresh processes, all sizes (peers/rounds.h); so a
// slow second hits all alike. Lines are medians over the rounds, in microseconds. gloo and OpenMPI
// are built and run where they are installed. The calibration lines are what this machine gives at
// the same time: its speed swings with its neighbours.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/wait.h>

#include <fmt/format.h>

#include "common/error.h"
#include "median.h"
#include "peers/rounds.h"
#include "rendezvous/store.h"
#include "runtime/comm/shm/shm_world.h"
#include "runtime/comm/tcp/tcp_world.h"
#include "runtime/device/device.h"
#include "runtime/engine/calibrate.h"

namespace {

using namespace mtl;
namespace fs = std::filesystem;
using Command = std::vector<std::string>;

constexpr const char* kToken = "a token for the loopback";

// One rank of ours: all_reduce rank TRANSPORT RANK SIZE PORT.
int be_rank(char** argv) {
  const std::string transport = argv[2];
  const int rank = std::atoi(argv[3]), size = std::atoi(argv[4]);
  const auto store = connect_store(
      {.address = "127.0.0.1", .port = static_cast<uint16_t>(std::atoi(argv[5])), .token = kToken});
  std::unique_ptr<CommWorld> world;
  if (transport == "tcp") {
    world = make_tcp_world(*store, {.rank = rank,
                                    .size = size,
                                    .token = kToken,
                                    .timeout = std::chrono::minutes(2),
                                    .spins = ::sysconf(_SC_NPROCESSORS_ONLN) >= size});
  } else {
    world =
        make_shm_world(*store, {.rank = rank, .size = size, .timeout = std::chrono::minutes(2)});
  }
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(i);
  const auto group = world->group(ranks);
  const int64_t largest = bench::kSizes[std::size(bench::kSizes) - 1].bytes;
  float* const arena = static_cast<float*>(world->allocate(static_cast<size_t>(largest)));
  const bool resident = transport == "shm, resident";
  bench::run_round(rank, [&](float* data, int64_t numel) {
    group->all_reduce(Tensor(resident ? arena : data, DType::f32, {numel}));
  });
  return 0;
}

// Runs the commands at once; the standard output of the first.
std::string output_of(const std::vector<Command>& commands) {
  std::array<int, 2> pipe;
  if (::pipe(pipe.data()) != 0) return "";
  std::vector<pid_t> children;
  for (const Command& command : commands) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (children.empty()) ::dup2(pipe[1], 1);
      ::close(pipe[0]);
      ::close(pipe[1]);
      std::vector<char*> arguments;
      for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
      arguments.push_back(nullptr);
      ::execvp(arguments[0], arguments.data());
      ::_exit(127);
    }
    children.push_back(pid);
  }
  ::close(pipe[1]);
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t n = 0; (n = ::read(pipe[0], part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<size_t>(n));
  }
  ::close(pipe[0]);
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good ? text : "";
}

struct Contestant {
  std::string name;
  std::vector<Command> (*commands)(const Contestant&, int size, int round);
  std::string kind;
  std::map<int64_t, std::vector<double>> times = {};  // by bytes, microseconds
};

fs::path own_path;
uint16_t store_port = 0;

std::vector<Command> our_ranks(const Contestant& who, int size, int) {
  std::vector<Command> commands;
  for (int rank = 0; rank < size; ++rank) {
    commands.push_back({own_path, "rank", who.kind, std::to_string(rank), std::to_string(size),
                        std::to_string(store_port)});
  }
  return commands;
}

std::vector<Command> gloo_ranks(const Contestant& who, int size, int round) {
  const fs::path folder = fs::temp_directory_path() /
                          fmt::format("mtl-bench-gloo-{}-{}-{}", ::getpid(), who.kind, round);
  fs::create_directories(folder);
  std::vector<Command> commands;
  for (int rank = 0; rank < size; ++rank) {
    commands.push_back({own_path.parent_path() / "peer_gloo", std::to_string(rank),
                        std::to_string(size), folder, who.kind});
  }
  return commands;
}

std::vector<Command> mpi_ranks(const Contestant& who, int size, int) {
  Command command = {"mpirun", "--oversubscribe", "-np", std::to_string(size)};
  if (::geteuid() == 0) command.push_back("--allow-run-as-root");
  if (who.kind == "tcp") {
    for (const char* word : {"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}) {
      command.push_back(word);
    }
  }
  command.push_back(own_path.parent_path() / "peer_mpi");
  return {command};
}

double copy_rate() {
  std::vector<char> from(64 << 20, 1), to(64 << 20, 2);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), from.size());
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(from.size()) / time.count() / 1e9);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 6 && std::string(argv[1]) == "rank") return be_rank(argv);
  const int size = argc > 1 ? std::max(2, std::atoi(argv[1])) : 2;
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 7;
  own_path = fs::read_symlink("/proc/self/exe");
  std::vector<Contestant> contestants = {{"mtl, tcp", our_ranks, "tcp"},
                                         {"gloo, tcp, ring", gloo_ranks, "ring"},
                                         {"gloo, tcp, halving-doubling", gloo_ranks, "hd"},
                                         {"OpenMPI, tcp", mpi_ranks, "tcp"},
                                         {"mtl, shm, any memory", our_ranks, "shm"},
                                         {"mtl, shm, resident", our_ranks, "shm, resident"},
                                         {"OpenMPI, as it comes", mpi_ranks, "default"}};
  std::vector<double> copies, matmuls;
  const auto device = make_cpu_device(1);
  for (int round = 0; round < rounds; ++round) {
    copies.push_back(copy_rate());
    matmuls.push_back(measured_matmul_rate(*device, DType::f32, 0.02) / 1e9);
    for (Contestant& who : contestants) {
      const auto server = serve_store({.token = kToken});
      store_port = server->port();
      const std::vector<Command> commands = who.commands(who, size, round);
      const std::string program = commands.front().back().find("peer_") != std::string::npos
                                      ? commands.front().back()
                                      : commands.front().front();
      if (!fs::exists(program)) continue;
      const std::string text = output_of(commands);
      long long bytes = 0;
      double seconds = 0;
      int length = 0;
      for (const char* at = text.c_str();
           std::sscanf(at, "%lld %lf%n", &bytes, &seconds, &length) == 2; at += length) {
        who.times[bytes].push_back(seconds * 1e6);
      }
    }
  }
  fmt::print("all_reduce, f32, {} ranks, median of {} rounds, microseconds\n", size, rounds);
  fmt::print("calibration, one thread: memcpy {:.1f} GB/s, f32 matmul {:.0f} GFLOP/s\n{:<30}",
             median_of(copies), median_of(matmuls), "");
  for (const bench::Size& column : bench::kSizes) fmt::print(" {:>9} KiB", column.bytes >> 10);
  fmt::print("\n");
  for (const Contestant& who : contestants) {
    fmt::print("  {:<28}", who.name);
    if (who.times.empty()) fmt::print(" not installed");
    for (const auto& [bytes, times] : who.times) fmt::print(" {:>13.1f}", median_of(times));
    fmt::print("\n");
  }
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s", error.what());
  return 1;
}
