#include "sweep/links_agree.h"

#include <array>
#include <vector>

#include <fmt/format.h>

#include "runtime/plan/traffic.h"
#include "support/layouts.h"

namespace mtl::sweep {

namespace {

using Counts = std::array<Traffic, kLinks>;

test::Layout degrees_of(const TrainSpec& spec, const Plan& plan) {
  const GridSizes& sizes = plan.grid.sizes();
  return {.tp = sizes[Axis::tp],
          .dp = sizes[Axis::dp],
          .pp = sizes[Axis::pp],
          .virtual_stages = static_cast<int>(spec.parallel.virtual_stages),
          .cp = sizes[Axis::cp],
          .ep = sizes[Axis::ep],
          .zero_ranks = static_cast<int>(spec.parallel.zero_ranks)};
}

std::string words_of(const Traffic& t) {
  return fmt::format("all-reduce {}, reduce-scatter {}, all-gather {}, send {}, all-to-all {}",
                     t.all_reduce, t.reduce_scatter, t.all_gather, t.send, t.all_to_all);
}

std::string differ(int rank, Link link, const LinkBytes& planned, const Traffic& counted) {
  const Traffic as_planned = {.all_reduce = planned.all_reduce,
                              .reduce_scatter = planned.reduce_scatter,
                              .all_gather = planned.all_gather,
                              .send = planned.send,
                              .all_to_all = planned.all_to_all};
  if (counted == as_planned) return {};
  return fmt::format("rank {}, {}: planned are {}; it was {}", rank, link_name(link),
                     words_of(as_planned), words_of(counted));
}

}  // namespace

std::string links_differ_from_plan(const Settings& settings, const std::string& train_yaml,
                                   int64_t vocab) {
  Planned planned;
  if (!plan_of(settings, train_yaml, vocab, planned)) return {};
  const Plan& plan = planned.plan;
  if (plan.batch.phases().size() > 1) return {};  // planned is the largest step
  // How many rows leave a rank depends on the tokens, unless each goes to all experts.
  const bool even = plan.model.experts_per_token == plan.model.experts;
  const auto text = test::markov_tokens(5'000, static_cast<int32_t>(vocab));
  const Sampler sampler(text->size(), planned.spec.train.seq_len, SampleOrder::random, 3);
  std::vector<std::string> words(static_cast<size_t>(plan.grid.sizes().world()));
  test::run_layout(
      planned.spec, vocab, degrees_of(planned.spec, plan),
      [&](test::RankContext& rank) {
        rank.trainer.initialise();
        const Counts before = test::traffic_of(rank.trainer);
        rank.trainer.step(0, *text, sampler, {});
        const Counts after = test::traffic_of(rank.trainer);
        for (size_t i = 0; i < after.size(); ++i) {
          const auto link = static_cast<Link>(i);
          if (link == Link::experts && !even) continue;
          const LinkBytes of_plan = rank.plan.stage_of(rank.rank).traffic[link];
          std::string& found = words[static_cast<size_t>(rank.rank)];
          if (found.empty()) found = differ(rank.rank, link, of_plan, after[i] - before[i]);
        }
      },
      100);
  for (const std::string& found : words) {
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace mtl::sweep
