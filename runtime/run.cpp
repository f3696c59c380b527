#include "runtime/run.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <unistd.h>

#include <sys/utsname.h>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/file_lock.h"
#include "common/files.h"
#include "common/version.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/interchange/init_from.h"
#include "runtime/metrics/format.h"
#include "runtime/plan/micro_batch.h"
#include "runtime/run_length.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kFence = "fence";

std::string new_run_id() {
  const std::time_t now = std::time(nullptr);
  static constexpr std::string_view kLetters = "abcdefghjkmnpqrstvwxyz23456789";
  std::random_device random;
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string suffix;
  for (int i = 0; i < 4; ++i) suffix += kLetters[letter(random)];
  return fmt::format("{:%Y%m%d-%H%M%S}-{}", fmt::gmtime(now), suffix);
}

// The sub-directories that are runs, newest first (their names begin with the time).
std::vector<fs::path> runs_of(const fs::path& name_dir) {
  std::vector<fs::path> runs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(name_dir, ignored)) {
    if (fs::exists(entry.path() / "resolved.yaml", ignored)) runs.push_back(entry.path());
  }
  std::sort(runs.rbegin(), runs.rend());
  return runs;
}

// The number in the fence file; 0 = none.
int64_t fence_of(const fs::path& dir) {
  int64_t fence = 0;
  std::ifstream in(dir / kFence);
  in >> fence;
  return fence;
}

// The value of a "key : value" line of a /proc file.
std::string proc_value(const char* path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return "";
}

nlohmann::json environment_json() {
  utsname system{};
  uname(&system);
  return {{"mtl", version()},
          {"host", system.nodename},
          {"kernel", system.release},
          {"cpu", proc_value("/proc/cpuinfo", "model name")},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory", proc_value("/proc/meminfo", "MemTotal")}};
}

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

// What ranks allocate is planned to the byte, so a run that cannot fit is refused before it starts.
void check_memory(const CheckedRun& run, bool arenas_on_host, int nodes) {
  const Plan& plan = run.plan;
  const int64_t needed =
      ((arenas_on_host ? plan.total_bytes() : 0) + plan.host_bytes()) / std::max(1, nodes);
  const int64_t there = machine_memory_bytes();
  if (needed <= there) return;
  constexpr double kGiB = 1 << 30;
  const auto largest = std::max_element(
      plan.stages.begin(), plan.stages.end(), [&](const StagePlan& a, const StagePlan& b) {
        const auto bytes = [&](const StagePlan& stage) {
          return (arenas_on_host ? stage.memory.total_bytes : 0) + stage.host_bytes();
        };
        return bytes(a) < bytes(b);
      });
  std::string of_largest, help;
  if (arenas_on_host) {
    for (int i = 0; i < kMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      of_largest +=
          fmt::format("{} {:.1f}, ", category_name(category),
                      static_cast<double>(largest->memory.bytes_of_category(category)) / kGiB);
    }
    help =
        "lower train.micro_batch or set recompute.mode=full (activations), raise parallel.tp, "
        "cp or pp, set checkpoint.async=false (no copy), or make the model smaller (see: mtl "
        "plan)";
  } else {
    help = fmt::format(
        "{}{}divide more (parallel.zero, more ranks), or take machines with more "
        "memory (see: mtl plan)",
        largest->snapshot_bytes > 0 ? "set checkpoint.async=false (no copy), " : "",
        largest->memory.host_bytes > 0 ? "set optimizer.offload=none, " : "");
  }
  if (largest->memory.host_bytes > 0) {
    of_largest += fmt::format("offloaded state {:.1f}, ",
                              static_cast<double>(largest->memory.host_bytes) / kGiB);
  }
  throw Error(
      Exit::out_of_memory,
      {.code = "memory.host",
       .what =
           fmt::format("{} rank{} {:.1f} GiB{}{}; this machine has {:.1f} GiB", plan.grid.world(),
                       plan.grid.world() == 1 ? " needs" : "s need",
                       static_cast<double>(needed) / kGiB, nodes > 1 ? " on each machine" : "",
                       arenas_on_host ? "" : " beside the GPUs", static_cast<double>(there) / kGiB),
       .place = run.resolved.place_of(arenas_on_host                   ? "train.micro_batch"
                                      : largest->memory.host_bytes > 0 ? "optimizer.offload"
                                                                       : "checkpoint.async"),
       .notes = {fmt::format("the largest: {}copy for checkpoints {:.1f} GiB", of_largest,
                             static_cast<double>(largest->snapshot_bytes) / kGiB)},
       .help = help});
}

std::string in_words(const nlohmann::json& state, const std::string& field) {
  const auto found = state.find(field);
  return found != state.end() ? found->dump() : "not set";
}

// One error for each setting that makes the checkpoint another model's or another text's.
void check_same(const CheckedRun& run, const CheckpointReader& reader, const fs::path& checkpoint,
                Diagnostics& diagnostics) {
  const nlohmann::json& state = reader.state();
  const std::string help =
      "--fresh starts a new run; to continue this one, put the old value back "
      "(parallel.*, batch sizes and lr.* may change)";
  const nlohmann::json here = to_json(run.plan.model);
  // What an older version did not know yet is filled in by reading it.
  const nlohmann::json there = to_json(model_shape_from_json(state.at("model")));
  static const std::map<std::string, std::string> kKeys = {
      {"activation", "model.activation"},
      {"ffn", "model.ffn"},
      {"head_dim", "model.head_dim"},
      {"heads", "model.heads"},
      {"kv_heads", "model.kv_heads"},
      {"norm", "model.norm.type"},
      {"position", "model.position.type"},
      {"qk_norm", "model.qk_norm"},
      {"rope_base", "model.position.base"},
      {"rope_scaling", "model.position.scaling.type"},
      {"hidden", "model.hidden"},
      {"layers", "model.layers"},
      {"max_seq", "model.max_seq"},
      {"norm_eps", "model.norm.eps"},
      {"bias", "model.bias"},
      {"tie_embeddings", "model.tie_embeddings"},
      {"qkv_bias", "model.qkv_bias"},
      {"sliding_window", "model.sliding_window"},
      {"experts", "model.moe.experts"},
      {"experts_per_token", "model.moe.topk"},
      {"vocab", "data.tokenizer.type"}};
  nlohmann::json fields = here;
  fields.update(there);  // what is nothing is left out
  for (const auto& entry : fields.items()) {
    const std::string& field = entry.key();
    // How the vocabulary is padded is no part of the model, and the family follows from the rest.
    if (field == "vocab_pad_to" || field == "family") continue;
    const auto known = kKeys.find(field);
    const std::string key = known != kKeys.end() ? known->second : "model." + field;
    if (here.value(field, nlohmann::json()) == there.value(field, nlohmann::json())) continue;
    diagnostics.add({.code = "resume.mismatch",
                     .what = fmt::format("cannot resume: {} is {} here, {} in the checkpoint", key,
                                         in_words(here, field), in_words(there, field)),
                     .place = run.resolved.place_of(key),
                     .notes = {"the checkpoint is " + checkpoint.string()},
                     .help = help});
  }
  auto differs = [&](const char* key, const std::string& mine, const std::string& theirs) {
    if (mine == theirs) return;
    diagnostics.add({.code = "resume.mismatch",
                     .what = fmt::format("cannot resume: {} is {} here, {} in the checkpoint", key,
                                         mine, theirs),
                     .place = run.resolved.place_of(key),
                     .notes = {"the checkpoint is " + checkpoint.string()},
                     .help = help});
  };
  // Of these a checkpoint of version 0.1 says nothing: AdamW was the only optimizer.
  const TrainSpec& spec = run.resolved.spec;
  differs("optimizer.type", spec.optimizer.type, state.value("optimizer", "adamw"));
  differs("train.seed", std::to_string(spec.train.seed),
          std::to_string(state.value("seed", spec.train.seed)));
  if (run.corpus.tokenizer->to_json() != reader.tokenizer()) {
    diagnostics.add({.code = "resume.data",
                     .what = "cannot resume: the tokenizer has changed since the checkpoint",
                     .place = run.resolved.place_of("data.tokenizer.type"),
                     .notes = {"the checkpoint is " + checkpoint.string()},
                     .help = help});
  }
  const bool accept = spec.data.on_change == "accept";
  for (const DataDifference& difference :
       data_differences(run.corpus.identity(), state.at("data"))) {
    diagnostics.add(
        {.code = "resume.data",
         .what = fmt::format("{}: {}", accept ? "the run goes on with other data" : "cannot resume",
                             difference.what),
         .place = run.resolved.place_of(difference.key),
         .notes = {"the checkpoint is " + checkpoint.string()},
         .help = accept
                     ? fmt::format("nothing to do (data.on_change=accept): the first sequence is "
                                   "number {}, behind those that were consumed",
                                   state.value("samples", int64_t{0}))
                     : help + "; data.on_change=accept goes on with the new data",
         .severity = accept ? Diagnostic::Severity::warning : Diagnostic::Severity::error});
  }
}

// Whether what was read can go on to the plan: an unknown key beside it changes no value.
bool values_are_sound(const ResolvedSpec& resolved, const Diagnostics& diagnostics) {
  return resolved.complete &&
         std::all_of(diagnostics.all().begin(), diagnostics.all().end(), [](const Diagnostic& d) {
           return d.severity == Diagnostic::Severity::warning || d.code == "config.unknown_key";
         });
}

// The checkpoint of ours that init.from names: itself, or the newest one of a run or of the runs of
// a name. Nothing where there is none.
std::optional<fs::path> named_checkpoint(const std::string& name, const std::string& run_dir) {
  const fs::path path(name);
  if (fs::exists(path / "manifest.json")) return path;
  const std::vector<fs::path> runs = fs::exists(path / kCheckpoints) ? std::vector{path}
                                     : fs::exists(path)              ? runs_of(path)
                                                        : runs_of(fs::path(run_dir) / path);
  for (const fs::path& run : runs) {
    Diagnostics passed_over;
    const fs::path newest = newest_checkpoint(run / kCheckpoints, passed_over);
    if (!newest.empty() && !passed_over.has_errors()) return newest;
  }
  return std::nullopt;
}

// What init.from names is the model that the run trains.
void check_initial_weights(const ResolvedSpec& resolved, const ModelShape& model,
                           Diagnostics& diagnostics) {
  try {
    InitialWeights(resolved.spec.init.from)
        .check(
            model, [&](const std::string& key) { return resolved.place_of(key); }, diagnostics);
  } catch (const Error& error) {
    for (Diagnostic diagnostic : error.diagnostics()) {
      if (!diagnostic.place) diagnostic.place = resolved.place_of("init.from");
      diagnostics.add(std::move(diagnostic));
    }
  }
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
  if (!best && !every) return;
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

// Two launches in one run directory would write each other's checkpoints. The lock goes with the
// process, however it ends.
Fd lock_run(const fs::path& dir) {
  if (std::optional<Fd> lock = take_lock(dir / "lock")) return std::move(*lock);
  throw Error(
      Exit::environment,
      {.code = "run.busy",
       .what = dir.string() + " is being trained by another mtl launch",
       .help = "wait for it, stop it, or start a run of your own: run.name=..., or --fresh"});
}

DataFacts facts_of(const CheckedRun& run) {
  DataFacts facts{.vocab = 256, .sequences = 1};
  if (run.corpus.tokenizer == nullptr) return facts;
  facts.vocab = run.corpus.tokenizer->vocab_size();
  const int64_t seq_len = run.resolved.spec.train.seq_len;
  if (seq_len > 0) facts.sequences = (run.corpus.train_tokens - 1) / seq_len;
  return facts;
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
    if (request.memory && spec.train.micro_batch == 0 && !diagnostics.has_errors()) {
      if (const auto memory = request.memory()) choose_micro_batch(run, facts, *memory);
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
    if (!spec.init.from.empty() && run.corpus.tokenizer && !diagnostics.has_errors()) {
      // Found once: for a rank, or another start, the newest one may be another.
      if (const auto checkpoint = named_checkpoint(spec.init.from, spec.run.dir)) {
        run.resolved.spec.init.from = checkpoint->string();
      }
      check_initial_weights(run.resolved, run.plan.model, data);
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

RunDirectory open_run(const CheckedRun& run, std::optional<bool> arenas_on_host, int nodes) {
  if (arenas_on_host) check_memory(run, *arenas_on_host, nodes);
  const TrainSpec& spec = run.resolved.spec;
  const fs::path name_dir = fs::path(spec.run.dir) / spec.run.name;
  RunDirectory opened;
  if (spec.checkpoint.resume != "never") {
    for (const fs::path& candidate : runs_of(name_dir)) {
      Fd lock = lock_run(candidate);
      Diagnostics passed_over;
      const fs::path checkpoint =
          newest_intact_checkpoint(candidate / kCheckpoints, Damaged::set_aside, passed_over);
      passed_over.throw_if_errors(Exit::data);
      for (const Diagnostic& warning : passed_over.all()) opened.warnings.push_back(warning);
      if (checkpoint.empty()) continue;
      const CheckpointReader reader(checkpoint);
      const nlohmann::json& state = reader.state();
      Diagnostics mismatches;
      check_same(run, reader, checkpoint, mismatches);
      mismatches.throw_if_errors(Exit::config);
      for (const Diagnostic& warning : mismatches.all()) opened.warnings.push_back(warning);
      opened.lock = std::move(lock);
      opened.dir = candidate;
      opened.checkpoint = checkpoint;
      const Consumed consumed = consumed_by(state, run.plan);
      opened.resume_step = consumed.step;
      opened.resume_samples = consumed.samples;
      opened.complete = is_complete(run, consumed);
      break;
    }
    if (spec.checkpoint.resume == "must" && opened.checkpoint.empty()) {
      throw Error(Exit::data,
                  {.code = "resume.missing",
                   .what = "there is no checkpoint to resume from under " + name_dir.string(),
                   .place = run.resolved.place_of("checkpoint.resume"),
                   .help = "start the run with checkpoint.resume=auto"});
    }
  }
  if (opened.complete) return opened;
  if (opened.dir.empty()) opened.dir = name_dir / new_run_id();
  make_directories(opened.dir / "logs");
  make_directories(opened.dir / kCheckpoints);
  if (!opened.lock) opened.lock = lock_run(opened.dir);
  write_file_atomic(opened.dir / "train.yaml", run.resolved.source);
  write_file_atomic(opened.dir / "env.json", environment_json().dump(1) + "\n");
  write_file_atomic(opened.dir / "tokenizer.json", run.corpus.tokenizer->to_json().dump() + "\n");
  return opened;
}

int64_t begin_generation(const fs::path& dir, CheckedRun& run) {
  go_on_from_newest(dir, run);
  const int64_t fence = fence_of(dir) + 1;
  write_file_atomic(dir / kFence, std::to_string(fence) + "\n");
  fence_off_attempts(dir / kCheckpoints, fence);
  write_file_atomic(dir / "resolved.yaml", resolved_text(run));
  write_file_atomic(dir / "plan.json", to_json(run.plan).dump(1) + "\n");
  return fence;
}

void check_fence(const fs::path& dir, int64_t fence) {
  const int64_t newest = fence > 0 ? fence_of(dir) : 0;
  if (newest <= fence) return;
  throw Error(
      Exit::run_failed,
      {.code = "ckpt.fenced",
       .what = fmt::format("the run in {} has gone on without this rank: it is at its start "
                           "number {}, we are of number {}",
                           dir.string(), newest, fence),
       .help = "nothing to do: this rank was given up (its machine was cut off) and its "
               "work has been done again by others"});
}

fs::path find_run(const std::string& text) {
  const fs::path path(text);
  for (const char* mark : {"manifest.json", "resolved.yaml", kCheckpoints}) {
    if (fs::exists(path / mark)) return path;
  }
  for (const fs::path& candidate : {path, fs::path("runs") / path}) {
    const std::vector<fs::path> runs = runs_of(candidate);
    if (!runs.empty()) return runs.front();
  }
  throw Error(
      Exit::data,
      {.code = "run.missing",
       .what = fmt::format("'{}' is neither a run, nor the name of one, nor a checkpoint", text),
       .help = "give a directory such as runs/NAME or runs/NAME/ID"});
}

namespace {

template <typename Newest>
fs::path checkpoint_of(const fs::path& run, Newest newest) {
  if (fs::exists(run / "manifest.json")) return run;
  Diagnostics passed_over;
  const fs::path found = newest(run / kCheckpoints, passed_over);
  passed_over.throw_if_errors(Exit::data);
  for (const Diagnostic& warning : passed_over.all()) fmt::print(stderr, "{}", render(warning));
  if (found.empty()) {
    throw Error(Exit::data, {.code = "ckpt.missing",
                             .what = run.string() + " has no complete checkpoint",
                             .help = fmt::format("see: mtl ckpt ls {}; mtl launch {} goes on "
                                                 "training",
                                                 run.string(), (run / "train.yaml").string())});
  }
  return found;
}

}  // namespace

fs::path find_checkpoint(const std::string& text) {
  return checkpoint_of(find_run(text), newest_checkpoint);
}

fs::path find_intact_checkpoint(const std::string& text) {
  return checkpoint_of(find_run(text), [](const fs::path& folder, Diagnostics& passed_over) {
    return newest_intact_checkpoint(folder, Damaged::pass_over, passed_over);
  });
}

KeepRules keep_rules(const TrainSpec::Checkpoint& settings) {
  return {.last = settings.keep_last,
          .every = settings.keep_every,
          .best = settings.keep_best.k,
          .metric = settings.keep_best.metric,
          .lowest = settings.keep_best.mode == "min"};
}

KeepRules keep_rules_of_run(const fs::path& dir) {
  const fs::path yaml = dir / "resolved.yaml";
  if (!fs::exists(yaml)) return {};
  Diagnostics diagnostics;
  const ResolvedSpec resolved = load_spec({.train_yaml = yaml.string()}, diagnostics);
  return diagnostics.has_errors() ? KeepRules{} : keep_rules(resolved.spec.checkpoint);
}

}  // namespace mtl
