#include "launcher/node/node_losses.h"

#include <fmt/format.h>

#include "rendezvous/network.h"

namespace mtl {

Error cannot_join(const LinkEvent& event, const std::string& where) {
  switch (event.loss) {
    case LinkEvent::wrong_token:
      return Error(Exit::environment,
                   {.code = "rendezvous.auth",
                    .what = fmt::format("the rendezvous at {} has another token than we", where),
                    .help = "it belongs to another run: give every node of a job the same "
                            "--token_file and --rdzv_id, and every job its own port"});
    case LinkEvent::wrong_version:
      return Error(Exit::environment,
                   {.code = "launch.version",
                    .what = fmt::format(
                        "the rendezvous at {} speaks another version of the protocol", where),
                    .help = "install the same version of mtl on all nodes (see: mtl --version)"});
    default:
      return Error(
          event.loss == LinkEvent::closed ? Exit::run_failed : Exit::environment,
          {.code = "rendezvous.connect",
           .what = fmt::format("cannot join the rendezvous at {}: {}", where, event.reason),
           .help = "start the same command on node 0 (machine_rank 0), and check that this address "
                   "and port are reachable from here (firewall, main_process_ip)"});
  }
}

Diagnostic launcher_lost(const LinkEvent& event) {
  return {.code = "launch.controller_lost",
          .what = fmt::format("the launcher of this job is gone ({}); the ranks of {} were ended",
                              event.reason, host_name()),
          .help =
              "its terminal or log says more; start the job again to go on from the last "
              "checkpoint"};
}

Diagnostic lease_is_over(const std::string& reason) {
  return {.code = "launch.controller_lost",
          .what = fmt::format("the launcher of this job could not be reached in time{}, so the "
                              "ranks of {} were killed: the others may go on without them",
                              reason.empty() ? "" : " (" + reason + ")", host_name()),
          .help =
              "this process or its machine stood still (Ctrl-Z, SIGSTOP, sleep, out of memory) "
              "or the network did; --dead_after S allows longer gaps"};
}

}  // namespace mtl
