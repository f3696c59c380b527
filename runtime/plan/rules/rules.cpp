#include "runtime/plan/rules/rules.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/plan/rules/nearest.h"
#include "runtime/plan/rules/rule_book.h"

namespace mtl {

namespace {

Layout check_all(const RuleInput& input, RuleBook& book) {
  Layout layout;
  check_model(input, book);
  const bool mesh = check_mesh(input, layout, book);
  check_batch(input, layout, book);
  if (mesh) check_schedule(input, layout, book);
  check_recompute(input, layout, mesh, book);
  check_lr(input, layout, book);
  check_loss_scale(input, book);
  return layout;
}

// The settings with other degrees. Layers that were given stage by stage are kept where there are
// as many stages.
ResolvedSpec with_degrees(const ResolvedSpec& resolved, const Degrees& degrees) {
  ResolvedSpec other;
  other.spec = resolved.spec;
  TrainSpec::Parallel& parallel = other.spec.parallel;
  parallel.tp = degrees.tp;
  parallel.pp = degrees.pp;
  parallel.dp = degrees.dp;
  parallel.virtual_stages = degrees.chunks;
  if (degrees.chunks == 1) parallel.virtual_group = 0;
  const auto stages = static_cast<size_t>(degrees.pp) * static_cast<size_t>(degrees.chunks);
  if (parallel.stage_layout.size() != stages) parallel.stage_layout.clear();
  return other;
}

// The values to write for a layout: all that differ from the settings, and the degrees.
std::string settings_of(const TrainSpec::Parallel& given, const Degrees& degrees,
                        const TrainSpec::Parallel& other) {
  std::string text = fmt::format("tp={} pp={} dp={}", degrees.tp, degrees.pp, degrees.dp);
  if (degrees.chunks != given.virtual_stages) {
    text += fmt::format(" virtual_stages={}", degrees.chunks);
  }
  if (other.virtual_group != given.virtual_group) text += " virtual_group=auto";
  if (given.cp > 1) text += fmt::format(" cp={}", given.cp);
  if (given.ep > 1) text += fmt::format(" ep={}", given.ep);
  if (other.stage_layout != given.stage_layout) {
    text += fmt::format(" stage_layout={}", other.stage_balance);
  }
  return text;
}

// "8 processes can be tp=2 pp=2 dp=2, or tp=2 pp=1 dp=4"; empty if no layout keeps every rule but
// those that `known` says are broken in any.
std::string layouts_note(const ResolvedSpec& resolved, const RuleInput& input,
                         const std::set<std::string>& known) {
  const TrainSpec::Parallel& given = resolved.spec.parallel;
  const auto fits = [&](const Degrees& degrees) {
    const ResolvedSpec other = with_degrees(resolved, degrees);
    RuleBook book(other);
    check_all({other.spec, input.model, input.data, input.world}, book);
    return std::all_of(
        book.problems().begin(), book.problems().end(),
        [&](const RuleBook::Problem& problem) { return known.contains(problem.diagnostic.what); });
  };
  std::vector<std::string> layouts;
  const Degrees wanted{given.tp, given.pp, 1, given.virtual_stages};
  const int kept = given.cp * given.ep;
  if (input.world % kept != 0) return {};
  const int world = input.world / kept;
  for (const Degrees& degrees : nearest_layouts(input.model, world, wanted, fits)) {
    layouts.push_back(settings_of(given, degrees, with_degrees(resolved, degrees).spec.parallel));
  }
  if (layouts.empty()) return {};
  return fmt::format("{} process{} can be {}", input.world, input.world == 1 ? "" : "es",
                     fmt::join(layouts, ", or "));
}

}  // namespace

Layout check_rules(const ResolvedSpec& resolved, const ModelShape& model, const DataFacts& data,
                   int world, Diagnostics& diagnostics) {
  const RuleInput input{resolved.spec, model, data, world};
  RuleBook book(resolved);
  Layout layout = check_all(input, book);
  RuleBook::Problem* first_of_layout = nullptr;
  std::set<std::string> known;
  for (RuleBook::Problem& problem : book.problems()) {
    if (!problem.of_layout) {
      known.insert(problem.diagnostic.what);
    } else if (first_of_layout == nullptr) {
      first_of_layout = &problem;
    }
  }
  if (first_of_layout != nullptr) {
    std::string note = layouts_note(resolved, input, known);
    if (!note.empty()) first_of_layout->diagnostic.notes.push_back(std::move(note));
  }
  for (RuleBook::Problem& problem : book.problems()) {
    diagnostics.add(std::move(problem.diagnostic));
  }
  return layout;
}

}  // namespace mtl
