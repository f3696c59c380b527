// What the flight recorders of NCCL's ranks keep, and what they say together.
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/comm/nccl/flight_recorder.h"

using namespace mtl;

namespace {

// A recorder's dump where `enqueued` operations were called, of which so many began and ended.
nccl::FlightDump dump_of(int rank, const nccl::GroupName& group, uint64_t enqueued,
                         uint64_t started, uint64_t finished, const std::string& last = "") {
  nccl::FlightDump dump = {.rank = rank, .reason = ""};
  dump.groups.push_back(
      {.group = group, .enqueued = enqueued, .started = started, .finished = finished});
  for (uint64_t i = 1; i <= enqueued; ++i) {
    const std::string what = i == enqueued && !last.empty() ? last : "all_reduce(8 x F32, sum)";
    dump.entries.push_back({.group = group.key,
                            .sequence = i,
                            .what = what,
                            .bytes = 32,
                            .enqueued = static_cast<double>(i),
                            .started = i <= started ? static_cast<double>(i) + 0.25 : 0,
                            .finished = i <= finished ? static_cast<double>(i) + 0.5 : 0});
  }
  return dump;
}

}  // namespace

TEST_CASE("nccl: the flight recorder keeps the last operations and reads back what it wrote") {
  nccl::FlightRecorder recorder(7);
  const nccl::GroupName group = {.key = 42, .ranks = {3, 7}};
  recorder.add_group(group);
  constexpr uint64_t kCount = nccl::FlightRecorder::kEntries + 100;
  for (uint64_t i = 1; i <= kCount; ++i) {
    const auto slot = recorder.enqueued(42, i, "barrier", 4);
    if (i < kCount) recorder.started(slot, 42, i);
    if (i + 1 < kCount) recorder.finished(slot, 42, i);
  }
  // What the ring has forgotten touches nothing.
  recorder.finished(0, 42, 1);
  const nccl::FlightDump dump = recorder.dump("because");
  REQUIRE(dump.entries.size() == nccl::FlightRecorder::kEntries);
  CHECK(dump.entries.front().sequence == 101);
  CHECK(dump.entries.back().sequence == kCount);
  CHECK(dump.entries.back().started == 0);

  const auto read = nccl::parse_flight(nccl::to_json_lines(dump) + "{\"group\": \"cut of");
  REQUIRE(read);
  CHECK(read->rank == 7);
  CHECK(read->reason == "because");
  REQUIRE(read->groups.size() == 1);
  CHECK(read->groups[0].group.ranks == group.ranks);
  CHECK(read->groups[0].enqueued == kCount);
  CHECK(read->groups[0].started == kCount - 1);
  CHECK(read->groups[0].finished == kCount - 2);
  REQUIRE(read->entries.size() == dump.entries.size());
  CHECK(read->entries[5].enqueued == doctest::Approx(dump.entries[5].enqueued));
  CHECK(read->entries[5].what == "barrier");
  const auto tail = nccl::parse_flight(nccl::to_json_lines(dump, 10));
  REQUIRE(tail);
  CHECK(tail->entries.size() == 10);
  CHECK(tail->entries.back().sequence == kCount);
  CHECK_FALSE(nccl::parse_flight("{\"something\": \"else\"}\n"));
  CHECK_FALSE(nccl::parse_flight(""));
}

TEST_CASE("nccl: the recorders of several ranks say who waits for whom") {
  const nccl::GroupName group = {.key = 1, .ranks = {0, 1, 2, 3, 4}};
  // Rank 1 has not called it, rank 2's device is busy, rank 3 calls another one, rank 4 is dead.
  const std::vector<nccl::FlightDump> dumps = {
      dump_of(0, group, 7, 7, 6), dump_of(1, group, 6, 6, 6), dump_of(2, group, 7, 6, 6),
      dump_of(3, group, 7, 7, 6, "broadcast(8 x F32, root 0)")};
  const nccl::Stalled stalled = nccl::why_stalled(group, 7, dumps);
  CHECK(stalled.not_called == std::vector<int>{1});
  CHECK(stalled.not_started == std::vector<int>{2});
  CHECK(stalled.different == std::vector<int>{3});
  CHECK(stalled.silent == std::vector<int>{4});
  CHECK(stalled.words ==
        std::vector<std::string>{"rank 1 has not called it (its last there is 6)",
                                 "rank 2 has called it, but its device has not come to it",
                                 "rank 3 calls broadcast(8 x F32, root 0) instead",
                                 "rank 4 does not answer"});
}

TEST_CASE("nccl: the recorders tell groups apart and know that a message has two ends") {
  const nccl::GroupName late = {.key = 1, .ranks = {0, 1}};
  const nccl::GroupName message = {.key = 2, .ranks = {1, 0}, .messages = true};
  nccl::FlightDump zero = dump_of(0, late, 9, 9, 8);
  const nccl::FlightDump receives = dump_of(0, message, 3, 3, 2, "recv(8 x F32)");
  zero.groups.push_back(receives.groups[0]);
  zero.entries.insert(zero.entries.end(), receives.entries.begin(), receives.entries.end());
  nccl::FlightDump one = dump_of(1, message, 3, 3, 2, "send(8 x F32)");
  const std::vector<nccl::FlightDump> dumps = {zero, one};
  CHECK(nccl::why_stalled(message, 3, dumps).words.empty());
  CHECK(nccl::why_stalled(late, 9, dumps).words ==
        std::vector<std::string>{"rank 1 has called nothing there yet"});
}
