// What the controller of a job and the agents of its nodes say to each other, over links
// (rendezvous/link.h). Small messages are JSON, so that a person can read them in a trace; the
// table of nodes is the compact one of membership.h. No sockets here.
//
//   agent -> hello      who and where I am (a node that typed the command: with its offer)
//   ctl   -> prepare    hosts only: what will be run; check that you can
//   agent -> join       I can: my offer          | problems: I cannot, and why
//   ctl   -> refuse     not wanted, and why; the link ends
//   ctl   -> assign     generation, your node rank, the table (and what to run)
//   agent -> started, output, line, notice, ended ... stopped
//   ctl   -> stop, signal, notice
//   ctl   -> finish     the job is over, or your part of it if you leave: exit code and headline
//
// Every message carries its generation; what belongs to another one is dropped by the receiver.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/agent/agent.h"
#include "launcher/ranks/commands.h"
#include "launcher/request/launch_request.h"
#include "rendezvous/membership.h"

namespace mtl {

enum class JobMessage : uint16_t {
  hello = 1,
  prepare,
  join,
  problems,
  refuse,
  assign,
  started,
  output,
  line,
  notice,
  ended,
  stopped,
  interrupted,
  unheard,
  stop,
  signal,
  finish,
};

// What a node needs to know to run its part, the same for all nodes.
struct NodeJob {
  JobProgram program;
  LaunchConfig config;
  LogOptions logs;
  std::string run_id = "none";
  std::string token;      // of the workers' own meeting; empty = they need none
  std::string interface;  // network interface, address or CIDR
  int max_restarts = 0;
  int slots = 0;  // ranks of this node; <= 0: LaunchRequest::kAuto ...
  bool need_gpu = false;
  int position = -1;  // of this node in the host list
  std::string host;   // its name there; empty = its own
  Binding binding = Binding::none;
  int omp_threads = 0;
  uint16_t master_port = 0;    // 0 = a free one
  std::string master_address;  // as the user gave it; empty = node 0's
  std::chrono::milliseconds grace{30'000};
  std::chrono::milliseconds warning_grace{30'000};  // after USR2, where nobody controls the node
};

struct HelloMessage {
  std::string version;
  std::string host;
  std::optional<NodeOffer> offer;
  // The leases are only safe if both sides count alike: another value than the job's is refused.
  std::chrono::milliseconds dead_after{5'000};
  int position = -1;  // of an agent that has dialled us: its place among the nodes; else -1
  // What the command typed on it says of the whole job; 0 = nothing.
  int nodes = 0;
  int ranks = 0;
};
struct AssignMessage {
  int node_rank = 0;
  Roster roster;
  int restart_count = 0;
  // From TERM to KILL on a node where a rank has failed.
  std::chrono::milliseconds failure_grace{30'000};
  std::optional<JobProgram> program;  // replaces the node's own
  std::string token;                  // ... and so does this, unless empty
};
struct OutputMessage {
  int rank = 0;
  bool is_stderr = false;
  std::string text;  // whole lines
};
struct StopMessage {
  std::string why;  // for people
  std::chrono::milliseconds grace{0};
  bool kill = false;
  int signal = SIGTERM;  // what the ranks are asked with
};
struct StoppedMessage {
  std::vector<std::string> warnings;
  // What kept the node from running its part (a program that is missing): its exit code.
  std::vector<Diagnostic> errors;
  int exit_code = 0;
};
// What would keep a node from running its part, before there is one, with the exit code of that.
struct ProblemsMessage {
  int exit_code = 0;
  std::vector<Diagnostic> errors;
};
// INT, TERM or HUP at a node.
struct InterruptedMessage {
  int signal = 0;
  std::chrono::system_clock::time_point when = {};  // by the node's clock
};
struct FinishMessage {
  int exit_code = 0;
  std::vector<Diagnostic> report;
};

std::string encode(const HelloMessage& message);
std::string encode(const NodeJob& job);
std::string encode(const NodeOffer& offer);
std::string encode(const std::vector<Diagnostic>& diagnostics);
std::string encode(const AssignMessage& message);
std::string encode(const OutputMessage& message);
std::string encode(const StopMessage& message);
std::string encode(const StoppedMessage& message);
std::string encode(const WorkerEnd& end);
std::string encode(const FinishMessage& message);
std::string encode(const ProblemsMessage& message);
std::string encode(const InterruptedMessage& message);
std::string encode_number(int64_t number);  // signal

// Nothing for anything but a complete message.
std::optional<HelloMessage> decode_hello_message(const std::string& body);
std::optional<NodeJob> decode_node_job(const std::string& body);
std::optional<NodeOffer> decode_offer(const std::string& body);
std::optional<std::vector<Diagnostic>> decode_diagnostics(const std::string& body);
std::optional<AssignMessage> decode_assign(const std::string& body);
std::optional<OutputMessage> decode_output(const std::string& body);
std::optional<StopMessage> decode_stop(const std::string& body);
std::optional<StoppedMessage> decode_stopped(const std::string& body);
std::optional<WorkerEnd> decode_end(const std::string& body);
std::optional<FinishMessage> decode_finish(const std::string& body);
std::optional<ProblemsMessage> decode_problems(const std::string& body);
std::optional<InterruptedMessage> decode_interrupted(const std::string& body);
std::optional<int64_t> decode_number(const std::string& body);

}  // namespace mtl
