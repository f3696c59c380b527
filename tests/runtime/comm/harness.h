// Runs the same function as several ranks, as threads (one local store) or as processes (TCP
// store), and collects how each ended.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "rendezvous/store.h"
#include "runtime/comm/communicator.h"

namespace mtl::test {

// "" = well; else the diagnostic's code and the text.
struct Outcome {
  std::string code;
  std::string text;
};

using Body = std::function<void(CommWorld&)>;

// What carries a world. `mixed`: two pretended hosts, the first half of the ranks on one of them;
// shared memory within each.
enum class Transport { shm, tcp, mixed };
constexpr Transport kTransports[] = {Transport::shm, Transport::tcp, Transport::mixed};
const char* name_of(Transport transport);
std::unique_ptr<CommWorld> make_world(Transport transport, Store& store, int rank, int size,
                                      std::chrono::milliseconds timeout,
                                      const std::string& token = "a token of the tests");

constexpr std::chrono::milliseconds kLong = std::chrono::minutes(5);
std::vector<Outcome> run_threads(int size, const Body& body,
                                 std::chrono::milliseconds timeout = kLong,
                                 Transport transport = Transport::shm);
// A rank that is killed has the code "signal 9".
std::vector<Outcome> run_processes(int size, const Body& body,
                                   std::chrono::milliseconds timeout = kLong,
                                   Transport transport = Transport::shm);
// "" if all went well, else what the first unhappy rank says.
std::string problem_of(const std::vector<Outcome>& outcomes);
// Every rank has ended with this code, and a text that has all of these parts.
void check_all(const std::vector<Outcome>& outcomes, const std::string& code,
               const std::vector<std::string>& parts);
// Of threads or processes, on every transport in turn.
std::string threads_problem(int size, const Body& body);
std::string processes_problem(int size, const Body& body);

// Memory of a rank's own for small tensors.
struct Buffer {
  std::vector<float> data = std::vector<float>(10'000);
  Tensor tensor(int64_t n, DType dtype = DType::f32) { return Tensor(data.data(), dtype, {n}); }
};

// When ranks come to the place where others, or a time limit, are to find them.
class Arrivals {
 public:
  void note() {
    const std::scoped_lock lock(mutex_);
    times_.push_back(Clock::now());
  }
  // Whether so many have come, all in half the time after which the first of them gives up.
  bool together(size_t count, std::chrono::milliseconds limit) const {
    const std::scoped_lock lock(mutex_);
    if (times_.size() != count) return false;
    const auto [first, last] = std::minmax_element(times_.begin(), times_.end());
    return *last - *first < limit / 2;
  }

 private:
  using Clock = std::chrono::steady_clock;
  mutable std::mutex mutex_;
  std::vector<Clock::time_point> times_;
};

// Counts who has come to the end of a body, however.
struct CountsEnd {
  std::atomic<int>& ended;
  ~CountsEnd() { ++ended; }
};

// Inside a body, where doctest's macros do not reach the parent process.
inline void expect(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

// The rank's range of `all`, for operations in place.
inline Tensor part_of(const Tensor& all, const Communicator& group) {
  const int64_t count = all.numel() / group.size();
  return all.slice(group.rank() * count, count);
}

}  // namespace mtl::test
