// What the threads of one rank know of the other ranks of a TCP world: who has left or died, what
// ended the world, and the connections that have come and wait for their users. The network's
// thread writes it; the threads that communicate wait on it. No sockets are read or written here
// but to shut them down.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"

namespace mtl::tcp {

// Where a rank is, as it says itself.
struct Card {
  std::string host;  // its name, for people
  int32_t pid = 0;
  std::string address;  // numeric
  uint16_t port = 0;

  std::string encode() const;
  static std::optional<Card> decode(const std::string& text);
};

// What a connection is for. A channel carries the messages of one rank to another, one way.
enum class Purpose : uint8_t { control = 1, group, channel_in, channel_out };
struct ConnectionKey {
  Purpose purpose = Purpose::control;
  uint64_t group = 0;
  int32_t peer = 0;  // in the job
  auto operator<=>(const ConnectionKey&) const = default;
};

class Peers {
 public:
  using Clock = std::chrono::steady_clock;

  Peers(int rank, std::vector<Card> cards, std::chrono::milliseconds timeout);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(cards_.size()); }
  const Card& card(int rank) const { return cards_[static_cast<size_t>(rank)]; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Readable once the world has ended for this rank: for poll(), beside the sockets.
  int wake_fd() const { return wake_.get(); }
  // Throws what ended the world, if something did, for all or (leave()) for us.
  void check() const {
    if (ended_.load(std::memory_order_acquire)) throw_end();
  }
  // Records the error as the world's end unless there is one already, tells the others, throws it.
  [[noreturn]] void fail(const Error& error);
  // The same without throwing.
  void end(const Error& error);
  // Our operations end, and with the sockets shut down those of the peers that wait for us.
  void leave();

  // The connection to `rank` has ended: waits a moment for the word why, then fails with
  // "comm.peer_lost". `doing` follows "while rank 3".
  [[noreturn]] void lost(int rank, const std::string& doing);
  [[noreturn]] void timed_out(const std::vector<int>& missing, const std::string& doing);

  // Waits for a connection, at most the timeout.
  Fd take(const ConnectionKey& key, const std::function<std::string()>& doing);

  // Sockets in use, which leave() shuts down.
  void in_use(int fd);
  void not_in_use(int fd);

  // For the network. The first failure of the world, as `rank` says.
  void failed_elsewhere(int rank, const Error& error);
  void departed(int rank, const std::string& reason);
  bool has_departed(int rank) const;
  void arrived(const ConnectionKey& key, Fd fd);
  void unreachable(const ConnectionKey& key, const Error& error);
  // The failure that ended the world, if one did.
  std::optional<Error> failure() const;
  bool has_left() const;

  // Set before any other thread knows of us. Our own first failure, for the others:
  std::function<void(const Error&)> tell_failure;
  std::function<void()> tell_leave;
  // The world's end by a failure of any rank, called once, by whichever thread brings it.
  std::function<void(const Error&)> on_failure;

 private:
  struct Arrival {
    Fd fd;
    std::optional<Error> error;
  };

  [[noreturn]] void throw_end() const;
  bool record(const Error& error, int rank);
  void wake();

  const int rank_;
  const std::vector<Card> cards_;
  const std::chrono::milliseconds timeout_;
  Fd wake_;
  std::atomic<bool> ended_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> failure_;
  int failure_rank_ = 0;
  bool left_ = false;
  std::map<int, std::string> departed_;
  std::map<ConnectionKey, Arrival> arrivals_;
  std::set<int> in_use_;
};

}  // namespace mtl::tcp
