// mtl worker RUN_DIR | train.yaml: one rank of a run, or all of a machine as threads, started by
// `mtl launch`, srun, mpirun, torchrun, or by hand with RANK and WORLD_SIZE. Not shown in the
// overview.
#include "runtime/worker.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/run_request.h"
#include "runtime/run_directory.h"

namespace mtl {

namespace {

WorkerStart start_of_train_yaml(const std::string& train_yaml,
                                const std::vector<std::string>& settings) {
  RunOptions options;
  Diagnostics wrong;
  options.given.environment = flags_in_environment(environ, wrong);
  wrong.throw_if_errors();
  // Who runs where has been decided by whoever has started the ranks.
  for (const char* name : {"nnodes", "num_machines", "machine_rank", "nproc_per_node",
                           "num_processes", "main_process_ip", "main_process_port", "rdzv_endpoint",
                           "rdzv_backend", "hosts", "hostfile", "via"}) {
    options.given.environment.erase(name);
  }
  // Where the ranks meet follows from the settings alone; the data is rank 0's to check first.
  SpecSources sources;
  sources.train_yaml = train_yaml;
  sources.overrides = overrides(options, settings);
  sources.environment = settings_in_environment(environ);
  Diagnostics diagnostics;
  const TrainSpec spec = load_spec(sources, diagnostics).spec;
  diagnostics.throw_if_errors();

  WorkerStart start;
  start.folder = std::filesystem::absolute(std::filesystem::path(spec.run.dir) / spec.run.name);
  start.open = [=, lock = std::make_shared<Fd>()](int world,
                                                  int nodes) -> std::optional<OpenedRun> {
    PreparedRun run = prepare_run(options, train_yaml, settings, world);
    print_warnings(run.warnings);
    const bool host = arenas_on_host(std::max(1, world / nodes), run.request.config.use_cpu);
    RunDirectory directory = open_run(run.checked, host, nodes);
    print_warnings(directory.warnings);
    if (directory.complete) {
      fmt::print(stderr, "{} is complete: nothing is left to train\n", directory.dir.string());
      return std::nullopt;
    }
    *lock = std::move(directory.lock);
    const std::filesystem::path dir = std::filesystem::absolute(directory.dir);
    return OpenedRun{dir, begin_generation(dir, run.checked)};
  };
  return start;
}

}  // namespace

int command_worker(const Arguments& args) {
  std::string what;
  std::vector<std::string> settings;
  CommandLine line({"worker RUN_DIR", "worker train.yaml [key=value ...]"},
                   "Trains one rank of a run. Started by mtl launch, once per rank; or by srun, "
                   "mpirun, jsrun or "
                   "torchrun (docs/reference/environments.md), or by hand with RANK and "
                   "WORLD_SIZE. Of a train.yaml "
                   "rank 0 opens the run, and the others wait for it.");
  line.positional("RUN_DIR", what, "the run directory that mtl launch made, or a train.yaml");
  line.rest("key=value", settings, "settings, beside a train.yaml");
  if (!line.parse(args)) return 0;
  // Whoever reads the progress may die first; that must not end a rank.
  std::signal(SIGPIPE, SIG_IGN);
  const bool is_yaml = what.ends_with(".yaml") || what.ends_with(".yml");
  return static_cast<int>(
      run_worker(is_yaml ? start_of_train_yaml(what, settings) : WorkerStart{.run_dir = what}));
}

}  // namespace mtl
