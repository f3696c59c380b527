// How the ranks that a foreign launcher has started (srun, mpirun, torchrun, jsrun) become one job.
// Rank 0 serves the store on a free port and leaves its addresses and a token of this start in a
// file that its user alone can read, in a folder that all ranks see. So nobody has to know a port,
// a name that resolves, or a secret beforehand, and nothing is on a command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/store.h"

namespace mtl {

// What all ranks learn from rank 0.
struct MeetingWord {
  std::string run_dir;
  int64_t fence = 0;
  bool complete = false;  // nothing is left to train
};

struct RankMeetingOptions {
  std::filesystem::path folder;  // is made where it is not there
  std::string key;               // of this start; the same for all its ranks
  int rank = 0;
  int world = 1;
  bool one_host = false;  // of all ranks, where that is known
  int64_t generation = 0;
  std::string address;                          // MASTER_ADDR, of rank 0's host; "" = not said
  std::chrono::milliseconds patience{300'000};  // for rank 0, and for the others
  std::function<MeetingWord()> open;            // asked in rank 0 when others can hear of it
};

struct RankMeeting {
  std::unique_ptr<StoreServer> server;  // rank 0's; serves as long as this is there
  std::unique_ptr<Store> store;
  std::string token;
  MeetingWord word;
  std::string own_address;  // numeric: where other hosts reach this one
};

// Throws Error "worker.meeting" (Exit::environment): who waited for what, and where. An Error of
// `open` is thrown by rank 0; the others throw "worker.rank_0" with its exit code.
RankMeeting meet_ranks(const RankMeetingOptions& options);

}  // namespace mtl
