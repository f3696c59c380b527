// The flight recorder of a rank: its last operations on every group, with when the host enqueued
// them and when the device began and ended them. When a job hangs, the recorders of all ranks side
// by side say who waits for whom: a collective ends when the last of its ranks has come.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mtl::nccl {

// A group as the recorders name it: the same on all its ranks, and of no other group.
struct GroupName {
  uint64_t key = 0;
  std::vector<int> ranks;  // of the world, ascending; of a pair, the one that sends first
  bool messages = false;   // between two ranks, in one direction
  bool numbers = false;    // no tensors: CommWorld::group_for_numbers()
};
// "the group of ranks 0, 1, 2, 3", "the messages from rank 3 to rank 0"
std::string words_of(const GroupName& group);

struct FlightEntry {
  uint64_t group = 0;     // GroupName::key
  uint64_t sequence = 0;  // of the group's operations, from 1
  std::string what;       // "all_reduce(1024 x F32, sum)"
  int64_t bytes = 0;
  // Seconds of the system's clock; 0 = not yet. The device's times are when we noticed.
  double enqueued = 0, started = 0, finished = 0;
};

// What a rank knows of one of its groups, also of operations that the ring has forgotten.
struct GroupProgress {
  GroupName group;
  uint64_t enqueued = 0, started = 0, finished = 0;  // the last operations that were
};

// A recorder's contents, and the text of it.
struct FlightDump {
  int rank = -1;
  std::string reason;
  std::vector<GroupProgress> groups = {};
  std::vector<FlightEntry> entries = {};  // oldest first
};
// One JSON object per line: the rank, its groups, its operations. `entries_at_most`: the newest.
std::string to_json_lines(const FlightDump& dump, size_t entries_at_most = SIZE_MAX);
// Nothing if the text is none of a recorder; lines that are cut off are passed over.
std::optional<FlightDump> parse_flight(const std::string& text);

// What the operation `sequence` of a group waits for, told by the ranks' dumps (of those that have
// given one).
struct Stalled {
  std::vector<int> silent;         // no dump: dead, or cut off
  std::vector<int> not_called;     // have not enqueued it
  std::vector<int> not_started;    // their device has not come to it
  std::vector<int> different;      // have enqueued something else under this number
  std::vector<std::string> words;  // a sentence for each of these ranks
};
Stalled why_stalled(const GroupName& group, uint64_t sequence, std::span<const FlightDump> dumps);

class FlightRecorder {
 public:
  static constexpr size_t kEntries = 4096;
  // A slot of the ring and what was in it; it may have been overwritten since.
  using Slot = uint64_t;

  explicit FlightRecorder(int rank) : rank_(rank) {}
  void add_group(const GroupName& group);
  Slot enqueued(uint64_t group, uint64_t sequence, std::string what, int64_t bytes);
  void started(Slot slot, uint64_t group, uint64_t sequence);
  void finished(Slot slot, uint64_t group, uint64_t sequence);
  FlightDump dump(const std::string& reason) const;

 private:
  GroupProgress& progress(uint64_t group);

  const int rank_;
  mutable std::mutex mutex_;
  std::vector<FlightEntry> ring_;  // entry n at n % kEntries
  uint64_t count_ = 0;
  std::vector<GroupProgress> groups_;
};

}  // namespace mtl::nccl
