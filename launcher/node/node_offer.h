// What this machine can do for a job, found out before anything starts anywhere.
#pragma once

#include <cstdint>
#include <string>

#include "common/error.h"
#include "launcher/node/job_messages.h"

namespace mtl {

// Throws an Error with a "launch.remote_files" for each file of the program that cannot be read
// here: exit 127 or 126 if it is a program of others, which then cannot run.
void look_for_files(const JobProgram& program);

// Goes to the job's working directory, finds what would keep its workers from starting, and counts
// the slots where the job leaves that to us. Throws all that is wrong as one Error, with the exit
// code of the first.
void prepare_node(NodeJob& job);

// How this node is reached, as far as it can know.
struct NodeReach {
  std::string link_address;  // of this side of the link to the controller; "" = not by TCP
  bool on_loopback = true;   // the others are on this machine too: a loopback address will do
  bool by_ssh = false;       // the launcher's session is of use: sshd says which address it has
};

// `job`: prepared. `rank`: machine_rank, -1 = none. `port`: held for the workers' meeting.
NodeOffer offer_of(const NodeJob& job, int rank, uint16_t port, const NodeReach& reach);

}  // namespace mtl
