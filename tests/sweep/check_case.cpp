#include "sweep/check_case.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sweep/begin_from.h"
#include "sweep/forecast_agrees.h"
#include "sweep/links_agree.h"
#include "sweep/texts.h"

namespace mtl::sweep {

namespace fs = std::filesystem;
using End = Outcome::End;

namespace {

constexpr const char* kRuns[] = {"first", "again", "other", "one", "source", "imported", "cache"};

// With what their processes left beside them.
void remove_runs(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::string kind = entry.path().extension().string();
    const bool of_run = std::find(std::begin(kRuns), std::end(kRuns), name) != std::end(kRuns) ||
                        kind == ".said" || kind == ".begun" || kind == ".pid";
    if (of_run) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove_all(path);
}

// Whether a refusal says which key it is about.
bool names_a_key(const std::string& text) {
  const std::vector<std::string> keys = spec_keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return text.find(key) != std::string::npos; });
}

// What is wrong with how a run ended, if anything is.
std::optional<Failure> wrong_end(const std::string& which, const Outcome& run, bool may_diverge) {
  const auto failure = [&](const std::string& kind) {
    return Failure{kind, fmt::format("the {} run\n{}", which, run.text)};
  };
  switch (run.end) {
    case End::done:
    case End::stopped:
      return std::nullopt;
    case End::refused:
      if (names_a_key(run.text)) return std::nullopt;
      return failure("refused without a key " + run.code);
    case End::failed:
      if (may_diverge && run.code == "loss.nan") return std::nullopt;
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
    std::string words = forecast_differs(drawn_.common.with(drawn_.first),
                                         (folder_ / "train.yaml").string(), error);
    tally_.forecast = std::max(tally_.forecast, error);
    if (!words.empty()) return Failure{"forecast", "first, with a large model: " + words};
    if (what == What::runs && drawn_.counts_links) {
      words = links_differ_from_plan(drawn_.common.with(drawn_.first),
                                     (folder_ / "train.yaml").string(), vocab_of(drawn_.common));
      if (!words.empty()) return Failure{"links", "first: " + words};
    }
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
    if (auto wrong = wrong_end("first", first, drawn_.diverges)) return wrong;
    if (first.end == End::refused) return refused(first);
    // What diverged may have no checkpoint to go on from.
    const bool whole = first.end == End::done;
    if (whole && drawn_.claim == Claim::begun_bits) return begun(first);
    if (whole && drawn_.claim == Claim::changed_bits) return changed(first);
    if (whole && drawn_.claim == Claim::killed_bits) return killed(first);
    const bool resumed = drawn_.claim == Claim::resumed_bits || drawn_.claim == Claim::resumed_near;
    const int64_t from = resumed && whole ? switch_step(first) : 0;
    if (from > 0) copy_run_until(first, from, folder_, "other");
    const Outcome other = run_one(drawn_.common.with(drawn_.other), folder_, "other");
    if (auto wrong = wrong_end("other", other, drawn_.diverges)) return wrong;
    if (other.end == End::refused) return refused(other);
    if (drawn_.claim != Claim::resumed_near) {
      if (auto wrong = differ("first and other", first, other, from)) return wrong;
    }
    if (!drawn_.batch_of_layout && !drawn_.diverges) {
      if (auto wrong = near_one_rank(first, other)) return wrong;
    }
    ++tally_.agreed;
    return std::nullopt;
  }

  // Two runs, in the layouts of both, that follow from the first; `prepare` makes what they are to
  // find in their folders or settings.
  template <class Prepare>
  std::optional<Failure> pair(int64_t from, const Prepare& prepare) {
    Outcome ended[2];
    const char* const names[] = {"again", "other"};
    for (const int i : {0, 1}) {
      Settings settings =
          drawn_.common.with(i == 0 ? drawn_.first : drawn_.other).with(drawn_.changed);
      prepare(i, names[i], settings);
      ended[i] = run_one(settings, folder_, names[i]);
      if (auto wrong = wrong_end(names[i], ended[i], true)) return wrong;
    }
    // Both or none: the layouts have plans.
    if (ended[0].code != ended[1].code) {
      return Failure{"refused one", fmt::format("again: {}\nother: {}",
                                                ended[0].text.empty() ? "runs" : ended[0].text,
                                                ended[1].text.empty() ? "runs" : ended[1].text)};
    }
    if (ended[0].end == End::refused) return refused(ended[0]);
    if (auto wrong = differ("again and other", ended[0], ended[1], from)) return wrong;
    ++tally_.agreed;
    return std::nullopt;
  }

  std::optional<Failure> changed(const Outcome& first) {
    const int64_t from = switch_step(first);
    return pair(from, [&](int, const char* name, Settings&) {
      if (from > 0) copy_run_until(first, from, folder_, name);
    });
  }

  std::optional<Failure> begun(const Outcome& first) {
    Begin begin = begin_from(drawn_.source, first, drawn_.seed, folder_);
    if (begin.from.empty()) {
      ++tally_.refusals["export.family"];
      begin = begin_from(Source::checkpoint, first, drawn_.seed, folder_);
    }
    return pair(0, [&](int i, const char*, Settings& settings) {
      settings.set("init.from", i == 0 ? first.dir.string() : begin.from.string());
    });
  }

  // Ended a few times, each time in the other layout, then left alone.
  std::optional<Failure> killed(const Outcome& first) {
    Draw draw(drawn_.seed);
    const bool more = drawn_.common.text("checkpoint.keep_best.k").empty() && draw.chance(0.5);
    const int64_t times = 1 + draw.below(3);
    for (int64_t i = 0; i <= times; ++i) {
      std::optional<Interruption> interruption;
      // A run that is asked to stop writes a checkpoint more.
      const int signal = more && draw.chance(0.5) ? SIGTERM : SIGKILL;
      // At any moment, or where there is something to go on from.
      const int lines = draw.chance(0.6) ? static_cast<int>(1 + draw.below(6)) : 0;
      const auto after = static_cast<int>(draw.below(lines > 0 ? 20 : std::max(1, first.took_ms)));
      if (i < times)
        interruption = Interruption{.lines = lines,
                                    .after_ms = after,
                                    .signal = signal,
                                    .rank = static_cast<int>(draw.below(8))};
      const Settings settings = drawn_.common.with(i % 2 == 0 ? drawn_.other : drawn_.first);
      const Outcome now = run_one(settings, folder_, "other", interruption);
      if (auto wrong = wrong_end("killed", now, drawn_.diverges)) return wrong;
      if (now.end != End::stopped) {
        if (now.end == End::refused) return refused(now);
        if (auto wrong = differ("first and killed", first, now, 0)) return wrong;
        if (i < times) continue;
        ++tally_.agreed;
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  std::optional<Failure> differ(const char* which, const Outcome& a, const Outcome& b,
                                int64_t from) {
    const std::string words = a.code != b.code ? fmt::format("'{}' and '{}'", a.text, b.text)
                                               : differs_in_bits(a, b, from);
    if (words.empty()) return std::nullopt;
    return Failure{"bits", fmt::format("{}: {}", which, words)};
  }

  std::optional<Failure> refused(const Outcome& run) {
    ++tally_.refused;
    ++tally_.refusals[run.code];
    return std::nullopt;
  }

  std::optional<Failure> near_one_rank(const Outcome& first, const Outcome& other) {
    const Outcome one = run_one(drawn_.common, folder_, "one");
    if (auto wrong = wrong_end("plain", one, false)) return wrong;
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
