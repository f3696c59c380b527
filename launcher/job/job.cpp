#include "launcher/job/job.h"

#include <fmt/format.h>

#include "launcher/agent/signals.h"
#include "launcher/controller/restart.h"
#include "rendezvous/store.h"

namespace mtl {

NodeJob node_job(const JobOptions& options) {
  const LaunchRequest& request = options.request;
  NodeJob job;
  job.program = options.program;
  for (const auto& [name, value] : request.env) job.program.env[name] = value;
  job.config = request.config;
  job.logs = request.logs;
  job.run_id = request.run_id;
  job.token = request.token;
  job.interface = request.interface;
  job.max_restarts = request.max_restarts;
  job.slots = request.local_ranks;
  job.need_gpu = request.need_gpu;
  job.binding = request.binding;
  job.omp_threads = request.omp_threads;
  job.master_port = request.master_port;
  job.grace = request.grace;
  job.warning_grace = request.warning_grace;
  return job;
}

ControllerOptions controller_options(const JobOptions& options) {
  const LaunchRequest& request = options.request;
  ControllerOptions controller;
  controller.membership.min_nodes = request.min_nodes;
  controller.membership.max_nodes = request.max_nodes;
  controller.membership.last_call = request.last_call;
  controller.version = options.version;
  controller.is_ours = options.prepare ? true : options.program.is_ours;
  controller.max_restarts = request.max_restarts;
  controller.join_timeout = request.join_timeout;
  controller.dead_after = request.dead_after;
  controller.grace = request.grace;
  controller.warning_grace = request.warning_grace;
  controller.prepare = [&options](int world, int64_t generation) -> std::optional<JobProgram> {
    if (!options.prepare) return {};
    JobProgram program = options.prepare(world, generation);
    for (const auto& [name, value] : options.request.env) program.env[name] = value;
    return program;
  };
  return controller;
}

namespace {

// Where the ranks of one machine meet. The port that was asked for may be that of the job beside
// this one: they all learn it from us, so any other does as well. accelerate has it so.
ReservedPort meeting_port(const JobOptions& options) {
  std::string taken;
  ReservedPort port = ReservedPort::or_another(options.request.master_port, taken);
  if (!taken.empty() && options.ears.on_notice) {
    options.ears.on_notice(
        fmt::format("warning: {}; the ranks meet at port {} instead", taken, port.port()));
  }
  return port;
}

}  // namespace

JobOutcome run_local_job(const JobOptions& options) {
  const LaunchRequest& request = options.request;
  NodeJob job = node_job(options);
  if (job.token.empty()) job.token = make_token();
  const ReservedPort port = meeting_port(options);
  const ControllerOptions policy = controller_options(options);

  AssignMessage assign;
  Roster& roster = assign.roster;
  roster.world = request.ranks > 0 ? request.ranks : node_slots(job);
  roster.nodes = {{.host = "", .address = "127.0.0.1", .port = port.port(), .slots = roster.world}};
  for (int restarts = 0;; ++restarts) {
    roster.generation = restarts;
    assign.restart_count = restarts;
    const bool again = restarts < request.max_restarts;
    assign.failure_grace = again && policy.is_ours ? std::chrono::milliseconds(0) : request.grace;
    assign.program = policy.prepare(roster.world, restarts);
    const AgentResult result = run_generation(job, assign, port, options.ears, nullptr);
    if (result.first_failure && !result.interrupted && again &&
        may_restart(result.exit_code, policy.is_ours)) {
      if (options.ears.on_notice) {
        const WorkerEnd& end = *result.first_failure;
        options.ears.on_notice(fmt::format(
            "restart {} of {}: {} {}", restarts + 1, request.max_restarts, ranks_name(end),
            end.signal != 0 ? "was killed by " + signal_name(end.signal)
                            : fmt::format("exited with code {}", end.exit_code)));
      }
      continue;
    }
    JobOutcome outcome;
    outcome.exit_code = result.exit_code;
    outcome.interrupted = result.interrupted;
    outcome.signal = result.interrupt_signal;
    outcome.first_failure = result.first_failure;
    outcome.warnings = result.warnings;
    if (result.first_failure || result.interrupted) {
      outcome.report = {failure_report(result, policy.is_ours)};
    }
    return outcome;
  }
}

JobOutcome run_job(const JobOptions& options) {
  switch (options.request.mode) {
    case LaunchRequest::Mode::hosts:
      return run_hosts_job(options);
    case LaunchRequest::Mode::allocation:
      return run_allocation_job(options);
    case LaunchRequest::Mode::member:
      return run_member_job(options);
    case LaunchRequest::Mode::local:
      break;
  }
  return run_local_job(options);
}

}  // namespace mtl
