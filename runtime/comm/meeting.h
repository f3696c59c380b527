// The ranks of a world meet in the store.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/store.h"

namespace mtl::comm {

// Throws "comm.rank" (Exit::run_failed) if somebody has taken this rank under this prefix already.
void claim_rank(Store& store, const std::string& prefix, int rank);

// exchange(), with "comm.timeout" if somebody does not come.
std::vector<std::string> meet(Store& store, const std::string& key, int rank, int size,
                              const std::string& value, std::chrono::milliseconds timeout);

// What `rank` says about itself cannot be read: "comm.host" (Exit::run_failed).
[[noreturn]] void refuse_card(int rank);

}  // namespace mtl::comm
