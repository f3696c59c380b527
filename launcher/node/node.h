// The agent's side of a job on several nodes: joins, runs generation after generation of this
// node's ranks as the controller says, and tells it what becomes of them. It ends with the job, or
// when the controller is lost: then its workers are killed before the controller may go on without
// it.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/node/generation.h"
#include "launcher/node/job_messages.h"
#include "rendezvous/link.h"

namespace mtl {

struct NodeOptions {
  LinkHub* hub = nullptr;
  LinkId link = 0;
  // That the link has opened, if its owner has taken the event from the hub already.
  std::optional<LinkEvent> opened;
  std::string version;
  // The job, if it was typed here; else the controller sends it.
  std::optional<NodeJob> job;
  int rank = -1;  // machine_rank
  // What the command typed here says of the whole job, where that cannot change; 0 = nothing.
  int said_nodes = 0;
  int said_ranks = 0;
  // How this node calls itself and where it stands among the others, where its scheduler says so.
  std::string host;  // "" = by its own name
  int position = -1;
  // Where the rendezvous is, for what is said while it does not answer.
  std::string controller;
  // Dials it again, where `link` was dialled: the attempts are short, so that their reasons can be
  // said, and go on for `join_timeout`.
  std::function<LinkId(std::chrono::milliseconds patience)> redial;
  std::chrono::milliseconds join_timeout{600'000};
  // The others of the job are on this machine too, where a loopback address reaches them.
  bool on_loopback = true;
  // What the workers say goes over the link (rank 0's output and progress); else to `ears`.
  bool remote = false;
  JobEars ears;
};

struct NodeResult {
  int exit_code = 0;
  std::vector<Diagnostic> report;
  bool controller_lost = false;
};

// Throws Error if the rendezvous cannot be joined: "rendezvous.connect", "rendezvous.auth",
// "launch.interface" ...
NodeResult run_node(const NodeOptions& options);

}  // namespace mtl
