#include "runtime/run_directory.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <unistd.h>
#include <utility>

#include <sys/utsname.h>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/file_field.h"
#include "common/file_lock.h"
#include "common/version.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/find_run.h"
#include "runtime/metrics/reporter.h"
#include "runtime/metrics/run_state.h"
#include "runtime/plan/shape_settings.h"
#include "runtime/run_length.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFence = "fence";

// The number in the fence file; 0 = none.
int64_t fence_of(const fs::path& dir) {
  int64_t fence = 0;
  std::ifstream in(dir / kFence);
  in >> fence;
  return fence;
}

nlohmann::json environment_json() {
  utsname system{};
  uname(&system);
  return {{"mtl", version()},
          {"host", system.nodename},
          {"kernel", system.release},
          {"cpu", file_field("/proc/cpuinfo", "model name", ':')},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory", file_field("/proc/meminfo", "MemTotal", ':')}};
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

std::string setting_of(const std::string& field) {
  if (field == "vocab") return "data.tokenizer.type";
  for (const auto& [name, key] : kShapeSettings) {
    if (field == name) return key;
  }
  if (field.starts_with("lora_")) return "lora." + field.substr(5);
  return "model." + field;
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
  const std::string help_with_weights = fmt::format(
      "--fresh with init.from={} starts a new run with these weights; to continue this "
      "one, put the old value back",
      checkpoint.string());
  const auto fail = [&](const char* code, const std::string& what, const std::string& key) {
    diagnostics.add({.code = code,
                     .what = fmt::format("cannot resume: {}", what),
                     .place = run.resolved.place_of(key),
                     .notes = {"the checkpoint is " + checkpoint.string()},
                     .help = key == "optimizer.type" ? help_with_weights : help});
  };
  const auto differ = [&](const std::string& words, const std::string& key, const std::string& mine,
                          const std::string& theirs) {
    if (mine == theirs) return;
    fail("resume.mismatch", fmt::format("{} is {} here, {} in the checkpoint", words, mine, theirs),
         key);
  };
  const TrainSpec& spec = run.resolved.spec;
  const bool same_tokenizer = run.corpus.tokenizer->to_json() == reader.tokenizer();
  nlohmann::json fields = here;
  fields.update(there);  // what is nothing is left out
  for (const auto& entry : fields.items()) {
    const std::string& field = entry.key();
    // How the vocabulary is padded is no part of the model, and the family follows from the rest.
    if (field == "vocab_pad_to" || field == "family") continue;
    if (field == "vocab" && !same_tokenizer) continue;  // told below
    const std::string key = setting_of(field);
    // Who has changed the one has not written the other.
    const bool follows = field == "max_seq" && spec.model.max_seq == 0;
    differ(follows ? key + " (as train.seq_len)" : key, follows ? "train.seq_len" : key,
           in_words(here, field), in_words(there, field));
  }
  // Of these a checkpoint of version 0.1 says nothing: AdamW was the only optimizer.
  differ("optimizer.type", "optimizer.type", spec.optimizer.type,
         state.value("optimizer", "adamw"));
  differ("train.seed", "train.seed", std::to_string(spec.train.seed),
         std::to_string(state.value("seed", spec.train.seed)));
  if (!same_tokenizer) {
    fail(
        "resume.data",
        fmt::format("the tokenizer has changed since the checkpoint: its vocabulary is {} here, {} "
                    "there",
                    in_words(here, "vocab"), in_words(there, "vocab")),
        "data.tokenizer.type");
  }
  const bool whole =
      std::any_of(reader.chunks().begin(), reader.chunks().end(), [](const ChunkRecord& chunk) {
        return chunk.file.starts_with("base-") && chunk.dtype == "F32";
      });
  if (whole && run.plan.compute != DType::f32) {
    diagnostics.add({.code = "resume.rounds",
                     .what = fmt::format("the model beside the adapters is in fp32 in the "
                                         "checkpoint, and goes on in {}, for good",
                                         compute_name(run.plan.compute)),
                     .place = run.resolved.place_of("precision.dtype"),
                     .notes = {"the checkpoint is " + checkpoint.string()},
                     .help = "nothing, if that is wanted: later checkpoints have it so, too",
                     .severity = Diagnostic::Severity::warning});
  }
  const bool accept = spec.data.on_change == "accept";
  for (const DataDifference& difference :
       data_differences(run.corpus.identity(), state.at("data"))) {
    // Of the same text another tokenizer makes other tokens.
    if (difference.key == "data.train" && !same_tokenizer) continue;
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

}  // namespace

std::string run_id(std::chrono::system_clock::time_point when) {
  // In the order of their codes.
  static constexpr std::string_view kLetters = "23456789abcdefghjkmnpqrstvwxyz";
  constexpr size_t kCount = kLetters.size();
  const auto second = std::chrono::floor<std::chrono::seconds>(when);
  const auto micros = static_cast<size_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(when - second).count());
  const size_t part = micros * kCount * kCount / 1'000'000;
  std::random_device random;
  std::uniform_int_distribution<size_t> letter(0, kCount - 1);
  return fmt::format("{:%Y%m%d-%H%M%S}-{}{}{}{}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(second)),
                     kLetters[part / kCount], kLetters[part % kCount], kLetters[letter(random)],
                     kLetters[letter(random)]);
}

namespace {

[[noreturn]] void refuse_busy(const fs::path& dir) {
  throw Error(
      Exit::environment,
      {.code = "run.busy",
       .what = dir.string() + " is being trained by another mtl launch",
       .help = "wait for it, stop it, or start a run of your own: run.name=..., or --fresh"});
}

// A directory of its own, locked. Unless a new one is asked for each time, a run of that name which
// somebody works in is the same launch once more, that has begun since we looked.
void begin_run(const fs::path& name_dir, bool resumes, RunDirectory& opened) {
  const Fd alone = lock_directory_of(name_dir);
  std::error_code ignored;
  if (resumes) {
    for (const auto& entry : fs::directory_iterator(name_dir, ignored)) {
      if (is_locked(entry.path() / kRunLock).value_or(false)) refuse_busy(entry.path());
    }
  }
  opened.dir = name_dir / run_id(std::chrono::system_clock::now());
  make_directories(opened.dir);
  opened.lock = lock_run(opened.dir);
}

}  // namespace

// Two launches in one run directory would write each other's checkpoints. The lock goes with the
// process, however it ends.
Fd lock_run(const fs::path& dir) {
  if (std::optional<Fd> lock = take_lock(dir / kRunLock)) return std::move(*lock);
  refuse_busy(dir);
}

RunDirectory open_run(const CheckedRun& run, std::optional<bool> arenas_on_host, int nodes,
                      const std::function<void()>& before_writing) {
  if (arenas_on_host) check_memory(run, *arenas_on_host, nodes);
  const TrainSpec& spec = run.resolved.spec;
  const fs::path name_dir = fs::path(spec.run.dir) / spec.run.name;
  RunDirectory opened;
  const bool resumes = spec.checkpoint.resume != "never";
  if (resumes) {
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
      opened.complete = is_complete(run, consumed) && !state.contains(kEvaluationLeft);
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
  if (before_writing) before_writing();
  if (opened.dir.empty()) begin_run(name_dir, resumes, opened);
  make_directories(opened.dir / "logs");
  make_directories(opened.dir / kCheckpoints);
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
  record_start(dir);
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
