// How a generation of a job ended, judged when all of its nodes have stopped: what was the reason,
// and what is said if the job ends with it. Pure: whether the job goes on all the same (a restart
// that is left, a node that may be missing) is the controller's to say.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/agent/agent.h"
#include "rendezvous/link.h"

namespace mtl {

// How a job ended.
struct JobOutcome {
  int exit_code = 0;
  bool interrupted = false;
  int signal = 0;  // ... by this one; of USR2 (the time is nearly over) and another, the other
  // The headline; warnings if nothing failed. Empty = all is done.
  std::vector<Diagnostic> report;
  std::vector<std::string> warnings;
  // A rank that failed is the reason (and not a lost node, a program that is missing ...).
  std::optional<WorkerEnd> first_failure;
};

// Whether the rank that failed first had too little memory: it says so (exit code 5), or the
// kernel's out-of-memory killer struck.
bool ran_out_of_memory(const JobOutcome& outcome);

struct NodeLoss {
  std::string host;
  int node_rank = -1;
  LinkEvent::Loss loss = LinkEvent::closed;
  std::string reason;
  bool unheard = false;  // it did not hear of the launcher in time, and killed its ranks
  std::chrono::system_clock::time_point when;  // it was last heard of
};

// Why a generation was asked to stop: the first reason.
enum class StopReason { none, failure, loss, leave, request, growth, problem };

// What has become of a generation. All times by one clock.
struct GenerationEnd {
  int nodes = 0;
  std::chrono::system_clock::time_point started;
  std::vector<WorkerEnd> ends;
  std::vector<NodeLoss> losses;
  std::vector<Diagnostic> errors;  // of nodes that could not run their part
  int error_exit = 0;
  std::vector<std::string> warnings;
  StopReason stop = StopReason::none;
  // Since when ranks may have been asked to stop for another node's sake: it leaves, or has come.
  std::optional<std::chrono::system_clock::time_point> disturbed;
  bool left = false;     // a node has left
  int interrupt = 0;     // the signal of a person or a scheduler
  bool is_ours = false;  // the program is mtl's own runtime
};

struct Verdict {
  enum class Reason {
    over,     // the ranks are done, or the job was asked to stop
    problem,  // a node could not run its part
    loss,
    failure,
    leave,   // a node has left, and the others stopped for it
    growth,  // they stopped for one that has come
  };
  Reason reason = Reason::over;
  std::optional<NodeLoss> loss;
  std::optional<WorkerEnd> failure;
  JobOutcome outcome;  // if the job ends with this generation
};

Verdict judge(const GenerationEnd& end);

// By itself, and not because it was asked to stop.
bool has_failed(const WorkerEnd& end);
std::string loss_text(LinkEvent::Loss loss, const std::string& reason);

}  // namespace mtl
