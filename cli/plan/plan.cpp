// mtl plan: what a run needs, before it starts; how fast it would be elsewhere; which layout to
// take.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <tuple>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch_flags.h"
#include "cli/plan/plan_forecast.h"
#include "cli/plan/plan_machines.h"
#include "cli/plan/plan_text.h"
#include "cli/plan/plan_words.h"
#include "cli/run_request.h"
#include "common/error.h"
#include "common/files.h"
#include "common/same_file.h"
#include "common/terminal.h"
#include "common/yaml.h"
#include "common/yaml_edit.h"
#include "runtime/plan/forecast/forecast_json.h"
#include "runtime/plan/schedule/schedule_drawing.h"

namespace mtl {

namespace {

struct Wanted {
  RunOptions options;
  std::string train_yaml;
  std::vector<std::string> settings;
  std::string svg;
  bool json = false;
  MachinesGiven machines;
  bool tune = false, write = false, only_run_here = false;
  bool simulate = false;
  std::string stragglers;
  double jitter = 0;
  int64_t seed = 1;
  Failures failures;
};

void declare(CommandLine& line, Wanted& wanted) {
  line.example("mtl plan train.yaml", "one process");
  line.example("mtl plan --num_processes 8 train.yaml parallel.tp=2", "8 ranks, 4 data x 2 tensor");
  line.example("mtl plan --num_processes 4 --svg step.svg train.yaml parallel.pp=4",
               "a pipeline, drawn");
  line.example("mtl plan --json train.yaml | jq .cost", "for programs");
  line.example("mtl plan --gpus 1024 --gpu-type h100-80g train.yaml", "and how fast it would be");
  line.example("mtl plan --tune --gpus 64 --write train.yaml", "the best layout, into the file");
  line.positional("train.yaml", wanted.train_yaml, "what to train");
  line.rest("key=value", wanted.settings, "settings that win over train.yaml: train.steps=2000");
  declare_plan_flags(line, wanted.options.given.flags);
  line.group("On other machines");
  line.option("gpus", "N", wanted.machines.gpus, 1,
              "forecast on so many GPUs: step time, MFU, days");
  line.option("nodes", "M", wanted.machines.nodes, 1, "or on so many nodes");
  line.option("gpu-type", "TYPE", wanted.machines.gpu_type,
              fmt::format("{}, or cpu: this machine's, measured", fmt::join(cluster_types(), ", ")),
              "h100-80g");
  line.group("Advice");
  line.flag("tune", wanted.tune,
            "search tp, pp, virtual stages, cp, ep, ZeRO, micro-batch and "
            "recompute: the five best, and why");
  line.flag("only-run-here", wanted.only_run_here,
            "with --tune: leave out what this engine does "
            "not run yet");
  line.flag("write", wanted.write,
            "with --tune: write the best that this engine runs into "
            "train.yaml; comments stay");
  line.group("Simulation");
  line.flag("simulate", wanted.simulate,
            "execute a step event by event, and failures over the run");
  line.option("straggler", "RANK:FACTOR", wanted.stragglers,
              "ranks that compute so many times longer: 37:1.2,90:1.5");
  line.option("jitter", "SHARE", wanted.jitter, 0,
              "every rank is slower by |x|, x normal with this deviation: 0.02");
  line.option("seed", "N", wanted.seed, 0, "of jitter and failures", "1");
  line.option("mtbf", "HOURS", wanted.failures.mtbf_hours, 0.001,
              "hours of a GPU between failures (Llama 3's)", "50700");
  line.option("checkpoint-time", "SECONDS", wanted.failures.checkpoint_s, 0.001,
              "that a checkpoint stops training for", "60");
  line.option("restart-time", "SECONDS", wanted.failures.restart_s, 0,
              "from a failure to the first "
              "step again",
              "300");
  line.group("Output");
  line.option("svg", "FILE", wanted.svg, "also draws the schedule of a step as a picture");
  line.flag("json", wanted.json, "one JSON document, schema mtl.plan/2");
}

std::string svg_title(const CheckedRun& run) {
  return fmt::format("{}: {}", run.resolved.spec.run.name,
                     schedule_words(run.plan.largest().shape));
}

void draw(const Wanted& wanted, const CheckedRun& run) {
  if (wanted.svg.empty()) return;
  const StepSchedule& step = run.plan.largest();
  write_file_atomic(wanted.svg, schedule_svg(step.shape, step.facts, svg_title(run)));
  fmt::print(stderr, "schedule drawn in {}\n", wanted.svg);
}

// The layout of a run, and what of its communication is to run beside computation.
LayoutChoice with_overlap(LayoutChoice layout, const CheckedRun& run) {
  const TrainSpec::Parallel::Overlap& overlap = run.resolved.spec.parallel.overlap;
  layout.overlap_data = overlap.grad_reduce;
  layout.overlap_gather = overlap.param_gather != "false";
  layout.overlap_send = overlap.p2p;
  layout.overlap_input = overlap.tp != "false";
  return layout;
}

LayoutChoice layout_of_run(const CheckedRun& run) {
  return with_overlap(layout_of(run.plan), run);
}

Workload work_of_run(const CheckedRun& run) {
  Workload work = workload_of(run.plan);
  work.beside = beside_steps(run);
  return work;
}

struct Simulated {
  ClusterStep step;
  Goodput run;
};

Simulated simulated(const Wanted& wanted, const Workload& work, const Forecast& plan,
                    const Cluster& cluster, const Stragglers& stragglers) {
  Simulated result;
  result.step = simulate_cluster(work, plan.layout, cluster, stragglers);
  const double tokens = static_cast<double>(work.global_batch * work.seq);
  Failures failures = wanted.failures;
  failures.seed = static_cast<uint64_t>(wanted.seed);
  // What it does between two checkpoints is lost with a failure, evaluations too.
  const double run_s =
      result.step.seconds * work.total_tokens / tokens + plan.run.evaluations + plan.run.texts;
  result.run = goodput(plan.layout.world(), result.step.seconds, run_s, failures);
  return result;
}

Stragglers stragglers_of(const Wanted& wanted, int world) {
  Stragglers stragglers = parse_stragglers(wanted.stragglers, world);
  stragglers.jitter = wanted.jitter;
  stragglers.seed = static_cast<uint64_t>(wanted.seed);
  return stragglers;
}

int show_plan(const Wanted& wanted, std::optional<int> world) {
  const PreparedRun run = prepare_run(wanted.options, wanted.train_yaml, wanted.settings, world);
  print_warnings(run.warnings);
  const Plan& plan = run.checked.plan;
  draw(wanted, run.checked);
  const int columns = terminal_columns(STDOUT_FILENO);
  nlohmann::json json;
  std::string text;
  if (wanted.json) {
    json = to_json(plan);
  } else {
    text = plan_text(plan, columns, beside_steps(run.checked));
  }
  if (wanted.machines.any() || wanted.simulate) {
    const Cluster cluster = machines_given(wanted.machines, plan.compute, run.world);
    const Workload work = work_of_run(run.checked);
    const Forecast planned =
        forecast(work, layout_of_run(run.checked), cluster, software_mtl(), true);
    if (wanted.json) {
      json["machines"] = to_json(cluster);
      json["forecast"] = to_json(planned);
      if (const std::optional<Forecast> theirs = forecast_at_scale(work, planned.layout, cluster)) {
        json["forecast_at_scale"] = to_json(*theirs);
      }
    } else {
      text += forecast_text(work, planned, cluster, columns);
    }
    if (wanted.simulate) {
      const Stragglers stragglers = stragglers_of(wanted, run.world);
      const Simulated result = simulated(wanted, work, planned, cluster, stragglers);
      if (wanted.json) {
        json["simulation"] = to_json(result.step);
        json["goodput"] = to_json(result.run);
      } else {
        text += simulation_text(result.step, result.run, wanted.failures, stragglers, columns);
      }
    }
  }
  fmt::print("{}{}", text, wanted.json ? json.dump(2) + '\n' : "");
  return 0;
}

// The layout that --tune begins with, which is one for any model: the layout in train.yaml may be
// impossible for so many ranks.
std::vector<std::string> without_layout(std::vector<std::string> settings) {
  for (const char* plain :
       {"parallel.tp=1", "parallel.cp=1", "parallel.ep=1", "parallel.pp=1", "parallel.dp=auto",
        "parallel.virtual_stages=1", "parallel.virtual_group=auto", "parallel.stage_layout=uniform",
        "parallel.schedule=1f1b", "parallel.sp=auto", "parallel.zero=1", "parallel.zero_ranks=auto",
        "parallel.bucket_mb=auto", "train.micro_batch=1", "recompute.mode=none",
        "recompute.method=auto", "recompute.layers=auto", "recompute.modules=[core_attn]",
        "recompute.distribute=false"}) {
    settings.emplace_back(plain);
  }
  return settings;
}

// Settings that a file has and that belonged to its old layout go back to what is built in.
void add_leftovers(const std::string& text, const std::string& path,
                   std::vector<std::pair<std::string, std::string>>& settings) {
  Diagnostics diagnostics;
  const YamlValue root = parse_yaml(text, path, diagnostics);
  for (const auto& [section, key, value] :
       {std::tuple("parallel", "dp", "auto"), std::tuple("parallel", "virtual_group", "auto"),
        std::tuple("parallel", "schedule", "1f1b"), std::tuple("parallel", "sp", "auto"),
        std::tuple("parallel", "stage_layout", "uniform"),
        std::tuple("parallel", "zero_ranks", "auto"), std::tuple("parallel", "bucket_mb", "auto"),
        std::tuple("recompute", "method", "auto"), std::tuple("recompute", "layers", "auto"),
        std::tuple("recompute", "distribute", "false"),
        std::tuple("recompute", "modules", "[core_attn]")}) {
    const YamlValue* map = root.find(section);
    const std::string name = fmt::format("{}.{}", section, key);
    const bool set = std::any_of(settings.begin(), settings.end(),
                                 [&](const auto& setting) { return setting.first == name; });
    if (map != nullptr && map->find(key) != nullptr && !set) settings.emplace_back(name, value);
  }
}

void write_advice(const Wanted& wanted, const Workload& work, const Tuning& tuning, int gpus) {
  const LayoutChoice* chosen = nullptr;
  for (const Advice& advice : tuning.best) {
    if (chosen == nullptr && advice.forecast.not_run.empty()) chosen = &advice.forecast.layout;
  }
  if (chosen == nullptr && tuning.run_here) chosen = &tuning.run_here->forecast.layout;
  if (chosen == nullptr) {
    std::set<std::string> not_run = tuning.left_out;
    for (const Advice& advice : tuning.best) {
      not_run.insert(advice.forecast.not_run.begin(), advice.forecast.not_run.end());
    }
    if (!tuning.indivisible.empty()) {
      throw Error(Exit::config,
                  Diagnostic{.code = "plan.no_layout",
                             .what = fmt::format("no layout of {} ranks divides the model and its "
                                                 "batch, so nothing is written",
                                                 gpus),
                             .notes = {"with data parallelism alone: " + tuning.indivisible},
                             .help = "give another number of GPUs, or another train.global_batch"});
    }
    // Memory is no reason where nothing was looked at, or something fits that is not run.
    if (tuning.considered == 0 || !tuning.best.empty()) {
      throw Error(Exit::config,
                  Diagnostic{.code = "plan.no_layout",
                             .what = "this engine runs no layout of this run on such GPUs, so "
                                     "nothing is written",
                             .notes = {fmt::format("it does not run {}", fmt::join(not_run, ", "))},
                             .help = "use another --gpu-type or precision.dtype"});
    }
    throw Error(Exit::config,
                Diagnostic{.code = "plan.nothing_fits",
                           .what = "no layout that this engine runs fits, so nothing is written",
                           .help = tuning.offloaded
                                       ? "set optimizer.offload=cpu, or give more GPUs, GPUs with "
                                         "more memory, or a smaller model"
                                       : "give more GPUs, GPUs with more memory, or a smaller "
                                         "model"});
  }
  Diagnostics diagnostics;
  const std::string text = read_file(wanted.train_yaml);
  auto settings = settings_of(work, *chosen);
  add_leftovers(text, wanted.train_yaml, settings);
  const std::string changed = set_yaml_values(text, wanted.train_yaml, settings, diagnostics);
  diagnostics.throw_if_errors();
  write_file_atomic(wanted.train_yaml, changed);
  fmt::print(stderr, "written into {}: {}\n", wanted.train_yaml, layout_words(*chosen));
}

// With accumulate the batch follows from the layout, and each would train another run.
void require_batch(const ResolvedSpec& resolved) {
  if (resolved.spec.train.accumulate.empty()) return;
  throw Error(Exit::config,
              {.code = "plan.accumulate",
               .what = "--tune needs train.global_batch: with train.accumulate every layout has "
                       "another batch, and they cannot be compared",
               .place = resolved.place_of("train.accumulate"),
               .help = "set train.global_batch to the sequences of a step, and leave "
                       "train.accumulate out"});
}

int advise(const Wanted& wanted, std::optional<int> world) {
  // What train.yaml asks for, where it can run; its layout may be impossible.
  std::optional<PreparedRun> asked;
  try {
    asked = prepare_run(wanted.options, wanted.train_yaml, wanted.settings, world);
  } catch (const Error&) {
  }
  const bool as_asked = asked && !world;
  const PreparedRun base =
      as_asked ? std::move(*asked)
               : prepare_run(wanted.options, wanted.train_yaml, without_layout(wanted.settings),
                             world ? std::optional(1) : std::nullopt);
  const Plan& plan = base.checked.plan;
  require_batch(base.checked.resolved);
  const int gpus = world ? *world : base.world;
  const Cluster cluster = machines_given(wanted.machines, plan.compute, gpus);
  Workload work = work_of_run(base.checked);
  // Also of phases that would begin after the last step: the rules check these, too.
  for (const auto& [step, batch] : base.checked.resolved.spec.train.batch_ramp) {
    work.other_batches.push_back(batch);
  }
  LayoutChoice like = with_overlap({}, base.checked);
  like.float8 = plan.float8;
  const Tuning tuning =
      tune(work, gpus, cluster, {.only_run_here = wanted.only_run_here, .like = like});
  std::optional<Forecast> given;
  if (as_asked) {
    given = forecast(work, layout_of_run(base.checked), cluster, software_mtl(), true);
  } else if (asked) {
    given = forecast(work_of_run(asked->checked), layout_of_run(asked->checked), cluster,
                     software_mtl(), true);
  }
  const Stragglers stragglers = stragglers_of(wanted, gpus);
  std::optional<Simulated> simulation;
  if (wanted.simulate && !tuning.best.empty()) {
    simulation = simulated(wanted, work, tuning.best.front().forecast, cluster, stragglers);
  }
  if (wanted.json) {
    nlohmann::json json = {{"schema", "mtl.plan-advice/1"},
                           {"gpus", gpus},
                           {"machines", to_json(cluster)},
                           {"tune", to_json(tuning)}};
    if (given) json["given"] = to_json(*given);
    if (simulation) {
      json["simulation"] = to_json(simulation->step);
      json["goodput"] = to_json(simulation->run);
    }
    fmt::print("{}\n", json.dump(2));
  } else {
    const int columns = terminal_columns(STDOUT_FILENO);
    std::string text = tuning_text(tuning, given ? &*given : nullptr, cluster, gpus, columns);
    if (!tuning.best.empty()) {
      text += forecast_text(work, tuning.best.front().forecast, cluster, columns);
    }
    if (simulation) {
      text +=
          simulation_text(simulation->step, simulation->run, wanted.failures, stragglers, columns);
    }
    fmt::print("{}", text);
  }
  if (wanted.write) write_advice(wanted, work, tuning, gpus);
  return tuning.best.empty() ? static_cast<int>(Exit::config) : 0;
}

void need(bool given, bool with, const char* option, const char* needs) {
  if (!given || with) return;
  throw Error(Exit::usage, Diagnostic{.code = "usage.option",
                                      .what = fmt::format("{} goes with {}", option, needs),
                                      .help = fmt::format("add {}, or leave it out", needs)});
}

// A drawing in the place of the settings that it shows would be all that is left of them.
void refuse_settings(const Wanted& wanted) {
  std::vector<std::string> read = {wanted.train_yaml};
  for (const char* file : {"config_file", "hostfile"}) {
    const auto given = wanted.options.given.flags.find(file);
    if (given != wanted.options.given.flags.end()) read.push_back(given->second.texts.back());
  }
  for (const std::string& file : read) {
    if (!same_regular_file(file, wanted.svg)) continue;
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.value",
                           .what = fmt::format("--svg {} would replace {}, which the plan is made "
                                               "from",
                                               wanted.svg, file),
                           .help = "name another file for the drawing, such as step.svg"});
  }
}

// Beyond, sums are no numbers any more.
void at_most(double value, double most, const char* option) {
  if (value <= most) return;
  throw Error(Exit::usage, Diagnostic{.code = "usage.value",
                                      .what = fmt::format("{} {} is too much", option, value),
                                      .help = fmt::format("use at most {}", most)});
}

}  // namespace

int command_plan(const Arguments& args) {
  Wanted wanted;
  wanted.options.plan_only = true;
  CommandLine line({"plan [options] train.yaml [key=value ...]"},
                   "Checks a run and prints its plan: the grid of ranks, which stage holds which "
                   "layers, memory and bytes on each link per rank, and the schedule with its "
                   "bubble. What cannot run is an error that names what can. With --gpus, --nodes "
                   "or --gpu-type also what it would take on machines that are not at hand; with "
                   "--tune which layout to take there. Starts nothing.");
  declare(line, wanted);
  if (!line.parse(args)) return 0;
  need(wanted.write, wanted.tune, "--write", "--tune");
  need(wanted.only_run_here, wanted.tune, "--only-run-here", "--tune");
  need(!wanted.stragglers.empty(), wanted.simulate, "--straggler", "--simulate");
  need(wanted.jitter > 0, wanted.simulate, "--jitter", "--simulate");
  if (wanted.tune && !wanted.svg.empty()) {
    throw Error(
        Exit::usage,
        Diagnostic{.code = "usage.option",
                   .what = "--svg draws the schedule of one layout, and --tune compares many",
                   .help = "with --write, draw what was written: mtl plan --svg FILE "
                           "train.yaml"});
  }
  refuse_settings(wanted);
  at_most(wanted.jitter, 1e3, "--jitter");
  at_most(wanted.failures.mtbf_hours, 1e12, "--mtbf");
  at_most(wanted.failures.checkpoint_s, 1e9, "--checkpoint-time");
  at_most(wanted.failures.restart_s, 1e9, "--restart-time");
  if (const auto& flags = wanted.options.given.flags;
      wanted.machines.gpus || wanted.machines.nodes) {
    for (const char* name : {"num_processes", "nproc_per_node", "num_machines"}) {
      const auto given = flags.find(name);
      if (given == flags.end()) continue;
      throw Error(Exit::usage,
                  Diagnostic{.code = "usage.option",
                             .what = fmt::format("{} and {} both say how many ranks there are",
                                                 given->second.origin,
                                                 wanted.machines.gpus ? "--gpus" : "--nodes"),
                             .help = "give one of them"});
    }
  }
  read_launch_environment(wanted.options.given);
  const std::optional<int> world = ranks_given(wanted.machines);
  return wanted.tune ? advise(wanted, world) : show_plan(wanted, world);
}

}  // namespace mtl
