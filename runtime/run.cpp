#include "runtime/run.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/find_run.h"
#include "runtime/interchange/init_from.h"
#include "runtime/metrics/format.h"
#include "runtime/plan/micro_batch.h"
#include "runtime/plan/schedule/idle_pipeline.h"
#include "runtime/run_length.h"

namespace mtl {

namespace {

// train.micro_batch auto, where all at once does not fit.
void choose_micro_batch(CheckedRun& run, const DataFacts& facts, const RankMemory& memory) {
  const std::optional<MicroBatchChoice> choice =
      fit_micro_batch(run.resolved, facts, run.plan, memory.bytes, memory.host);
  if (!choice) return;
  run.resolved.spec.train.micro_batch = choice->micro_batch;
  Diagnostics again;  // has no errors, and its warnings have been said
  run.plan = make_plan(run.resolved, facts, run.plan.grid.world(), again);
  run.micro_batch_words = fmt::format(
      "auto: {} of {} sequences at once need {} on a rank, all {}; the limit is {}",
      choice->micro_batch, choice->whole, human_bytes(static_cast<double>(choice->bytes)),
      human_bytes(static_cast<double>(choice->whole_bytes)), memory.words);
}

// Whether what was read can go on to the plan: an unknown key beside it changes no value.
bool values_are_sound(const ResolvedSpec& resolved, const Diagnostics& diagnostics) {
  return resolved.complete &&
         std::all_of(diagnostics.all().begin(), diagnostics.all().end(), [](const Diagnostic& d) {
           return d.severity == Diagnostic::Severity::warning || d.code == "config.unknown_key";
         });
}

// Of what is trained on, from the beginning of each source.
std::vector<int32_t> first_tokens(const RunData& data) {
  constexpr int64_t kEnough = int64_t{1} << 16;
  std::vector<int32_t> all;
  for (const RunData::Source& source : data.sources) {
    int64_t left = source.train ? kEnough : 0;
    for (int64_t document = 0; left > 0 && document < source.train->count(); ++document) {
      const int64_t count = std::min(left, source.train->length(document));
      all.resize(all.size() + static_cast<size_t>(count));
      source.train->read(document, 0, std::span(all).last(static_cast<size_t>(count)));
      left -= count;
    }
  }
  return all;
}

// What init.from names is the model that the run trains, and reads its tokens.
void check_initial_weights(const CheckedRun& run, Diagnostics& diagnostics) {
  const ResolvedSpec& resolved = run.resolved;
  try {
    const InitialWeights weights(resolved.spec.init.from);
    weights.check(
        run.plan.model, [&](const std::string& key) { return resolved.place_of(key); },
        diagnostics);
    weights.check_tokens(*run.corpus.tokenizer, first_tokens(run.corpus),
                         resolved.place_of("init.from"), diagnostics);
  } catch (const Error& error) {
    for (Diagnostic diagnostic : error.diagnostics()) {
      if (!diagnostic.place) diagnostic.place = resolved.place_of("init.from");
      diagnostics.add(std::move(diagnostic));
    }
  }
}

// Whether the run goes on from a checkpoint of its own: what init.from names may be gone then.
bool has_own_checkpoint(const RunRequest& request, const TrainSpec& spec) {
  const auto is_saved = [](const std::filesystem::path& dir) {
    Diagnostics passed_over;
    return !newest_checkpoint(dir / kCheckpoints, passed_over).empty();
  };
  if (!request.run_dir.empty()) return is_saved(request.run_dir);
  if (spec.checkpoint.resume == "never") return false;
  const auto runs = runs_of(std::filesystem::path(spec.run.dir) / spec.run.name);
  return std::any_of(runs.begin(), runs.end(), is_saved);
}

void warn_of_random_base(const ResolvedSpec& resolved, Diagnostics& diagnostics) {
  diagnostics.add({.code = "model.lora",
                   .what = "lora.rank trains adapters beside a model that stays as it is, and that "
                           "is one of random weights",
                   .place = resolved.place_of("lora.rank"),
                   .help = "say with init.from which model it is",
                   .severity = Diagnostic::Severity::warning});
}

void check_straggler_factor(const ResolvedSpec& resolved, Diagnostics& diagnostics) {
  const double factor = resolved.spec.health.straggler_factor;
  if (factor == 0 || factor > 1) return;
  diagnostics.add({.code = "config.range",
                   .what = fmt::format("health.straggler_factor cannot be {}", factor),
                   .place = resolved.place_of("health.straggler_factor"),
                   .help = "use a number above 1, or 0: no rank is named then"});
}

// What is asked of evaluations, where there is nothing to evaluate on.
void check_unevaluated(const ResolvedSpec& resolved, Diagnostics& diagnostics) {
  const TrainSpec::Checkpoint& checkpoint = resolved.spec.checkpoint;
  const bool best = checkpoint.keep_best.k > 0 && checkpoint.keep_best.metric == "valid_loss";
  // Prompts are continued all the same.
  const bool every = resolved.spec.train.eval.every > 0 &&
                     resolved.spec.train.eval.generate.prompts.empty() &&
                     resolved.origin_of("train.eval.every") != Origin::built_in;
  if (!best && !every) {
    const std::vector<double>& split = resolved.spec.data.split;
    if (split.size() < 2 || split[1] == 0) return;
    diagnostics.add({.code = "data.no_validation",
                     .what = fmt::format("data.split [{}] leaves no sequence to evaluate on",
                                         fmt::join(split, ", ")),
                     .place = resolved.place_of("data.split"),
                     .help = "give data.valid, or more documents (of a corpus the split is over "
                             "these), or data.split=[1]: nothing is evaluated",
                     .severity = Diagnostic::Severity::warning});
    return;
  }
  const char* const key = best ? "checkpoint.keep_best.k" : "train.eval.every";
  diagnostics.add(
      {.code = "data.no_validation",
       .what = fmt::format("{} {}, and there is no data to evaluate on", key,
                           best ? "keeps those with the best valid_loss" : "asks for evaluations"),
       .place = resolved.place_of(key),
       .help = best ? "give data.valid or a larger part in data.split, or set "
                      "checkpoint.keep_best.metric=loss"
                    : "give data.valid or a larger part in data.split, or leave it out",
       .severity = best ? Diagnostic::Severity::error : Diagnostic::Severity::warning});
}

// The samples of a run, behind those that it has consumed if it goes on.
void put_in_order(CheckedRun& run, const RunRequest& request, const DataFacts& facts,
                  Diagnostics& diagnostics) {
  std::optional<RunHistory> history;
  if (!request.run_dir.empty()) history = history_of(request.run_dir, run.plan);
  Diagnostics said;  // by the first plan
  if (history) plan_behind(history->consumed, facts, run, said);
  order_samples(run.corpus, run.resolved, run.plan.batch.first_sample(run.plan.steps), diagnostics,
                history ? history->data : nlohmann::json::object());
}

// What is missing of the data keeps no run from being planned whose vocabulary is known.
Diagnostics may_be_elsewhere(const Diagnostics& data) {
  Diagnostics changed;
  for (Diagnostic diagnostic : data.all()) {
    if (diagnostic.code == "data.missing") {
      diagnostic.severity = Diagnostic::Severity::warning;
      diagnostic.help = "planned with data.vocab; to start the run, it has to be there";
    }
    changed.add(std::move(diagnostic));
  }
  return changed;
}

}  // namespace

DataFacts facts_of(const CheckedRun& run) {
  DataFacts facts{.vocab = 256, .sequences = 1};
  if (run.corpus.tokenizer == nullptr) return facts;
  facts.vocab = run.corpus.tokenizer->vocab_size();
  facts.sequences = run.corpus.train_sequences;
  return facts;
}

BesideSteps beside_steps(const CheckedRun& run) {
  const TrainSpec& spec = run.resolved.spec;
  const TrainSpec::Checkpoint& checkpoint = spec.checkpoint;
  const int64_t wanted = spec.train.eval.iters * run.plan.batch.largest();
  BesideSteps beside;
  beside.steps = run.plan.steps;
  beside.eval_every = spec.train.eval.every;
  beside.save_every = checkpoint.every;
  beside.save_every_s = checkpoint.every_time;
  beside.async = checkpoint.async;
  beside.eval_before_save =
      checkpoint.keep_best.k > 0 && checkpoint.keep_best.metric == "valid_loss";
  const auto evaluated = [&](const std::shared_ptr<const Samples>& samples) {
    int64_t sequences = samples ? samples->size() : 0;
    if (wanted > 0) sequences = std::min(sequences, wanted);
    if (sequences > 0) beside.eval_sets.push_back(sequences);
  };
  for (const RunData::ValidSet& set : run.corpus.valid_sets) evaluated(set.samples);
  if (run.corpus.valid_sets.empty()) evaluated(run.corpus.valid);
  if (!run.corpus.tokenizer && beside.eval_every > 0 && wanted > 0) beside.eval_sets = {wanted};
  if (!run.prompts.texts.empty()) {
    beside.texts = static_cast<int64_t>(run.prompts.texts.size());
    beside.text_tokens = run.prompts.tokens;
    beside.text_room = run.prompts.room();
  }
  return beside;
}

CheckedRun check_run(const RunRequest& request) {
  Diagnostics diagnostics;
  CheckedRun run;
  run.resolved = load_spec(request.sources, diagnostics);
  const bool spec_is_sound = values_are_sound(run.resolved, diagnostics);
  check_straggler_factor(run.resolved, diagnostics);
  const TrainSpec& spec = run.resolved.spec;

  Diagnostics data;
  run.corpus = load_run_data(run.resolved, data);
  const bool elsewhere = request.plan_only && spec.data.vocab > 0 && data.has_errors();
  if (elsewhere) data = may_be_elsewhere(data);
  // The rules of the plan mean something only for values that are in range by themselves. Without a
  // text they are checked as if it were one sequence of bytes, so that everything wrong is said at
  // once.
  if (spec_is_sound) {
    const DataFacts facts = elsewhere ? DataFacts{.vocab = spec.data.vocab} : facts_of(run);
    run.plan = make_plan(run.resolved, facts, request.world, diagnostics);
    // The ranks read what this run has, not what a launch's file asks for whatever is launched.
    if (run.plan.grid.sizes().copies == 1 &&
        run.resolved.origin_of("parallel.zero_ranks") == Origin::default_config) {
      run.resolved.spec.parallel.zero_ranks = 0;
    }
    if (spec.train.micro_batch == 0 && !diagnostics.has_errors()) {
      const auto memory = request.memory ? request.memory() : std::nullopt;
      if (memory) choose_micro_batch(run, facts, *memory);
      warn_of_idle_pipeline(run.plan, run.resolved, diagnostics);
    }
    if (run.corpus.tokenizer && !diagnostics.has_errors()) {
      put_in_order(run, request, facts, data);
    }
    if (run.corpus.tokenizer) {
      run.prompts = prompts_of(run.resolved, *run.corpus.tokenizer, diagnostics);
    }
    if (run.corpus.valid && run.corpus.valid->size() == 0) {
      check_unevaluated(run.resolved, diagnostics);
    }
    if (spec.lora.rank > 0 && spec.init.from.empty() && !has_own_checkpoint(request, spec)) {
      warn_of_random_base(run.resolved, diagnostics);
    }
    if (!spec.init.from.empty() && run.corpus.tokenizer && !diagnostics.has_errors()) {
      // Found once: for a rank, or another start, the newest one may be another.
      if (const auto checkpoint = named_checkpoint(spec.init.from, spec.run.dir)) {
        run.resolved.spec.init.from = checkpoint->string();
      }
      if (!has_own_checkpoint(request, spec)) check_initial_weights(run, data);
    }
  }
  const bool only_data = !diagnostics.has_errors();
  for (const Diagnostic& diagnostic : data.all()) diagnostics.add(diagnostic);
  diagnostics.throw_if_errors(only_data ? Exit::data : Exit::config);
  run.warnings = diagnostics.all();
  return run;
}

std::string resolved_text(const CheckedRun& run) {
  std::string text = resolved_yaml(run.resolved);
  const TrainSpec::Train& train = run.resolved.spec.train;
  // In place of where the value came from.
  const auto say = [&](const char* name, int64_t value, const std::string& words) {
    const std::string line = fmt::format("\n  {}: {}  # ", name, value);
    const size_t at = text.find(line);
    if (words.empty() || at == std::string::npos) return;
    const size_t begin = at + line.size();
    text.replace(begin, text.find('\n', begin) - begin, words);
  };
  say("micro_batch", train.micro_batch, run.micro_batch_words);
  say("steps", train.steps, run.steps_words);
  return text;
}

}  // namespace mtl
