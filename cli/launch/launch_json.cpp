// mtl launch --dry-run --json: what would be started, for programs.
#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/launch/launch.h"
#include "launcher/node/generation.h"
#include "launcher/settings/secret.h"
#include "launcher/settings/train_settings.h"
#include "launcher/slurm/step.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLaunchSchema = "mtl.launch/1";

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json number_or_null(int number, int nothing) {
  return number == nothing ? Json(nullptr) : Json(number);
}

// accelerate's merged arguments, by their names.
Json settings_json(const LaunchRequest& request) {
  const LaunchConfig& config = request.config;
  const std::string& type = config.distributed_type;
  const auto plugin = [&](const char* name, const char* otherwise) -> Json {
    const auto found = config.plugins.find(name);
    if (found != config.plugins.end()) return found->second;
    return otherwise == nullptr ? Json(nullptr) : Json(otherwise);
  };
  Json json;
  json["distributed_type"] = type;
  json["num_processes"] = number_or_null(config.num_processes, -1);
  json["num_machines"] = config.num_machines;
  json["machine_rank"] = config.machine_rank;
  json["main_process_ip"] = text_or_null(config.main_process_ip);
  json["main_process_port"] = number_or_null(config.main_process_port, 0);
  json["rdzv_backend"] = config.rdzv_backend;
  json["same_network"] = config.same_network;
  json["gpu_ids"] = config.gpu_ids;
  json["mixed_precision"] = config.mixed_precision;
  json["use_cpu"] = config.use_cpu;
  json["debug"] = config.debug;
  json["enable_cpu_affinity"] = config.enable_cpu_affinity;
  json["downcast_bf16"] = config.downcast_bf16;
  json["multi_gpu"] = type.starts_with("MULTI_") && type != "MULTI_CPU";
  json["use_fsdp"] = type == "FSDP";
  json["use_deepspeed"] = type == "DEEPSPEED";
  json["use_megatron_lm"] = type == "MEGATRON_LM";
  json["use_parallelism_config"] = config.use_parallelism_config;
  json["dynamo_backend"] = plugin("dynamo_backend", "no");
  json["fp8_backend"] = plugin("fp8_backend", nullptr);
  json["fp8_format"] = plugin("fp8_format", "HYBRID");
  json["num_cpu_threads_per_process"] = number_or_null(request.omp_threads, 0);
  json["max_restarts"] = request.max_restarts;
  return json;
}

Json problem_json(const Diagnostic& problem) {
  Json json;
  const bool warning = problem.severity == Diagnostic::Severity::warning;
  json["severity"] = warning ? "warning" : "error";
  json["code"] = problem.code;
  json["what"] = problem.what;
  json["file"] = text_or_null(problem.place ? problem.place->file : "");
  json["line"] = number_or_null(problem.place ? problem.place->line : 0, 0);
  json["notes"] = problem.notes;
  json["help"] = text_or_null(problem.help);
  return json;
}

Json problems_of(const Error& error) {
  Json problems = Json::array();
  for (const Diagnostic& problem : error.diagnostics()) problems.push_back(problem_json(problem));
  return problems;
}

Json rank_json(const WorkerCommand& command, const std::string& host) {
  Json json;
  json["rank"] = command.rank;
  if (command.ranks > 1) json["ranks"] = command.ranks;
  json["local_rank"] = command.local_rank;
  json["host"] = host;
  Json env = Json::object();
  for (const auto& [name, value] : command.env) {
    env[name] = is_secret(name) ? "<secret>" : value;
  }
  json["env"] = std::move(env);
  json["command"] = command.argv;
  return json;
}

}  // namespace

Json problems_json(const Error& error) {
  Json json;
  json["schema"] = kLaunchSchema;
  json["exit_code"] = static_cast<int>(error.exit());
  json["problems"] = problems_of(error);
  return json;
}

Json launch_json(const LaunchRequest& request, const JobProgram& program,
                 const std::string& config_file) {
  Json json;
  json["schema"] = kLaunchSchema;
  json["config_file"] = text_or_null(config_file);
  json["mode"] = request.mode == LaunchRequest::Mode::local        ? "local"
                 : request.mode == LaunchRequest::Mode::hosts      ? "hosts"
                 : request.mode == LaunchRequest::Mode::allocation ? "allocation"
                                                                   : "member";
  if (request.mode == LaunchRequest::Mode::allocation) {
    // The words of each step: of one, or of one for each component of a heterogeneous job.
    json["srun"] = Json::array();
    for (const AgentStep& step : agent_steps(request)) json["srun"].push_back(step.argv);
  }
  json["settings"] = settings_json(request);
  Json decided = Json::object();
  for (const auto& [key, value] : train_settings(request.config)) decided[key] = value;
  json["train_settings"] = std::move(decided);
  json["problems"] = Json::array();
  Json ranks = Json::array();
  const int port = request.master_port != 0 ? request.master_port : 29500;
  NodeLayout layout = layout_here(request, port);
  if (!request.starts_agents()) {
    std::vector<RankPlacement> placement;
    try {
      placement = place_here(request);
    } catch (const Error& error) {
      // What else there is to know of the launch is the same elsewhere.
      json["exit_code"] = static_cast<int>(error.exit());
      json["problems"] = problems_of(error);
    }
    for (const auto& command :
         node_commands(program, config_here(request.config), layout, placement, "")) {
      ranks.push_back(rank_json(command, host_name()));
    }
  } else {
    const auto slots = [&](const Host& host) {
      return host.slots > 0 ? host.slots : std::max(1, request.local_ranks);
    };
    layout.num_nodes = static_cast<int>(request.hosts.size());
    layout.world = 0;
    for (const Host& host : request.hosts) layout.world += slots(host);
    if (!request.hosts.empty()) layout.master_addr = request.hosts.front().name;
    layout.first_rank = layout.node_rank = 0;
    for (const Host& host : request.hosts) {
      layout.local_ranks = slots(host);
      for (const auto& command : node_commands(program, request.config, layout, {}, "")) {
        ranks.push_back(rank_json(command, host.name));
      }
      layout.first_rank += layout.local_ranks;
      ++layout.node_rank;
    }
  }
  json["ranks"] = std::move(ranks);
  return json;
}

}  // namespace mtl
