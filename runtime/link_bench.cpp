#include "runtime/link_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "runtime/comm/communicator.h"
#include "runtime/device/make_device.h"
#include "runtime/worker_environment.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSizes[] = {4, 64 << 10, 1 << 20, 8 << 20, 64 << 20};  // bytes
constexpr int kRounds = 5;
constexpr double kRound = 0.02;  // seconds that a round is to take

class LinkBench {
 public:
  LinkBench(Device& device, CommWorld& world) : device_(device) {
    std::vector<int> everybody(static_cast<size_t>(world.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    group_ = world.group(everybody);
    const auto largest = static_cast<size_t>(kSizes[std::size(kSizes) - 1]);
    memory_ = world.allocate(largest);
    worst_ = world.allocate(sizeof(double));
  }

  std::vector<LinkTiming> run() {
    std::vector<LinkTiming> timings;
    for (const int64_t bytes : kSizes) timings.push_back({bytes, fastest(bytes)});
    return timings;
  }

 private:
  double fastest(int64_t bytes) {
    const Tensor x(memory_, DType::f32, {bytes / 4});
    once(x);  // connections are made by the first
    const double first = slowest_of_all(timed(x, 1));
    const int times = static_cast<int>(std::clamp(kRound / first, 1.0, 200.0));
    double best = INFINITY;
    for (int round = 0; round < kRounds; ++round) {
      group_->barrier();
      best = std::min(best, timed(x, times));
    }
    return slowest_of_all(best);
  }

  double timed(const Tensor& x, int times) {
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) once(x, i + 1 == times);
    return std::chrono::duration<double>(Clock::now() - begin).count() / times;
  }

  void once(const Tensor& x, bool wait = true) {
    group_->all_reduce(x);
    if (wait) device_.synchronize();
  }

  double slowest_of_all(double seconds) {
    const Tensor x(worst_, DType::f64, {1});
    device_.copy_from_host(x, &seconds);
    group_->all_reduce(x, Reduce::max);
    device_.copy_to_host(&seconds, x);
    return seconds;
  }

  Device& device_;
  std::unique_ptr<Communicator> group_;
  void* memory_ = nullptr;
  void* worst_ = nullptr;
};

}  // namespace

double bus_factor(int ranks) {
  return 2.0 * (ranks - 1) / ranks;
}

void check_bench_ranks(int ranks) {
  if (ranks > 1) return;
  throw Error(Exit::usage, {.code = "topo.bench",
                            .what = "one rank has nobody to exchange anything with",
                            .help = "say how many: mtl topo --bench --num_processes 2"});
}

Exit run_link_bench() {
  const WorkerEnvironment own = read_worker_environment();
  check_bench_ranks(own.world);
  MadeDevice made = make_device({.local_rank = own.local_rank, .world = own.world});
  const std::string token = read_token(own.token_fd);
  const std::unique_ptr<Store> store = join_store(own, token, std::chrono::seconds(30));
  const WorldOptions options = world_options(own, token);
  const std::unique_ptr<CommWorld> world =
      made.cuda != nullptr ? made.cuda->make_nccl_world(*store, options, *made.device, "")
                           : make_cpu_world(*store, options);
  const std::vector<LinkTiming> timings = LinkBench(*made.device, *world).run();
  if (own.rank != 0 || own.progress_fd < 0) return Exit::done;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const LinkTiming& timing : timings) {
    list.push_back({{"bytes", timing.bytes}, {"seconds", timing.seconds}});
  }
  const std::string line =
      nlohmann::ordered_json{
          {"ranks", own.world}, {"device", made.description()}, {"timings", list}}
          .dump() +
      '\n';
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t written = write(own.progress_fd, line.data() + sent, line.size() - sent);
    if (written <= 0) break;
    sent += static_cast<size_t>(written);
  }
  return Exit::done;
}

}  // namespace mtl
