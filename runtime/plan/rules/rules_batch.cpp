// Rules of a step: how many sequences, cut into how many micro-batches, in which order.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/plan/rules/nearest.h"
#include "runtime/plan/rules/rule_book.h"

namespace mtl {

namespace {

// As train.global_batch.
constexpr int64_t kMostSequences = 1'000'000'000;

// "12", "12 and 20", "12, 20, 28 ...".
std::string some_of(const std::vector<int64_t>& values) {
  if (values.size() == 2) return fmt::format("{} and {}", values[0], values[1]);
  const auto shown = static_cast<long>(std::min<size_t>(3, values.size()));
  return fmt::format("{}{}", fmt::join(values.begin(), values.begin() + shown, ", "),
                     values.size() > 3 ? " ..." : "");
}

// `dp` replicas, of which ep divide experts.
std::string replica_words(const RuleInput& input, int dp) {
  const int ep = input.spec.parallel.ep;
  return ep == 1 ? fmt::format("dp {}", dp) : fmt::format("ep {} x dp {}", ep, dp / ep);
}

// With accumulate, a step is as many micro-batches as it says.
std::optional<BatchSchedule> accumulated(const RuleInput& input, int dp, Layout& layout,
                                         RuleBook& book) {
  const TrainSpec::Train& train = input.spec.train;
  const int64_t most =
      std::max_element(train.accumulate.begin(), train.accumulate.end(), [](auto& a, auto& b) {
        return a.second < b.second;
      })->second;
  const int64_t example = input.spec.parallel.cp > 1 ? 1 : 4;
  if (!book.rule("batch.micro", "train.accumulate", train.micro_batch > 0,
                 "train.accumulate counts micro-batches, and train.micro_batch does not say how "
                 "many sequences each has",
                 fmt::format("set train.micro_batch: with {}, a step has up to {} sequences",
                             example, example * dp * most))) {
    return std::nullopt;
  }
  const int64_t per_step = train.micro_batch * dp;
  if (!book.rule("batch.size", "train.accumulate", most <= kMostSequences / per_step,
                 fmt::format("train.accumulate {} x train.micro_batch {} x {} are more than {} "
                             "sequences per step",
                             most, train.micro_batch, replica_words(input, dp), kMostSequences),
                 "use a smaller train.accumulate or train.micro_batch")) {
    return std::nullopt;
  }
  // A plain number is that of epoch 0, and of all that follow.
  const bool one = train.accumulate.size() == 1 && train.accumulate.begin()->first == 0;
  const bool by_step = train.accumulate_by == "step" || one;
  if (!book.rule("batch.epoch", "train.accumulate", by_step || input.data.sequences > 0,
                 "train.accumulate counts epochs, and how long one is is not known",
                 "set train.accumulate_by=step")) {
    return std::nullopt;
  }
  layout.micro_batch = train.micro_batch;
  if (by_step) return accumulate_by_step(train.accumulate, layout.micro_batch, dp);
  return accumulate_by_epoch(train.accumulate, layout.micro_batch, dp, input.data.sequences,
                             input.data.consumed);
}

// With global_batch or batch_ramp, every step is divided over the replicas, and there into
// micro-batches.
std::optional<BatchSchedule> divided(const RuleInput& input, int dp, Layout& layout,
                                     RuleBook& book) {
  const TrainSpec::Train& train = input.spec.train;
  const bool ramp = !train.batch_ramp.empty();
  const char* key = ramp ? "train.batch_ramp" : "train.global_batch";
  std::map<int64_t, int64_t> batches = train.batch_ramp;
  if (!ramp) batches = {{0, train.global_batch}};

  std::vector<int64_t> uneven;
  int64_t shares = 0;  // what divides the sequences of a replica in every phase
  for (const auto& [step, batch] : batches) {
    if (batch % dp != 0) uneven.push_back(batch);
    shares = std::gcd(shares, batch / dp);
  }
  if (!book.layout_rule("batch.dp", key, uneven.empty(),
                        fmt::format("{} {} cannot be divided over {}", key, some_of(uneven),
                                    replica_words(input, dp)),
                        uneven.size() == 1 ? fmt::format("use a multiple of {}: {}", dp,
                                                         nearest_multiples(uneven.front(), dp))
                                           : fmt::format("use multiples of {}", dp))) {
    return std::nullopt;
  }
  layout.micro_batch = train.micro_batch > 0 ? train.micro_batch : shares;
  for (const auto& [step, batch] : batches) {
    if (batch / dp % layout.micro_batch != 0) uneven.push_back(batch / dp);
  }
  if (!book.layout_rule("batch.micro", "train.micro_batch", uneven.empty(),
                        fmt::format("train.micro_batch {} does not divide the {} sequence{} of "
                                    "each replica ({} / {})",
                                    layout.micro_batch, some_of(uneven),
                                    uneven == std::vector<int64_t>{1} ? "" : "s",
                                    ramp ? key : fmt::format("global_batch {}", train.global_batch),
                                    replica_words(input, dp)),
                        fmt::format("use {}", nearest_divisors(shares, layout.micro_batch)))) {
    return std::nullopt;
  }
  return ramp_by_step(batches, layout.micro_batch, dp);
}

// A run that goes on has its steps behind it, whatever is asked for.
int64_t length_of_run(const TrainSpec::Train& train, const BatchSchedule& batch,
                      const Consumed& consumed) {
  if (train.steps > 0) return train.steps;
  return std::max(consumed.step, batch.steps_for_samples(samples_of_run(train)));
}

}  // namespace

int64_t samples_of_run(const TrainSpec::Train& train) {
  if (train.steps > 0 || train.seq_len <= 0) return 0;
  if (train.samples > 0) return train.samples;
  return (train.tokens + train.seq_len - 1) / train.seq_len;
}

void check_batch(const RuleInput& input, Layout& layout, RuleBook& book) {
  const int dp = Grid(layout.sizes).replicas();
  auto batch = input.spec.train.accumulate.empty() ? divided(input, dp, layout, book)
                                                   : accumulated(input, dp, layout, book);
  if (!batch) {
    layout.steps = input.spec.train.steps;
    return;
  }
  batch = batch->behind(input.data.consumed);
  layout.steps = length_of_run(input.spec.train, *batch, input.data.consumed);
  // What would begin after the last step is no part of the run.
  layout.batch = batch->until(layout.steps);

  const TrainSpec::Parallel& parallel = input.spec.parallel;
  const int64_t forwards =
      layout.layers_of_virtual.empty() ? 1 : static_cast<int64_t>(layout.layers_of_virtual.size());
  int64_t most = 0;
  for (const BatchPhase& phase : layout.batch.phases()) most = std::max(most, phase.micro_batches);
  if (!book.layout_rule(
          "batch.size", "train.micro_batch", most <= kMostForwards / forwards,
          fmt::format("{} micro-batches per step{} are more than mtl plans: {}", most,
                      forwards == 1 ? ""
                                    : fmt::format(" through {} stages",
                                                  parallel.pp * parallel.virtual_stages),
                      kMostForwards / forwards),
          input.spec.train.accumulate.empty() ? "use a larger train.micro_batch"
                                              : "use a larger train.micro_batch and a smaller "
                                                "train.accumulate")) {
    layout.batch = BatchSchedule();
  }
}

namespace {

// What to change where the micro-batches of a step do not fill groups of an interleaved schedule.
std::string cure_of_groups(const RuleInput& input, const Layout& layout, const BatchPhase& phase,
                           int64_t group) {
  const TrainSpec::Parallel& parallel = input.spec.parallel;
  const TrainSpec::Train& train = input.spec.train;
  const int64_t pp = parallel.pp, m = phase.micro_batches;
  const int64_t replicas = Grid(layout.sizes).replicas();
  const auto fit = [&](int64_t count, int64_t of) {
    return count >= of && (count % of == 0 || count % of >= pp);
  };
  std::vector<std::string> cures;
  if (group > pp && fit(m, pp)) cures.emplace_back("leave parallel.virtual_group out");
  if (!train.accumulate.empty()) {
    cures.push_back(m < group
                        ? fmt::format("use train.accumulate >= {}", group)
                        : fmt::format("use train.accumulate {}", nearest_multiples(m, group)));
  } else {
    // A larger batch would be cut into larger micro-batches where their size is left to us.
    const int64_t sequences = layout.micro_batch * replicas;
    if (train.micro_batch > 0 && m < group) {
      cures.push_back(fmt::format("use a batch of at least {} sequences (now {})",
                                  group * sequences, phase.global_batch));
    } else if (train.micro_batch > 0) {
      cures.push_back(fmt::format(
          "use {} micro-batches: a batch of {} sequences (now {})", nearest_multiples(m, group),
          nearest_multiples(m * sequences, group * sequences), phase.global_batch));
    }
    const int64_t share = phase.global_batch / replicas;
    std::vector<int64_t> sizes = divisors(share);
    std::erase_if(sizes, [&](int64_t size) {
      return size >= layout.micro_batch || !fit(share / size, group);
    });
    if (!sizes.empty()) {
      cures.push_back(
          fmt::format("set train.micro_batch={} (now {})", sizes.back(), layout.micro_batch));
    }
  }
  if (m < group || cures.empty()) {
    cures.push_back(fmt::format("set parallel.virtual_stages=1{}",
                                parallel.virtual_group > 0 ? " without virtual_group" : ""));
  }
  return fmt::format("{}", fmt::join(cures, ", or "));
}

}  // namespace

void check_schedule(const RuleInput& input, Layout& layout, RuleBook& book) {
  const TrainSpec::Parallel& parallel = input.spec.parallel;
  const int64_t pp = parallel.pp;
  layout.schedule.stages = parallel.pp;
  layout.schedule.chunks = parallel.virtual_stages;
  // One stage has nothing to fill.
  const bool gpipe = parallel.schedule == "gpipe" && pp > 1;
  const bool interleaved = parallel.virtual_stages > 1 && !gpipe;
  layout.schedule.kind = gpipe         ? ScheduleKind::gpipe
                         : interleaved ? ScheduleKind::interleaved
                                       : ScheduleKind::one_forward_one_backward;
  layout.schedule.weights_later = parallel.schedule == "zb-h1" && pp > 1;
  if (!interleaved) {
    book.rule("schedule.group", "parallel.virtual_group", parallel.virtual_group == 0,
              fmt::format("parallel.virtual_group belongs to an interleaved schedule, and {}",
                          gpipe ? "parallel.schedule is gpipe" : "parallel.virtual_stages is 1"),
              gpipe ? "leave it out, or set parallel.schedule=1f1b"
                    : "leave it out, or set parallel.virtual_stages >= 2");
    return;
  }
  const int64_t group = parallel.virtual_group > 0 ? parallel.virtual_group : pp;
  if (!book.layout_rule("schedule.group", "parallel.virtual_group", group >= pp,
                        fmt::format("parallel.virtual_group {} is less than parallel.pp {}: the "
                                    "first stage would wait for each chunk of the last",
                                    group, pp),
                        fmt::format("use at least {}, or leave it out", pp))) {
    return;
  }
  layout.schedule.group = static_cast<int>(std::min<int64_t>(group, kMostForwards));
  const char* key =
      parallel.virtual_group > 0 ? "parallel.virtual_group" : "parallel.virtual_stages";
  const std::string name = parallel.virtual_group > 0
                               ? fmt::format("parallel.virtual_group {}", group)
                               : fmt::format("parallel.pp {}", group);
  for (const BatchPhase& phase : layout.batch.phases()) {
    const int64_t m = phase.micro_batches;
    const std::string when =
        phase.first_step == 0 ? "" : fmt::format(" from step {} on", phase.first_step);
    const std::string step =
        fmt::format("a step{} has {} micro-batch{}", when, m, m == 1 ? "" : "es");
    // One phase says it for all.
    if (!book.layout_rule(
            "schedule.group", key, m >= group,
            fmt::format("{}, and each chunk of an interleaved schedule takes {} in turn ({})", step,
                        group, name),
            cure_of_groups(input, layout, phase, group)) ||
        !book.layout_rule(
            "schedule.group", key, m % group == 0 || m % group >= pp,
            fmt::format("{}, in groups of {} ({}): the last group has {}, fewer than the {} stages",
                        step, group, name, m % group, pp),
            cure_of_groups(input, layout, phase, group))) {
      return;
    }
  }
}

}  // namespace mtl
