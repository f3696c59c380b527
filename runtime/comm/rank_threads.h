// The ranks of one machine as threads of one process (launch.spawn: threads).
#pragma once

#include <chrono>
#include <functional>

#include "runtime/comm/communicator.h"

namespace mtl {

// Runs `body` for each of the ranks 0 .. size-1 in a thread of its own, with its world, and returns
// when all have returned. When ranks fail, throws what the first of them threw, with its rank in
// front of the text; "comm.peer_lost" is what the failure of one rank does to the others and counts
// only if there is nothing else. A body that fails calls world.leave(), or destroys what waits for
// peers, before it throws.
//
// A process has one end: ranks that still run `patience` after the first failure are not waited
// for; then the error is printed to stderr and the process ends here with its exit code.
void run_rank_threads(int size, const std::function<void(CommWorld&)>& body,
                      std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace mtl
