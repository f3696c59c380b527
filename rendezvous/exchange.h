// Everybody tells everybody one thing: the first step of every transport.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/store.h"

namespace mtl {

// Collective over `size` callers: gives `value` under `key` and returns all values by rank. Throws
// "rendezvous.timeout" naming the ranks that did not come.
std::vector<std::string> exchange(Store& store, const std::string& key, int rank, int size,
                                  const std::string& value, std::chrono::milliseconds timeout);

}  // namespace mtl
