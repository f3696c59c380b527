// mtl plan: what a run needs, before it starts.
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch_flags.h"
#include "cli/plan_text.h"
#include "cli/plan_words.h"
#include "cli/run_request.h"
#include "common/files.h"
#include "common/terminal.h"
#include "runtime/plan/schedule_drawing.h"

namespace mtl {

namespace {

std::string svg_title(const CheckedRun& run) {
  return fmt::format("{}: {}", run.resolved.spec.run.name,
                     schedule_words(run.plan.largest().shape));
}

}  // namespace

int command_plan(const Arguments& args) {
  RunOptions options;
  options.plan_only = true;
  std::string train_yaml;
  std::vector<std::string> settings;
  std::string svg;
  bool json = false;
  CommandLine line({"plan [options] train.yaml [key=value ...]"},
                   "Checks a run and prints its plan: the grid of ranks, which stage holds which "
                   "layers, memory and bytes on each link per rank, and the schedule with its "
                   "bubble. What cannot run is an error that names what can. Starts nothing.");
  line.example("mtl plan train.yaml", "one process");
  line.example("mtl plan --num_processes 8 train.yaml parallel.tp=2", "8 ranks, 4 data x 2 tensor");
  line.example("mtl plan --num_processes 4 --svg step.svg train.yaml parallel.pp=4",
               "a pipeline, drawn");
  line.example("mtl plan --json train.yaml | jq .cost", "for programs");
  line.positional("train.yaml", train_yaml, "what to train");
  line.rest("key=value", settings, "settings that win over train.yaml: train.steps=2000");
  declare_plan_flags(line, options.given.flags);
  line.group("Output");
  line.option("svg", "FILE", svg, "also draws the schedule of a step as a picture");
  line.flag("json", json, "one JSON document, schema mtl.plan/2");
  if (!line.parse(args)) return 0;
  read_launch_environment(options.given);
  const PreparedRun run = prepare_run(options, train_yaml, settings);
  print_warnings(run.warnings);
  const Plan& plan = run.checked.plan;
  if (!svg.empty()) {
    const StepSchedule& step = plan.largest();
    write_file_atomic(svg, schedule_svg(step.shape, step.facts, svg_title(run.checked)));
    fmt::print(stderr, "schedule drawn in {}\n", svg);
  }
  if (json) {
    fmt::print("{}\n", to_json(plan).dump(2));
  } else {
    fmt::print("{}", plan_text(plan, terminal_columns(STDOUT_FILENO)));
  }
  return 0;
}

}  // namespace mtl
