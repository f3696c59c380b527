#include "runtime/plan/micro_batch.h"

#include <algorithm>

namespace mtl {

int64_t bytes_of_rank(const Plan& plan, bool host) {
  int64_t most = 0;
  for (const StagePlan& stage : plan.stages) {
    most = std::max(most, stage.memory.total_bytes + (host ? stage.host_bytes() : 0));
  }
  return most;
}

std::optional<MicroBatchChoice> fit_micro_batch(const ResolvedSpec& resolved, const DataFacts& data,
                                                const Plan& whole, int64_t limit_bytes, bool host) {
  const TrainSpec::Train& train = resolved.spec.train;
  if (train.micro_batch > 0 || !train.accumulate.empty() || whole.stages.empty()) {
    return std::nullopt;
  }
  MicroBatchChoice choice{.whole = whole.micro_batch, .whole_bytes = bytes_of_rank(whole, host)};
  if (choice.whole_bytes <= limit_bytes) return std::nullopt;
  // From the largest: more micro-batches in flight may cost a pipeline what each of them saves, so
  // the sizes do not simply fall. All divisors of the share divide every phase's share.
  for (int64_t size = choice.whole / 2; size >= 1; --size) {
    if (choice.whole % size != 0) continue;
    ResolvedSpec smaller = resolved;
    smaller.spec.train.micro_batch = size;
    Diagnostics problems;
    const Plan plan = make_plan(smaller, data, whole.grid.world(), problems);
    if (problems.has_errors()) continue;
    choice.bytes = bytes_of_rank(plan, host);
    choice.micro_batch = size;
    if (choice.bytes <= limit_bytes) return choice;
  }
  return std::nullopt;
}

}  // namespace mtl
