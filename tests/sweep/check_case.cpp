#include "sweep/check_case.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sweep/forecast_agrees.h"

namespace mtl::sweep {

namespace fs = std::filesystem;
using End = Outcome::End;

namespace {

constexpr const char* kRuns[] = {"first", "other", "one"};

void remove_runs(const fs::path& folder) {
  for (const char* name : kRuns) {
    fs::remove_all(folder / name);
    fs::remove(folder / fmt::format("{}.said", name));
    fs::remove(folder / fmt::format("{}.begun", name));
  }
}

// Whether a refusal says which key it is about.
bool names_a_key(const std::string& text) {
  const std::vector<std::string> keys = spec_keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return text.find(key) != std::string::npos; });
}

// What is wrong with how a run ended, if anything is.
std::optional<Failure> wrong_end(const std::string& which, const Outcome& run) {
  const auto failure = [&](const std::string& kind) {
    return Failure{kind, fmt::format("the {} run\n{}", which, run.text)};
  };
  switch (run.end) {
    case End::done:
      return std::nullopt;
    case End::refused:
      if (names_a_key(run.text)) return std::nullopt;
      return failure("refused without a key " + run.code);
    case End::failed:
      return failure("failed " + run.code);
    case End::crashed:
      return failure("crashed");
    case End::hung:
      return failure("hung");
  }
  return std::nullopt;
}

TrainSpec spec_of(const Case& drawn, const fs::path& folder) {
  Diagnostics ignored;
  return load_spec(sources_of(drawn.common.with(drawn.first), (folder / "train.yaml").string()),
                   ignored)
      .spec;
}

// A step to go on from: of a checkpoint before the last.
int64_t switch_step(const Outcome& run) {
  const std::vector<int64_t> steps = checkpoint_steps(run.dir);
  return steps.size() < 2 ? 0 : steps[steps.size() - 2];
}

class Check {
 public:
  Check(const Case& drawn, const fs::path& folder, Tally& tally)
      : drawn_(drawn), folder_(folder), tally_(tally) {}

  std::optional<Failure> run(What what) {
    ++tally_.cases;
    double error = 0;
    const std::string words = forecast_differs(drawn_.common.with(drawn_.first),
                                               (folder_ / "train.yaml").string(), error);
    tally_.forecast = std::max(tally_.forecast, error);
    if (!words.empty()) return Failure{"forecast", "first, with a large model: " + words};
    return what == What::runs ? agree() : refusal();
  }

 private:
  // What is refused by its plan alone.
  std::optional<Failure> refusal() {
    Planned planned;
    const Settings settings = drawn_.common.with(drawn_.first);
    if (plan_of(settings, (folder_ / "train.yaml").string(), 256, planned)) {
      ++tally_.agreed;
      return std::nullopt;
    }
    ++tally_.refused;
    if (names_a_key(planned.refusal)) return std::nullopt;
    return Failure{"refused without a key", planned.refusal};
  }

  std::optional<Failure> agree() {
    const Outcome first = run_one(drawn_.common.with(drawn_.first), folder_, "first");
    if (auto wrong = wrong_end("first", first)) return wrong;
    if (first.end == End::refused) return refused(first);
    const bool resumed = drawn_.claim == Claim::resumed_bits || drawn_.claim == Claim::resumed_near;
    const int64_t from = resumed ? switch_step(first) : 0;
    if (from > 0) copy_run_until(first, from, folder_, "other");
    const Outcome other = run_one(drawn_.common.with(drawn_.other), folder_, "other");
    if (auto wrong = wrong_end("other", other)) return wrong;
    if (other.end == End::refused) return refused(other);
    if (drawn_.claim != Claim::resumed_near) {
      const std::string words = differs_in_bits(first, other, from);
      if (!words.empty()) return Failure{"bits", "first and other: " + words};
    }
    if (!drawn_.batch_of_layout) {
      if (auto wrong = near_one_rank(first, other)) return wrong;
    }
    ++tally_.agreed;
    return std::nullopt;
  }

  std::optional<Failure> refused(const Outcome& run) {
    ++tally_.refused;
    ++tally_.refusals[run.code];
    return std::nullopt;
  }

  std::optional<Failure> near_one_rank(const Outcome& first, const Outcome& other) {
    const Outcome one = run_one(drawn_.common, folder_, "one");
    if (auto wrong = wrong_end("plain", one)) return wrong;
    if (one.end == End::refused) return refused(one);
    const TrainSpec spec = spec_of(drawn_, folder_);
    Moved& moved = tally_.moved[spec.precision.dtype];
    std::string words = is_not_near(first, one, bounds_of(spec), moved);
    if (!words.empty()) return Failure{"near", "first and one rank: " + words};
    if (drawn_.claim != Claim::resumed_near) return std::nullopt;
    const TrainSpec of_other = [&] {
      Case swapped = drawn_;
      swapped.first = drawn_.other;
      return spec_of(swapped, folder_);
    }();
    const bool rounds = of_other.precision.grad_reduce != "fp32";
    words = is_not_near(other, one, bounds_of(rounds ? of_other : spec), moved);
    if (!words.empty()) return Failure{"near", "resumed and one rank: " + words};
    return std::nullopt;
  }

  const Case& drawn_;
  const fs::path& folder_;
  Tally& tally_;
};

// Smaller values that a number may take.
std::vector<std::string> smaller(const std::string& key, const std::string& value) {
  static const std::map<std::string, std::vector<std::string>> kSmaller = {
      {"model.layers", {"1", "2", "3"}},
      {"model.heads", {"1", "2", "4"}},
      {"model.hidden", {"8", "16"}},
      {"train.steps", {"1", "2", "3"}},
      {"train.global_batch", {"1", "2", "4"}},
      {"train.seq_len", {"4", "8", "16"}},
      {"parallel.tp", {"2"}},
      {"parallel.pp", {"2"}},
      {"parallel.cp", {"2"}},
      {"parallel.dp", {"2"}},
      {"parallel.ep", {"2"}},
      {"model.moe.experts", {"2"}},
      {"parallel.virtual_stages", {"2"}},
      {"train.micro_batch", {"1"}}};
  std::vector<std::string> values;
  const auto found = kSmaller.find(key);
  if (found == kSmaller.end()) return values;
  for (const std::string& one : found->second) {
    if (one.size() < value.size() || (one.size() == value.size() && one < value)) {
      values.push_back(one);
    }
  }
  return values;
}

// Takes a setting away, where it is alone or in both layouts.
template <class Attempt>
bool try_without(const Case& smallest, Settings Case::*part, const std::string& key,
                 const Attempt& attempt) {
  Case candidate = smallest;
  (candidate.*part).erase(key);
  if (attempt(candidate)) return true;
  if (part != &Case::first || smallest.other.text(key).empty()) return false;
  candidate.other.erase(key);
  return attempt(candidate);
}

}  // namespace

std::optional<Failure> check_case(const Case& drawn, const fs::path& folder, What what,
                                  Tally& tally) {
  remove_runs(folder);
  std::optional<Failure> failure;
  try {
    failure = Check(drawn, folder, tally).run(what);
  } catch (const std::exception& error) {
    failure = Failure{"unreadable", error.what()};
  }
  remove_runs(folder);
  return failure;
}

Case shrink(const Case& drawn, const Failure& failure, const fs::path& folder, What what) {
  Case smallest = drawn;
  Tally ignored;
  bool found = true;
  const auto attempt = [&](const Case& candidate) {
    const auto now = check_case(candidate, folder, what, ignored);
    if (!now || now->kind != failure.kind) return false;
    smallest = candidate;
    found = true;
    return true;
  };
  while (found) {
    found = false;
    if (smallest.claim == Claim::resumed_bits) {
      Case candidate = smallest;
      candidate.claim = Claim::same_bits;
      attempt(candidate);
    }
    for (Settings Case::*part : {&Case::common, &Case::first, &Case::other}) {
      const Settings before = smallest.*part;
      for (const auto& setting : before.all()) {
        if (try_without(smallest, part, setting.first, attempt)) continue;
        for (const std::string& less : smaller(setting.first, setting.second)) {
          Case candidate = smallest;
          (candidate.*part).set(setting.first, less);
          if (attempt(candidate)) break;
        }
      }
    }
  }
  return smallest;
}

std::string words_of(const Settings& settings) {
  std::string words;
  for (const auto& [key, value] : settings.all()) {
    const bool plain = value.find_first_of(" [{\"*") == std::string::npos;
    if (!words.empty()) words += " ";
    words += plain ? fmt::format("{}={}", key, value) : fmt::format("'{}={}'", key, value);
  }
  return words;
}

}  // namespace mtl::sweep
