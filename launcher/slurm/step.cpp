#include "launcher/slurm/step.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/request/launch_resolver.h"
#include "launcher/system/own_program.h"

namespace mtl {

namespace {

const std::vector<std::string>& texts_of(const LaunchRequest& request, const std::string& name) {
  static const std::vector<std::string> none;
  const auto found = request.slurm.find(name);
  return found != request.slurm.end() ? found->second : none;
}

std::string text_of(const LaunchRequest& request, const std::string& name) {
  const std::vector<std::string>& texts = texts_of(request, name);
  return texts.empty() ? "" : texts.back();
}

// The mounts as given, and the working directory unless one of them has it: the agent and its ranks
// start there.
std::vector<std::string> mounts_of(const LaunchRequest& request, const std::string& folder) {
  std::vector<std::string> mounts;
  for (const std::string& text : texts_of(request, "container_mounts")) {
    for (std::string& mount : split_words(text, ',')) mounts.push_back(std::move(mount));
  }
  const bool there = std::any_of(mounts.begin(), mounts.end(), [&](const std::string& mount) {
    const std::vector<std::string> parts = split_words(mount, ':');
    const std::string& inside = parts.size() > 1 ? parts[1] : parts[0];
    return folder == inside || inside == "/" || folder.starts_with(inside + "/");
  });
  if (!there && !folder.empty()) mounts.push_back(folder + ":" + folder);
  return mounts;
}

void add_container(const LaunchRequest& request, const std::string& folder,
                   std::vector<std::string>& options, std::vector<std::string>& command) {
  const std::string image = text_of(request, "container");
  if (image.empty()) return;
  std::string runtime = text_of(request, "container_runtime");
  if (runtime.empty() || runtime == "enroot") runtime = "pyxis";
  const std::vector<std::string> mounts = mounts_of(request, folder);
  if (runtime == "pyxis") {
    options.push_back("--container-image=" + image);
    if (!mounts.empty()) {
      options.push_back(fmt::format("--container-mounts={}", fmt::join(mounts, ",")));
    }
    if (!folder.empty()) options.push_back("--container-workdir=" + folder);
    return;
  }
  if (runtime != "apptainer" && runtime != "singularity") {
    throw Error(Exit::config,
                {.code = "slurm.value",
                 .what = fmt::format("container_runtime '{}' is none that mtl can start", runtime),
                 .help = "pyxis, apptainer or singularity"});
  }
  command = {runtime, "exec"};
  if (!request.config.use_cpu) command.push_back("--nv");
  for (const std::string& mount : mounts) command.insert(command.end(), {"--bind", mount});
  if (!folder.empty()) command.insert(command.end(), {"--pwd", folder});
  command.push_back(image);
}

// The nodes of one component of the job that the launch uses.
struct Part {
  size_t component = 0;
  Surroundings::Share share;
  std::vector<std::string> nodes;
  int gpus = -1;  // of these nodes, where that is known
};

// Hosts are nodes of the job in its order, of which some may be left out.
std::vector<Part> parts_of(const LaunchRequest& request) {
  const Surroundings& around = request.allocation;
  std::vector<Part> parts;
  size_t node = 0;
  size_t host = 0;
  for (size_t i = 0; i < around.shares.size(); ++i) {
    Part part{.component = i, .share = around.shares[i], .nodes = {}};
    for (int n = 0; n < part.share.nodes && node < around.node_names.size(); ++n, ++node) {
      if (host == request.hosts.size() || request.hosts[host].name != around.node_names[node]) {
        continue;
      }
      part.nodes.push_back(request.hosts[host++].name);
      if (node < around.gpus_of_nodes.size()) {
        part.gpus = std::max(part.gpus, 0) + around.gpus_of_nodes[node];
      }
    }
    if (static_cast<int>(part.nodes.size()) == part.share.nodes && part.gpus < 0) {
      part.gpus = part.share.gpus;
    }
    if (!part.nodes.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

void add_part(const Part& part, bool on_gpus, std::vector<std::string>& argv) {
  const size_t nodes = part.nodes.size();
  const Surroundings::Share& share = part.share;
  argv.insert(argv.end(), {fmt::format("--nodes={}", nodes), fmt::format("--ntasks={}", nodes),
                           "--ntasks-per-node=1"});
  if (share.nodes > static_cast<int>(nodes)) {
    argv.push_back(fmt::format("--nodelist={}", fmt::join(part.nodes, ",")));
  }
  if (share.cpus_per_node > 0) {
    argv.push_back(fmt::format("--cpus-per-task={}", share.cpus_per_node));
  }
  // Without a number of CPUs a step has all that the job has on each node, but perhaps not its
  // task.
  if (share.cpus_differ) argv.emplace_back("--cpu-bind=none");
  if (!on_gpus) return;  // nor has anybody asked how many there are
  if (share.gpus_per_node > 0) {
    argv.push_back(fmt::format("--gpus-per-node={}", share.gpus_per_node));
  } else if (part.gpus > 0) {
    // A step that does not say so has those of one task where the job has --gpus-per-task.
    argv.push_back(fmt::format("--gpus={}", part.gpus));
  }
}

}  // namespace

std::vector<AgentStep> agent_steps(const LaunchRequest& request, const std::string& folder,
                                   const std::vector<std::string>& agent) {
  // srun's own idea of failures would be the second one beside the controller's. Where the job may
  // go on with fewer nodes, srun must not end the others because of one.
  std::vector<std::string> options = {"--kill-on-bad-exit=1"};
  if (request.min_nodes < static_cast<int>(request.hosts.size())) {
    options = {"--no-kill", "--kill-on-bad-exit=0", "--wait=0"};
  }
  options.insert(options.end(), {"--mpi=none", "--unbuffered", "--export=ALL"});
  std::vector<std::string> command;
  add_container(request, folder, options, command);
  const std::vector<std::string>& more = texts_of(request, "srun");
  options.insert(options.end(), more.begin(), more.end());
  command.insert(command.end(), agent.begin(), agent.end());

  std::vector<AgentStep> steps;
  for (const Part& part : parts_of(request)) {
    std::vector<std::string> argv = {"srun"};
    if (request.allocation.shares.size() > 1) {
      argv.push_back(fmt::format("--het-group={}", part.component));
    }
    add_part(part, !request.config.use_cpu, argv);
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), command.begin(), command.end());
    steps.push_back({.argv = std::move(argv), .nodes = part.nodes.size()});
  }
  return steps;
}

std::vector<AgentStep> agent_steps(const LaunchRequest& request) {
  const std::string program = !request.remote_program.empty()          ? request.remote_program
                              : !text_of(request, "container").empty() ? "mtl"
                                                                       : own_program();
  std::error_code ignored;
  return agent_steps(request, std::filesystem::current_path(ignored).string(),
                     {program, "agent", "--connect", "--dead_after",
                      fmt::format("{}", static_cast<double>(request.dead_after.count()) / 1000)});
}

const std::vector<std::string>& srun_variables() {
  static const std::vector<std::string> names = {
      "SLURM_NTASKS",          "SLURM_NPROCS",       "SLURM_NTASKS_PER_NODE",
      "SLURM_NTASKS_PER_GPU",  "SLURM_NNODES",       "SLURM_NTASKS_PER_SOCKET",
      "SLURM_CPUS_PER_TASK",   "SLURM_CPUS_PER_GPU", "SLURM_TRES_PER_TASK",
      "SLURM_GPUS_PER_TASK",   "SLURM_GPUS",         "SLURM_GPUS_PER_NODE",
      "SLURM_DISTRIBUTION",    "SLURM_EXPORT_ENV",   "SLURM_KILL_BAD_EXIT",
      "SLURM_NO_KILL",         "SLURM_WAIT",         "SLURM_MPI_TYPE",
      "SLURM_NTASKS_PER_CORE", "SLURM_LABELIO",      "SLURM_EXCLUSIVE",
      "SLURM_STEP_GRES",       "SLURM_GPU_BIND",     "SLURM_CPU_BIND",
      "SLURM_STDINMODE",       "SLURM_STDOUTMODE",   "SLURM_STDERRMODE",
      "SLURM_ARBITRARY",       "SLURM_MULTI_PROG"};
  return names;
}

}  // namespace mtl
