// mtl plan: what a run needs, before it starts.
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/plan_text.h"
#include "cli/run_request.h"

namespace mtl {

int command_plan(const Arguments& args) {
  RunOptions options;
  std::string train_yaml;
  std::vector<std::string> settings;
  bool json = false;
  CommandLine line({"plan [options] train.yaml [key=value ...]"},
                   "Checks a run and prints its plan: the grid of ranks, parameters, memory per "
                   "rank, FLOPs, the schedule and what goes over the links. Starts nothing.");
  line.example("mtl plan train.yaml", "one process");
  line.example("mtl plan --num_processes 8 train.yaml parallel.tp=2", "8 ranks, 4 data x 2 tensor");
  line.example("mtl plan --json train.yaml | jq .cost", "for programs");
  line.positional("train.yaml", train_yaml, "what to train");
  line.rest("key=value", settings, "settings that win over train.yaml: train.steps=2000");
  declare_where_to_run(line, options);
  line.group("Output");
  line.flag("json", json, "one JSON document, schema mtl.plan/2");
  if (!line.parse(args)) return 0;
  const PreparedRun run = prepare_run(options, train_yaml, settings);
  print_warnings(run.warnings);
  if (json) {
    fmt::print("{}\n", to_json(run.checked.plan).dump(2));
  } else {
    fmt::print("{}", plan_text(run.checked.plan));
  }
  return 0;
}

}  // namespace mtl
