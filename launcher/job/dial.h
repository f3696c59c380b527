// Dials one peer by several names or ports of it, where nobody knows which of them works from here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/link.h"

namespace mtl {

struct DialTarget {
  std::string address;
  uint16_t port = 0;
};

// All at once; the first that opens counts and the others are closed. Until `patience` is over:
// then, or when all have failed before, the event (kind lost) of the one that got furthest.
// Nothing else may go on in the hub meanwhile.
LinkEvent dial_first(LinkHub& hub, const std::vector<DialTarget>& targets,
                     std::chrono::milliseconds patience);

}  // namespace mtl
