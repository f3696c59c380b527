// What each collective moves; how it moves, transfer.h says.
#include "runtime/comm/tcp/tcp_communicator.h"

#include <algorithm>
#include <cstring>

#include "runtime/comm/check.h"

namespace mtl::tcp {

namespace {

using comm::Op;

// When an all_reduce takes one step. Two ranks send no more in one step than in two; among more,
// sending less is soon faster than waiting once less. Measured (tests/bench/all_reduce).
bool takes_one_step(int64_t bytes, int size) {
  constexpr int64_t kOfTwo = 128 << 10;
  constexpr int64_t kSentByOne = 32 << 10;
  return size == 2 ? bytes <= kOfTwo : bytes * (size - 1) <= kSentByOne;
}
// What the root of a broadcast may send alone.
constexpr int64_t kOneStepBroadcast = 64 << 10;
constexpr int64_t kCacheLine = 64;

struct Range {
  int64_t first, bytes;
};
// A nearly equal part of so many bytes for each of `size`, in whole cache lines.
Range part_of(int64_t bytes, int rank, int size) {
  const int64_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  const int64_t first = std::min(bytes, lines * rank / size * kCacheLine);
  const int64_t last = std::min(bytes, lines * (rank + 1) / size * kCacheLine);
  return {first, last - first};
}

comm::Operation operation(Op op, const Tensor& x) {
  return {.op = op, .dtype = x.dtype, .numel = x.numel()};
}

char* bytes_at(const Tensor& x, int64_t offset) {
  return static_cast<char*>(x.data) + offset;
}

}  // namespace

TcpCommunicator::TcpCommunicator(std::shared_ptr<Core> core, uint64_t key,
                                 std::span<const int> ranks)
    : core_(std::move(core)), key_(key), transfer_(core_, key, ranks) {}

void TcpCommunicator::barrier() {
  transfer_.work({.op = Op::barrier});
  transfer_.run();
}

void TcpCommunicator::all_reduce(Tensor x, Reduce op) {
  comm::check_reducible("all_reduce", x);
  traffic_.all_reduce += x.bytes();
  comm::Operation what = operation(Op::all_reduce, x);
  what.reduce = op;
  Work& work = transfer_.work(what);
  work.sum_is_sent = takes_one_step(x.bytes(), size());
  const Range own = work.sum_is_sent ? Range{0, x.bytes()} : part_of(x.bytes(), rank(), size());
  work.sum_own = work.sum = bytes_at(x, own.first);
  work.sum_bytes = own.bytes;
  work.ready = Work::summed;
  for (int peer = 0; peer < size(); ++peer) {
    Share& share = work.shares[static_cast<size_t>(peer)];
    share.summand = own.bytes > 0;
    if (work.sum_is_sent) {
      share.first = bytes_at(x, 0);
      share.first_bytes = x.bytes();
      continue;
    }
    const Range theirs = part_of(x.bytes(), peer, size());
    share.first = share.direct = bytes_at(x, theirs.first);
    share.first_bytes = share.direct_bytes = theirs.bytes;
    share.second = bytes_at(x, own.first);
    share.second_bytes = own.bytes;
  }
  transfer_.run();
}

void TcpCommunicator::reduce_scatter(Tensor all, Tensor mine) {
  comm::check_reducible("reduce_scatter", all);
  comm::check_part("reduce_scatter", mine, all, rank(), size());
  traffic_.reduce_scatter += all.bytes();
  Work& work = transfer_.work(operation(Op::reduce_scatter, all));
  work.sum_own = bytes_at(all, mine.bytes() * rank());
  work.sum = bytes_at(mine, 0);
  work.sum_bytes = mine.bytes();
  for (int peer = 0; peer < size(); ++peer) {
    Share& share = work.shares[static_cast<size_t>(peer)];
    share.first = bytes_at(all, mine.bytes() * peer);
    share.first_bytes = mine.bytes();
    share.summand = mine.bytes() > 0;
  }
  transfer_.run();
}

void TcpCommunicator::all_gather(Tensor mine, Tensor all) {
  comm::check_part("all_gather", mine, all, rank(), size());
  traffic_.all_gather += all.bytes();
  Work& work = transfer_.work(operation(Op::all_gather, all));
  for (int peer = 0; peer < size(); ++peer) {
    Share& share = work.shares[static_cast<size_t>(peer)];
    share.first = bytes_at(mine, 0);
    share.first_bytes = mine.bytes();
    share.direct = bytes_at(all, mine.bytes() * peer);
    share.direct_bytes = mine.bytes();
  }
  transfer_.run();
  char* const own = bytes_at(all, mine.bytes() * rank());
  if (mine.bytes() > 0 && own != mine.data) {
    std::memcpy(own, mine.data, static_cast<size_t>(mine.bytes()));
  }
}

void TcpCommunicator::broadcast(Tensor x, int root) {
  comm::check_member("broadcast", root, size());
  traffic_.broadcast += x.bytes();
  comm::Operation what = operation(Op::broadcast, x);
  what.root = root;
  Work& work = transfer_.work(what);
  // The root gives each of the others a part, and they give it to each other: nobody sends more
  // than the whole.
  const bool whole = size() == 2 || x.bytes() * (size() - 1) <= kOneStepBroadcast;
  const auto part = [&](int peer) {
    return whole ? Range{0, x.bytes()} : part_of(x.bytes(), peer - (peer > root), size() - 1);
  };
  work.ready = Work::relayed;
  work.relay_from = root;
  for (int peer = 0; peer < size(); ++peer) {
    Share& share = work.shares[static_cast<size_t>(peer)];
    if (rank() == root) {
      if (peer == root) continue;
      share.first = bytes_at(x, part(peer).first);
      share.first_bytes = part(peer).bytes;
    } else if (peer == root) {
      share.direct = bytes_at(x, part(rank()).first);
      share.direct_bytes = part(rank()).bytes;
    } else if (!whole) {
      share.direct = bytes_at(x, part(peer).first);
      share.direct_bytes = part(peer).bytes;
      share.second = bytes_at(x, part(rank()).first);
      share.second_bytes = part(rank()).bytes;
    }
  }
  transfer_.run();
}

void TcpCommunicator::all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                                   std::span<const int64_t> recv_counts) {
  comm::check_all_to_all(from, send_counts, to, recv_counts, rank(), size());
  const int64_t element = bytes_of(from.dtype);
  Work& work = transfer_.work({.op = Op::all_to_all, .dtype = from.dtype});
  int64_t sent = 0, received = 0, own_from = 0, own_to = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    if (peer == rank()) {
      own_from = sent;
      own_to = received;
    }
    Share& share = work.shares[at];
    share.announced = send_counts[at];
    share.expected = recv_counts[at];
    share.first = bytes_at(from, sent);
    share.first_bytes = send_counts[at] * element;
    share.direct = bytes_at(to, received);
    share.direct_bytes = recv_counts[at] * element;
    sent += share.first_bytes;
    received += share.direct_bytes;
  }
  const int64_t own = send_counts[static_cast<size_t>(rank())] * element;
  traffic_.all_to_all += from.bytes() - own;
  transfer_.run();
  if (own > 0) {
    std::memcpy(bytes_at(to, own_to), bytes_at(from, own_from), static_cast<size_t>(own));
  }
}

void TcpCommunicator::send(Tensor x, int to) {
  comm::check_peer("send", to, rank(), size());
  outgoing_.try_emplace(job_rank(to), core_, key_, job_rank(to)).first->second.send(x);
  traffic_.send += x.bytes();
}

void TcpCommunicator::recv(Tensor x, int from) {
  comm::check_peer("recv", from, rank(), size());
  incoming_.try_emplace(job_rank(from), core_, key_, job_rank(from), x).first->second.receive(x);
}

}  // namespace mtl::tcp
