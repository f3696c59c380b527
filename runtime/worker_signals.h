// What signals ask of a worker: INT, TERM and USR2 to stop, USR1 for a checkpoint.
//
// A scheduler may signal every process of a job: this one, and the launcher above it, which asks in
// its turn. That is one request, so those of the parent and of everybody else are counted apart,
// and only the second of somebody else is one that does not negotiate (a launcher that will not
// wait kills). USR2 is a scheduler's warning that time is nearly over: never more than a request.
#pragma once

namespace mtl::signals {

// Once, before any other thread is made: they inherit what is blocked.
void receive();

bool stop_requested();
// Whether a checkpoint has been asked for since the last call.
bool take_checkpoint();

// While it exists, who is asked to stop ends at once (Exit::requeue): ranks wait for each other,
// perhaps for one that has died, and before the first step there is nothing to save.
class WaitForRanks {
 public:
  WaitForRanks();
  ~WaitForRanks();
  WaitForRanks(const WaitForRanks&) = delete;
  WaitForRanks& operator=(const WaitForRanks&) = delete;
};

}  // namespace mtl::signals
