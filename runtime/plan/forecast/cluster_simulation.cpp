#include "runtime/plan/forecast/cluster_simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "runtime/plan/forecast/stage_params.h"

namespace mtl {

namespace {

// How much longer the ranks of each stage of a replica compute.
using Slowness = std::vector<double>;

// When the stages of a replica finish their passes, and how long they worked.
struct ReplicaRun {
  std::vector<double> done, busy;
  int64_t events = 0;
};

class Replica {
 public:
  Replica(const LayoutChoice& layout, const std::vector<Program>& programs,
          const std::vector<StageTimes>& times, double send, double beside, int micro_batches)
      : layout_(layout),
        programs_(programs),
        times_(times),
        send_(send),
        beside_(beside),
        m_(micro_batches) {}

  ReplicaRun run(const Slowness& slow) const {
    const auto stages = static_cast<size_t>(layout_.pp);
    ReplicaRun result;
    result.done.assign(stages, 0);
    result.busy.assign(stages, 0);
    std::vector<size_t> next(stages, 0);
    // When an activation or gradient reaches the virtual stage that waits for it; < 0: not sent.
    const size_t messages = stages * static_cast<size_t>(layout_.chunks) * static_cast<size_t>(m_);
    std::vector<double> act(messages, -1), grad(messages, -1);
    std::vector<size_t> ready;
    for (size_t stage = stages; stage-- > 0;) ready.push_back(stage);
    std::vector<bool> listed(stages, true);
    const auto wake = [&](size_t stage) {
      if (!listed[stage]) {
        listed[stage] = true;
        ready.push_back(stage);
      }
    };
    while (!ready.empty()) {
      const size_t stage = ready.back();
      ready.pop_back();
      listed[stage] = false;
      double& now = result.done[stage];
      const Program& program = programs_[stage];
      for (; next[stage] < program.size(); ++next[stage]) {
        const Instruction& in = program[next[stage]];
        const int here = in.chunk * layout_.pp + static_cast<int>(stage);
        const ChunkTimes* chunk = in.op == Op::reduce_grads || in.op == Op::step
                                      ? nullptr
                                      : &times_[stage].chunks[static_cast<size_t>(in.chunk)];
        double work = 0;
        if (in.op == Op::recv_act || in.op == Op::recv_grad) {
          const double arrives = (in.op == Op::recv_act ? act : grad)[index(here, in.micro_batch)];
          if (arrives < 0) break;  // whoever sends it wakes this stage
          now = std::max(now, arrives);
        } else if (in.op == Op::forward) {
          work = chunk->forward * slow[stage];
        } else if (in.op == Op::backward) {
          work =
              (chunk->backward - (layout_.weights_later ? chunk->weight_grads : 0)) * slow[stage];
        } else if (in.op == Op::weight_grads) {
          work = chunk->weight_grads * slow[stage];
        } else if (in.op == Op::send_act || in.op == Op::send_grad) {
          // Beside computation it takes some of the multiprocessors (Cluster::overlap_cost).
          work = layout_.overlap_send ? send_ * beside_ : send_;
          const int there = in.op == Op::send_act ? here + 1 : here - 1;
          (in.op == Op::send_act ? act : grad)[index(there, in.micro_batch)] = now + send_;
          wake(static_cast<size_t>(there % layout_.pp));
        } else {
          continue;
        }
        ++result.events;
        now += work;
        result.busy[stage] += work;
      }
    }
    return result;
  }

 private:
  size_t index(int virtual_stage, int micro_batch) const {
    return static_cast<size_t>(virtual_stage) * static_cast<size_t>(m_) +
           static_cast<size_t>(micro_batch);
  }
  const LayoutChoice& layout_;
  const std::vector<Program>& programs_;
  const std::vector<StageTimes>& times_;
  double send_, beside_;
  int m_;
};

// rank = tp + TP (cp + CP (replica + replicas * pp)): replica = ep + EP * dp.
std::vector<Slowness> slowness(const LayoutChoice& layout, const Stragglers& stragglers) {
  const int replicas = layout.replicas(), inner = layout.tp * layout.cp;
  std::vector<double> factor(static_cast<size_t>(layout.world()), 1);
  if (stragglers.jitter > 0) {
    std::mt19937_64 random(stragglers.seed);
    std::normal_distribution<double> normal(0, stragglers.jitter);
    for (double& one : factor) one += std::abs(normal(random));
  }
  for (const auto& [rank, times] : stragglers.ranks) {
    if (rank >= 0 && rank < layout.world()) factor[static_cast<size_t>(rank)] *= times;
  }
  std::vector<Slowness> all(static_cast<size_t>(replicas),
                            Slowness(static_cast<size_t>(layout.pp), 0));
  // Ranks that exchange something in every layer wait for each other there: those of TP, CP and EP.
  const auto first_of_ep = [&](int replica) {
    return static_cast<size_t>(replica - replica % layout.ep);
  };
  for (int rank = 0; rank < layout.world(); ++rank) {
    const int replica = rank / inner % replicas, stage = rank / inner / replicas;
    double& slowest = all[first_of_ep(replica)][static_cast<size_t>(stage)];
    slowest = std::max(slowest, factor[static_cast<size_t>(rank)]);
  }
  for (int replica = 0; replica < replicas; ++replica) {
    all[static_cast<size_t>(replica)] = all[first_of_ep(replica)];
  }
  return all;
}

}  // namespace

ClusterStep simulate_cluster(const Workload& work, const LayoutChoice& layout,
                             const Cluster& cluster, const Stragglers& stragglers,
                             const Software& software) {
  ClusterStep step;
  step.gpus = layout.world();
  step.replicas = layout.replicas();
  const auto micro_batches =
      static_cast<int>(work.global_batch / (layout.micro_batch * layout.replicas()));
  const std::vector<Program> programs = make_schedule(schedule_shape(layout, micro_batches));
  const std::vector<StageTimes> times = stage_times(work, layout, cluster, software);
  const auto chunks = layout_chunks(work, layout);
  const Replica replica(layout, programs, times, stage_send_time(work, layout, cluster),
                        cluster.overlap_cost, micro_batches);
  std::vector<StepEnd> ends;
  for (size_t stage = 0; stage < times.size(); ++stage) {
    ends.push_back(step_end(work, layout, cluster, software, chunks[stage], times[stage]));
  }
  const auto stages = static_cast<size_t>(layout.pp);

  const ReplicaRun even = replica.run(Slowness(stages, 1));
  for (size_t stage = 0; stage < stages; ++stage) {
    step.even_seconds =
        std::max(step.even_seconds, even.done[stage] + ends[stage].data + ends[stage].optimizer);
  }

  // Replicas that are alike are run once.
  std::map<Slowness, ReplicaRun> runs;
  std::vector<double> last(stages, 0);
  std::vector<double> busy(stages, 0);
  double slowest = -1;
  const std::vector<Slowness> all = slowness(layout, stragglers);
  for (size_t i = 0; i < all.size(); ++i) {
    auto found = runs.find(all[i]);
    if (found == runs.end()) found = runs.emplace(all[i], replica.run(all[i])).first;
    const ReplicaRun& run = found->second;
    step.events += run.events;
    double done = 0;
    for (size_t stage = 0; stage < stages; ++stage) {
      last[stage] = std::max(last[stage], run.done[stage]);
      busy[stage] += run.busy[stage];
      done = std::max(done, run.done[stage]);
    }
    if (done > slowest) {
      slowest = done;
      step.slowest_replica = static_cast<int>(i);
    }
  }
  step.replicas_run = static_cast<int>(runs.size());
  // Gradients are reduced when the last replica of a stage is through; then all ranks sum norms.
  for (size_t stage = 0; stage < stages; ++stage) {
    step.seconds = std::max(step.seconds, last[stage] + ends[stage].data + ends[stage].optimizer);
    ++step.events;
  }
  for (size_t stage = 0; stage < stages; ++stage) {
    const double worked = busy[stage] / static_cast<double>(all.size()) + ends[stage].optimizer;
    step.idle.push_back(1 - worked / step.seconds);
  }
  return step;
}

double checkpoint_interval(double checkpoint_s, double mtbf_s) {
  if (checkpoint_s >= 2 * mtbf_s) return mtbf_s;
  const double x = std::sqrt(checkpoint_s / (2 * mtbf_s));
  return std::sqrt(2 * checkpoint_s * mtbf_s) * (1 + x / 3 + x * x / 9) - checkpoint_s;
}

Goodput goodput(int gpus, double step_s, double run_s, const Failures& failures) {
  Goodput result;
  result.mtbf_s = failures.mtbf_hours * 3600 / gpus;
  result.interval_s = checkpoint_interval(failures.checkpoint_s, result.mtbf_s);
  result.interval_steps =
      std::max<int64_t>(1, static_cast<int64_t>(std::llround(result.interval_s / step_s)));
  const double interval = static_cast<double>(result.interval_steps) * step_s;
  // Of every interval and its checkpoint, exponential failures (Daly, equation 13): the time that
  // `interval` of progress takes is M e^(R/M) (e^((interval + d)/M) - 1).
  const double m = result.mtbf_s;
  result.expected = interval / (m * std::exp(failures.restart_s / m) *
                                std::expm1((interval + failures.checkpoint_s) / m));
  // And one run, failure by failure.
  std::mt19937_64 random(failures.seed);
  std::exponential_distribution<double> until(1 / m);
  double progress = 0, wall = 0, next = until(random);
  constexpr int64_t kMost = 1'000'000;
  while (progress < run_s && result.failures < kMost) {
    const double stretch = std::min(interval, run_s - progress);
    const double end = wall + stretch + failures.checkpoint_s;
    if (next >= end) {
      wall = end;
      progress += stretch;
      continue;
    }
    // Lost: back to the last checkpoint. A failure while it restarts begins the restart again.
    ++result.failures;
    wall = next;
    next = wall + until(random);
    while (next < wall + failures.restart_s && result.failures < kMost) {
      ++result.failures;
      wall = next;
      next = wall + until(random);
    }
    wall += failures.restart_s;
  }
  result.wall_s = wall;
  result.simulated = wall > 0 ? progress / wall : 1;
  return result;
}

}  // namespace mtl
