// One collective on the connections of a group, moved to all peers and from all peers at the same
// time by the calling thread. Every collective is the same motion with other numbers:
//
//   to each peer     what we call (the Header), then `first`, then `second` as far as it is ready;
//   from each peer   its Header, then what is to be summed, then what goes where it belongs.
//
// all_reduce: rank r owns range r. `first` = the peer's range of our tensor, what is summed = our
// range of the peers' tensors, `second` = our range of the sum. That moves 2 (n-1)/n of the bytes
// per rank, as a ring does, in two steps instead of 2 (n-1), and every range is summed by one rank
// in rank order, for which a ring would have to carry n partial sums. Receiving, summing and
// sending overlap: a stretch that has come from all is summed while it is in the cache and goes out
// while the next comes in; a peer that is ahead waits in its socket, so memory stays bounded.
// Small tensors take one step: everybody sends everything to everybody and sums it himself.
//
// No deadlock: nobody ever waits for one peer only, and a stretch that all have sent can be summed.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/operation.h"
#include "runtime/comm/tcp/connections.h"

namespace mtl::tcp {

// What goes to and comes from one peer, in bytes.
struct Share {
  const char* first = nullptr;
  int64_t first_bytes = 0;
  const char* second = nullptr;
  int64_t second_bytes = 0;
  bool summand = false;    // it sends `Work::sum_bytes` that are to be summed
  char* direct = nullptr;  // behind the summand
  int64_t direct_bytes = 0;
  // Where the ranks do not all send the same: elements that the peer is told to expect, and those
  // that we expect.
  int64_t announced = 0, expected = 0;
};

struct Work {
  comm::Operation what;
  std::vector<Share> shares;  // by rank in the group; our own is not looked at
  // The sum over all ranks; nothing if sum_bytes is 0.
  const char* sum_own = nullptr;
  char* sum = nullptr;
  int64_t sum_bytes = 0;
  bool sum_is_sent = false;  // `sum` overwrites what `first` sends: not before that has gone
  // When `second` is ready: as far as the sum is; as far as it has come from this rank; or at once.
  enum Ready { summed, relayed, now } ready = now;
  int relay_from = -1;
};

class Transfer {
 public:
  Transfer(std::shared_ptr<Core> core, uint64_t key, std::span<const int> ranks);

  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return rank_; }
  const std::vector<int>& ranks() const { return ranks_; }
  // For run(), which consumes them: cleared, with a Share per rank.
  Work& work(const comm::Operation& what);
  // Throws as Communicator documents.
  void run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Header {
    uint64_t number = 0;
    int64_t numel = 0;
    int64_t announced = 0;  // to this peer; everything else is for all alike
    int32_t root = 0;
    uint8_t op = 0, dtype = 0, reduce = 0, unused = 0;
  };
  struct Lane {
    Header header, own;               // theirs, and what we tell them
    int64_t sent = 0, received = 0;   // bytes of this operation, header included
    int64_t summand = 0, direct = 0;  // of those received
    char* ring = nullptr;             // where summands wait, ring_bytes_ of it
    bool send_blocked = false, receive_blocked = false;
    bool heard = false;        // the header is complete
    uint64_t seen_number = 0;  // of the last operation, for messages
    comm::Op seen_op = comm::Op::none;
  };

  bool is_peer(int rank) const { return rank != rank_; }
  int64_t to_send(int rank) const;  // that may go now and has not gone
  int64_t left_to_send(int rank) const;
  int64_t left_to_receive(int rank) const;
  bool can_receive(int rank) const;
  bool send_some(int rank);
  bool receive_some(int rank);
  bool sum_some();
  bool complete() const;
  void hear(int rank);
  void compare();
  void prepare_ring();
  // Waits for a socket that something can be done with; `idle_since` is when something last moved.
  void pause(Clock::time_point idle_since);
  [[noreturn]] void broken(int rank);
  std::vector<int> missing() const;  // ranks in the group
  std::string doing() const;

  const std::shared_ptr<Core> core_;
  const std::vector<int> ranks_;
  int rank_ = 0;
  std::vector<Connection> connections_;
  std::vector<Lane> lanes_;
  std::vector<char> rings_;
  int64_t ring_bytes_ = 0;
  Work work_;
  Header header_;
  uint64_t number_ = 0;
  int64_t summed_ = 0;
  int unheard_ = 0;
  bool agree_ = true;
  std::vector<const void*> inputs_;
};

}  // namespace mtl::tcp
