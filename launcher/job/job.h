// A job: run_job() starts it in the way that was asked for and returns how it ended.
//
//   local   an agent in this process; a failure starts it again up to max_restarts times
//   hosts   the controller in this process, an agent on every host (ssh, or a child for this one)
//   allocation  the controller in this process, an agent on every node of the SLURM job (srun),
//           which dials it
//   member  the same command is typed on every node: each process is its node's agent, and one of
//           them (machine_rank 0, or whoever has the rendezvous' address) is the controller too
//
// The token. With hosts, it is made here and travels in ssh's channel, in an allocation in srun's
// stdin. Nodes that are typed have to
// be given one (--token_file); without it the run's id has to do, which keeps strangers' mistakes
// out, but nobody who wants to get in.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/controller/controller.h"
#include "launcher/node/generation.h"
#include "launcher/request/launch_request.h"

namespace mtl {

struct JobOptions {
  LaunchRequest request;
  std::string version;  // of mtl; nodes with another one are refused
  // What to run, unless `prepare` says it.
  JobProgram program;
  // Called in the controller's process, before each generation; may throw, see ControllerOptions.
  std::function<JobProgram(int world, int64_t generation)> prepare;
  JobEars ears;
};

// Throws Error for what keeps the job from starting at all.
JobOutcome run_job(const JobOptions& options);

// --- for the ways of starting (job_*.cpp) and `mtl agent`

// The first line of an agent on a host, before the protocol begins.
inline constexpr const char* kAgentMagic = "mtl-agent 1";

// What an agent that dials its controller is told on its stdin, in one line: in argv, or in what a
// scheduler keeps of a job, others could read the token.
struct AgentCall {
  std::string token;
  uint16_t port = 0;
  std::vector<std::string> addresses;  // of the controller's machine, those to try first in front
};
std::string encode_agent_call(const AgentCall& call);  // with its newline
// Nothing for anything but such a line (without its newline).
std::optional<AgentCall> decode_agent_call(const std::string& line);

JobOutcome run_local_job(const JobOptions& options);
JobOutcome run_hosts_job(const JobOptions& options);
JobOutcome run_allocation_job(const JobOptions& options);
JobOutcome run_member_job(const JobOptions& options);

NodeJob node_job(const JobOptions& options);
ControllerOptions controller_options(const JobOptions& options);

}  // namespace mtl
