// mtl launch of a program that is not ours: once per rank, with the environment of torchrun and
// accelerate, under the same supervision.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/launch.h"
#include "common/error.h"
#include "common/files.h"
#include "common/terminal.h"
#include "launcher/reserved_port.h"

namespace mtl {

namespace {

// A folder of this launch for what ranks leave behind; goes away with it unless it is kept.
class ScratchFolder {
 public:
  explicit ScratchFolder(const char* name) {
    const char* base = std::getenv("TMPDIR");
    std::string path = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + '/' + name +
                       "-XXXXXX";
    if (mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty() && !kept_) std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }  // empty if there could be none
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool kept_ = false;
};

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "this machine";
  return name;
}

int run_here(const LaunchRequest& request, const std::vector<WorkerCommand>& commands,
             bool quiet) {
  AgentOptions agent;
  agent.workers = commands;
  agent.log_dir = request.logs.dir;
  agent.grace = request.grace;
  agent.on_notice = [quiet](std::string_view line) {
    if (!quiet) fmt::print(stderr, "{}\n", line);
  };
  const AgentResult result = run_agent(agent);
  for (const std::string& warning : result.warnings) fmt::print(stderr, "warning: {}\n", warning);
  if (result.first_failure || result.interrupted) {
    std::fflush(stdout);
    fmt::print(stderr, "{}", render(failure_report(result), inspect_terminal(STDERR_FILENO).color));
  }
  return result.exit_code;
}

}  // namespace

std::vector<std::string> program_argv(const LaunchOptions& options, const std::string& program,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> argv;
  // Unbuffered, so that the last words of a script that dies are seen.
  if (options.module) {
    argv = {"python3", "-u", "-m"};
  } else if (options.run_path || (!options.no_python && program.ends_with(".py"))) {
    argv = {"python3", "-u"};
  }
  argv.push_back(program);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

int launch_program(const LaunchOptions& options, const std::string& program,
                   const std::vector<std::string>& arguments) {
  Diagnostics diagnostics;
  const LaunchConfig file = load_launch_config(options.run.given, diagnostics);
  LaunchRequest request = resolve_launch(file, options.run.given, false, diagnostics);
  diagnostics.throw_if_errors();
  print_warnings(diagnostics.all());
  // accelerate's file says it this way, and a program of PyTorch takes it literally.
  request.need_gpu = request.need_gpu || request.config.distributed_type == "MULTI_GPU";
  if (request.mode != LaunchRequest::Mode::local && !options.dry_run) refuse_machines(request);

  JobProgram job;
  job.argv = program_argv(options, program, arguments);
  job.env = request.env;
  const std::vector<RankPlacement> placement = place_here(request);
  if (options.dry_run) {
    const int port = request.master_port != 0 ? request.master_port : 29500;
    const auto commands =
        node_commands(job, request.config, layout_here(request, port), placement, "");
    fmt::print("{}", rank_blocks(commands, placement, host_name()));
    return 0;
  }
  const ReservedPort port(request.master_port);
  const bool wants_files = !request.logs.redirected.empty();
  std::optional<ScratchFolder> logs;
  if (wants_files && request.logs.dir.empty()) {
    logs.emplace("mtl-logs");
    logs->keep();
    request.logs.dir = logs->path();
    if (!options.quiet) fmt::print(stderr, "output of the ranks: {}\n", logs->path());
  }
  const ScratchFolder errors("mtl-errors");
  const std::string notice = threads_notice(request, placement);
  if (!notice.empty() && !options.quiet) fmt::print(stderr, "{}\n", notice);
  const auto commands = node_commands(job, request.config, layout_here(request, port.port()),
                                      placement, errors.path());
  return run_here(request, commands, options.quiet);
}

}  // namespace mtl
