// The collectives of one host: 2 and 4 ranks, processes, beside the memory rate of the same run.
//   build/bench/collectives [repetitions=20]
// Every line is the median (and the best) over the repetitions; one repetition times rank 0 between
// two barriers. Rates are tensor bytes over time. The triad line (a = b + 3 c over 64 MB arrays,
// all ranks at once) is the yardstick: these machines' memory rate swings with their neighbours.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <sys/wait.h>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/shm/shm_world.h"

namespace {

using namespace mtl;
using Clock = std::chrono::steady_clock;

constexpr int64_t kLarge = 64'000'000;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void triad(float* a, const float* b, const float* c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = b[i] + 3 * c[i];
}

struct Case {
  const char* name;
  double bytes;  // moved per repetition and rank, for the rate; 0 = a latency
  int inner;     // operations per repetition
  std::function<void()> run;
};

void measure(CommWorld& world, int repetitions) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  const auto group = world.group(ranks);
  const int64_t numel = kLarge / 4;
  float* arena = static_cast<float*>(world.allocate(kLarge));
  std::vector<float> heap(numel), b(numel, 1), c(numel, 2);
  std::fill(arena, arena + numel, 1.0f);
  const Tensor resident(arena, DType::f32, {numel});
  const Tensor staged(heap.data(), DType::f32, {numel});
  const Tensor half(arena, DType::bf16, {numel});
  const Tensor tiny(arena, DType::f32, {1});
  Communicator& g = *group;
  const auto part = [&](const Tensor& x) {
    return x.slice(g.rank() * (x.numel() / g.size()), x.numel() / g.size());
  };
  const double large = static_cast<double>(kLarge);
  const std::vector<Case> cases = {
      {"triad", 3 * large, 1, [&] { triad(heap.data(), b.data(), c.data(), numel); }},
      {"all_reduce 64 MB, resident", large, 1, [&] { g.all_reduce(resident); }},
      {"all_reduce 64 MB, staged", large, 1, [&] { g.all_reduce(staged); }},
      {"all_reduce 32 MB bf16, resident", large / 2, 1, [&] { g.all_reduce(half); }},
      {"reduce_scatter 64 MB, resident", large, 1,
       [&] { g.reduce_scatter(resident, part(resident)); }},
      {"reduce_scatter 64 MB, staged", large, 1, [&] { g.reduce_scatter(staged, part(staged)); }},
      {"all_gather 64 MB, resident", large, 1, [&] { g.all_gather(part(resident), resident); }},
      {"all_gather 64 MB, staged", large, 1, [&] { g.all_gather(part(staged), staged); }},
      {"all_to_all 32 MB, resident", large / 2, 1,
       [&] { g.all_to_all(resident.slice(0, numel / 2), resident.slice(numel / 2, numel / 2)); }},
      {"all_to_all 32 MB, staged", large / 2, 1,
       [&] { g.all_to_all(staged.slice(0, numel / 2), staged.slice(numel / 2, numel / 2)); }},
      {"send/recv 64 MB in a ring", large, 1,
       [&] {
         g.send(staged, (g.rank() + 1) % g.size());
         g.recv(staged, (g.rank() + g.size() - 1) % g.size());
       }},
      {"all_reduce 4 B", 0, 1000, [&] { g.all_reduce(tiny); }},
      {"reduce_scatter + all_gather 4 B per rank", 0, 1000,
       [&] {
         const Tensor x(arena, DType::f32, {g.size()});
         g.reduce_scatter(x, part(x));
         g.all_gather(part(x), x);
       }},
      {"barrier", 0, 1000, [&] { g.barrier(); }},
  };
  std::vector<std::vector<double>> times(cases.size());
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    // Interleaved, so that a slow second hits all cases alike; the first round only warms up.
    for (size_t k = 0; k < cases.size(); ++k) {
      g.barrier();
      const Clock::time_point start = Clock::now();
      for (int i = 0; i < cases[k].inner; ++i) cases[k].run();
      g.barrier();
      if (repetition >= 0) times[k].push_back(microseconds_since(start) / cases[k].inner);
    }
  }
  if (world.rank() != 0) return;
  std::printf(
      "\n%d ranks, %u CPUs                            median us    best us   GB/s (median)\n",
      world.size(), std::thread::hardware_concurrency());
  for (size_t k = 0; k < cases.size(); ++k) {
    std::sort(times[k].begin(), times[k].end());
    const double median = times[k][times[k].size() / 2];
    std::printf("  %-42s %11.2f %10.2f", cases[k].name, median, times[k].front());
    if (cases[k].bytes > 0) std::printf(" %10.2f", cases[k].bytes / median / 1e3);
    std::printf("\n");
  }
  std::fflush(stdout);
}

// The children are forked first, so that the store's thread is not copied into them.
bool run(int size, int repetitions) {
  const std::string token = make_token();
  std::vector<pid_t> children;
  std::vector<int> writers;
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> pipe;
    if (::pipe(pipe.data()) != 0) return false;
    const pid_t pid = ::fork();
    if (pid == 0) {
      uint16_t port = 0;
      if (::read(pipe[0], &port, sizeof(port)) != sizeof(port)) ::_exit(1);
      try {
        const auto store = connect_store({.address = "127.0.0.1", .port = port, .token = token});
        const auto world = make_shm_world(
            *store, {.rank = rank, .size = size, .timeout = std::chrono::minutes(2)});
        measure(*world, repetitions);
      } catch (const Error& error) {
        std::fprintf(stderr, "%s", error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    ::close(pipe[0]);
    children.push_back(pid);
    writers.push_back(pipe[1]);
  }
  const auto server = serve_store({.token = token});
  const uint16_t port = server->port();
  bool good = true;
  for (const int writer : writers) good = ::write(writer, &port, sizeof(port)) > 0 && good;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  return run(2, repetitions) && run(4, repetitions) ? 0 : 1;
}
