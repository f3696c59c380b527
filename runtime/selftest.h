// The self-check of a set-up, as each rank of `mtl test` runs it: stages that begin together and
// end with everybody's word, so that the first thing that is wrong is named with its rank and host.
//
//   spawn       each rank runs and has joined the job's store
//   rendezvous  all meet there
//   network     the world of the ranks is made; every operation in every type that the engine uses
//               gives the right elements; latency and bandwidth within and across hosts
//   train       a small GPT learns a built-in text: each rank alone, dp = world, and tp = 2
//   clocks      how far those of the hosts are apart
//
// Rank 0 has an umpire beside it, a thread that collects the words through the store, lets all go
// on to the next stage, or ends the test. It writes a JSON object per line to MTL_PROGRESS_FD:
//   {"stage": S, "ok": true, "seconds": s, "ranks": [what each rank found, by rank]}
//   {"stage": S, "ok": false, "seconds": s, "code", "what", "notes", "help", "rank", "host",
//   "exit"}
// where exit is 7 (a rank hangs or is too slow), 4 (environment) or 1, and the process ends with
// it.
//
// Only for the tests of this file: MTL_TEST_FAULT=stage:rank[:kind] makes that rank fail there.
// Kinds: wrong (network: an element of a sum; train: a loss; clocks: 5 s ahead), sleep, exit.
#pragma once

#include <chrono>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace mtl {

// In order.
inline constexpr const char* kSelftestStages[] = {"spawn", "rendezvous", "network", "train",
                                                  "clocks"};
// How many stages there are up to `last` and with it; all if it is none of them.
size_t selftest_stages_until(std::string_view last);

struct SelftestOptions {
  std::chrono::milliseconds timeout{15'000};  // of a stage
  std::vector<std::string> hosts;  // by node, as the user calls them; else their own names
  size_t stages = std::size(kSelftestStages);  // so many of them, from the first
};

// This process's rank, from the environment that `mtl worker` reads. Throws Error if it cannot join
// the others. If it fails later, the umpire is told, and this waits for the launcher to end it.
Exit run_selftest(const SelftestOptions& options);

}  // namespace mtl
