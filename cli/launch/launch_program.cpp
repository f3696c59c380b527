// mtl launch of a program that is not ours: once per rank, with the environment of torchrun and
// accelerate, under the same supervision.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/launch/launch.h"
#include "cli/launch/launch_slurm.h"
#include "cli/launch/submit.h"
#include "common/error.h"
#include "common/terminal.h"
#include "common/version.h"
#include "launcher/agent/program.h"
#include "launcher/job/job.h"
#include "launcher/node/generation.h"
#include "launcher/output/outlet.h"
#include "launcher/system/scratch_folder.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

// Of our environment, what ranks on other hosts get without being asked for: settings of the
// libraries that they use. A login's own PATH and HOME are theirs.
constexpr std::array<std::string_view, 14> kForwarded = {
    "NCCL_",       "TORCH_",        "PYTHON",      "OMP_",        "MKL_",
    "GLOO_",       "UCX_",          "CUDA_LAUNCH", "CUDA_DEVICE", "HF_",
    "TOKENIZERS_", "TRANSFORMERS_", "ACCELERATE_", "WANDB_"};

// The path of a program as this shell would run it; its name if it is not there.
std::string found_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/" + name;
    if (!folder.empty() && access(file.c_str(), X_OK) == 0) return file;
  }
  return name;
}

JobProgram program_of(const LaunchOptions& options, const LaunchRequest& request,
                      const std::string& program, const std::vector<std::string>& arguments) {
  JobProgram job;
  job.argv = program_argv(options, program, arguments);
  job.numbered = request.numbered;
  if (request.starts_agents()) {
    // The interpreter that would run here, a virtual environment's too, and not what a login there
    // finds first.
    if (job.argv[0] != program) job.argv[0] = found_in_path(job.argv[0]);
    job.inherited = forwarded_environment(request);
    std::error_code ignored;
    job.working_directory = std::filesystem::current_path(ignored).string();
  }
  return job;
}

// Python runs it.
bool is_script(const LaunchOptions& options, const std::string& program) {
  return options.run_path || (!options.no_python && program.ends_with(".py"));
}

// The script, if it is one: it has to be on every host.
std::vector<std::string> files_of(const LaunchOptions& options, const std::string& program) {
  if (options.module) return {};
  std::error_code unknown;
  const bool is_file = std::filesystem::is_regular_file(program, unknown);
  return is_file || is_script(options, program) ? std::vector{program} : std::vector<std::string>();
}

// Here, or the blocks of every host as far as they are known before anybody is asked.
void dry_run(const LaunchRequest& request, const JobProgram& job) {
  const int port = request.master_port != 0 ? request.master_port : 29500;
  if (!request.starts_agents()) {
    const std::vector<RankPlacement> placement = place_here(request);
    const auto commands =
        node_commands(job, config_here(request.config), layout_here(request, port), placement, "");
    fmt::print("{}", rank_blocks(commands, placement, host_name()));
    return;
  }
  if (const std::string step = step_words(request); !step.empty()) {
    fmt::print("{}, by\n  {}\n\n", request.allocation.words, step);
  }
  NodeLayout layout = layout_here(request, port);
  layout.num_nodes = static_cast<int>(request.hosts.size());
  layout.world = 0;
  const auto slots = [&](const Host& host) {
    return host.slots > 0 ? host.slots : std::max(1, request.local_ranks);
  };
  for (const Host& host : request.hosts) layout.world += slots(host);
  layout.master_addr = request.hosts.front().name;
  layout.first_rank = layout.node_rank = 0;
  for (const Host& host : request.hosts) {
    layout.local_ranks = slots(host);
    fmt::print("{}",
               rank_blocks(node_commands(job, request.config, layout, {}, ""), {}, host.name));
    layout.first_rank += layout.local_ranks;
    ++layout.node_rank;
  }
}

// Lines of other machines' ranks. Those that come while one is written go out together: a write
// for each would let the launcher print on for a minute after a chatty job has ended.
class Console {
 public:
  Console() : outlet_(size_t{64} << 20, -1, Outlet::Policy::drop) {
    for (const bool is_stderr : {false, true}) {
      consumers_[is_stderr].write = [fd = is_stderr ? STDERR_FILENO : STDOUT_FILENO](
                                        std::string_view block) { write_all(fd, block); };
      consumers_[is_stderr].gap = [](int64_t bytes) {
        return fmt::format("[{} bytes are missing here: the console was too slow]\n", bytes);
      };
    }
  }
  ~Console() {
    for (Consumer& consumer : consumers_) outlet_.close_gap(consumer);
  }
  void line(bool is_stderr, std::string_view text) {
    outlet_.push(consumers_[is_stderr], std::string(text) + "\n");
  }

 private:
  Consumer consumers_[2];
  Outlet outlet_;
};

}  // namespace

std::map<std::string, std::string> forwarded_environment(const LaunchRequest& request) {
  std::map<std::string, std::string> forwarded;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    const bool wanted =
        std::find(request.forward.begin(), request.forward.end(), name) != request.forward.end() ||
        std::any_of(kForwarded.begin(), kForwarded.end(),
                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (wanted && name.size() < text.size()) forwarded[name] = text.substr(name.size() + 1);
  }
  return forwarded;
}

std::vector<std::string> program_argv(const LaunchOptions& options, const std::string& program,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> argv;
  // As torchrun has it.
  const char* said = std::getenv("PYTHON_EXEC");
  const std::string python = said != nullptr && *said != '\0' ? said : "python3";
  // Unbuffered, so that the last words of a script that dies are seen.
  if (options.module) {
    argv = {python, "-u", "-m"};
  } else if (is_script(options, program)) {
    argv = {python, "-u"};
  }
  argv.push_back(program);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

int launch_program(const LaunchOptions& options, const std::string& program,
                   const std::vector<std::string>& arguments) {
  Diagnostics diagnostics;
  const LaunchConfig file = load_launch_config(options.run.given, diagnostics);
  JobOptions job;
  job.request = resolve_launch(file, options.run.given, false, diagnostics);
  LaunchRequest& request = job.request;
  diagnostics.throw_if_errors();
  if (!options.quiet) say(stderr, config_file_notice(file, options.run.given));
  print_warnings(diagnostics.all());
  // accelerate's file says it this way, and a program of PyTorch takes it literally.
  request.need_gpu = request.need_gpu || request.config.distributed_type == "MULTI_GPU";
  if (request.via == "slurm") {
    return submit_program(options, request, file.path, program, arguments);
  }
  job.program = program_of(options, request, program, arguments);
  if (options.dry_run) {
    if (options.json) {
      const auto document = launch_json(request, job.program, file.path);
      fmt::print("{}\n", document.dump(2));
      return document.value("exit_code", 0);
    }
    dry_run(request, job.program);
    return 0;
  }
  if (is_script(options, program) && !options.module &&
      request.mode == LaunchRequest::Mode::local && !std::filesystem::exists(program)) {
    throw Error(static_cast<Exit>(kNotFound),
                Diagnostic{.code = "launch.program_missing",
                           .what = fmt::format("there is no script '{}'", program),
                           .help = "the path is relative to the directory that mtl is started in"});
  }
  job.version = version();
  job.program.needed_files = files_of(options, program);
  if (!request.logs.redirected.empty() && request.logs.dir.empty()) {
    request.logs.dir = make_scratch_folder("mtl-logs");
    // Also with --quiet: nobody could guess it.
    say(stderr, fmt::format("output of the ranks: {}\n", request.logs.dir.string()));
  }
  if (!options.quiet && request.mode == LaunchRequest::Mode::local) {
    const std::string notice = threads_notice(request, place_here(request));
    if (!notice.empty()) say(stderr, notice + "\n");
  }
  std::optional<Console> console;
  job.ears.on_notice = [&](std::string_view line) {
    if (!options.quiet || line.starts_with("warning: ")) say(stderr, std::string(line) + "\n");
  };
  if (request.starts_agents()) {
    console.emplace();
    job.ears.on_output = [&](int, bool is_stderr, std::string_view line) {
      console->line(is_stderr, line);
    };
  }
  const JobOutcome outcome = run_job(job);
  console.reset();
  std::fflush(stdout);
  const bool color = inspect_terminal(STDERR_FILENO).color;
  for (const std::string& warning : outcome.warnings) say(stderr, "warning: " + warning + "\n");
  for (const Diagnostic& line : outcome.report) say(stderr, render(line, color));
  return continue_in_slurm(request, outcome, {});
}

}  // namespace mtl
