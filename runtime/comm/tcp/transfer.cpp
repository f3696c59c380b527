// The poll loop of a collective.
#include "runtime/comm/tcp/transfer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sched.h>
#include <utility>

#include <sys/socket.h>
#include <sys/uio.h>

#include <fmt/format.h>

#include "runtime/comm/reduce.h"

namespace mtl::tcp {

namespace {

using namespace std::chrono_literals;

// Of one system call: small enough that the summing of what came before is still in the cache and
// that other peers get their turn, large enough to hide the call.
constexpr int64_t kChunk = 256 << 10;
// The least that is summed at a time unless it is the rest.
constexpr int64_t kStretch = 32 << 10;
// Where summands wait: per peer and, with many peers, of all together.
constexpr int64_t kRing = 1 << 20;
constexpr int64_t kRings = 8 << 20;
constexpr int64_t kAlign = 64;
constexpr int kFewPeers = 3;

}  // namespace

Transfer::Transfer(std::shared_ptr<Core> core, uint64_t key, std::span<const int> ranks)
    : core_(std::move(core)), ranks_(ranks.begin(), ranks.end()) {
  rank_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), core_->peers->rank()) -
                           ranks_.begin());
  connections_ = connect_group(core_, key, ranks_);
  lanes_.resize(ranks_.size());
  // When all are here all have their connections.
  work({.op = comm::Op::join});
  run();
}

Work& Transfer::work(const comm::Operation& what) {
  std::vector<Share> shares = std::move(work_.shares);
  shares.assign(ranks_.size(), Share());
  work_ = Work();
  work_.what = what;
  work_.shares = std::move(shares);
  return work_;
}

int64_t Transfer::left_to_send(int rank) const {
  const Share& share = work_.shares[static_cast<size_t>(rank)];
  return int64_t{sizeof(Header)} + share.first_bytes + share.second_bytes -
         lanes_[static_cast<size_t>(rank)].sent;
}

int64_t Transfer::to_send(int rank) const {
  const Lane& lane = lanes_[static_cast<size_t>(rank)];
  if (!agree_) return int64_t{sizeof(Header)} - lane.sent;
  const Share& share = work_.shares[static_cast<size_t>(rank)];
  int64_t ready = share.second_bytes;
  if (work_.ready == Work::summed) ready = std::min(ready, summed_);
  if (work_.ready == Work::relayed) {
    ready = std::min(ready, lanes_[static_cast<size_t>(work_.relay_from)].direct);
  }
  return int64_t{sizeof(Header)} + share.first_bytes + ready - lane.sent;
}

int64_t Transfer::left_to_receive(int rank) const {
  const Share& share = work_.shares[static_cast<size_t>(rank)];
  return int64_t{sizeof(Header)} + (share.summand ? work_.sum_bytes : 0) + share.direct_bytes -
         lanes_[static_cast<size_t>(rank)].received;
}

bool Transfer::can_receive(int rank) const {
  const Lane& lane = lanes_[static_cast<size_t>(rank)];
  if (!lane.heard) return true;
  if (!agree_ || left_to_receive(rank) == 0) return false;
  const Share& share = work_.shares[static_cast<size_t>(rank)];
  // A full ring waits for the slowest peer.
  return !share.summand || lane.summand == work_.sum_bytes || lane.summand - summed_ < ring_bytes_;
}

void Transfer::prepare_ring() {
  if (work_.sum_bytes == 0) return;
  const int64_t share = kRings / (size() - 1) / kAlign * kAlign;
  const int64_t most = std::min(kRing, std::max<int64_t>(share, kStretch * 2));
  const int64_t wanted = std::min(most, (work_.sum_bytes + kAlign - 1) / kAlign * kAlign);
  if (wanted > ring_bytes_) {
    ring_bytes_ = wanted < most ? std::min(most, std::max<int64_t>(wanted, 64 << 10)) : most;
    rings_.resize(static_cast<size_t>(ring_bytes_ * size()));
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].ring = rings_.data() + static_cast<int64_t>(i) * ring_bytes_;
  }
}

void Transfer::run() {
  core_->peers->check();
  ++number_;
  header_ = {.number = number_,
             .numel = work_.what.numel,
             .root = work_.what.root,
             .op = static_cast<uint8_t>(work_.what.op),
             .dtype = static_cast<uint8_t>(work_.what.dtype),
             .reduce = static_cast<uint8_t>(work_.what.reduce)};
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.own = header_;
    lane.own.announced = work_.shares[i].announced;
    lane.sent = lane.received = lane.summand = lane.direct = 0;
    lane.send_blocked = lane.receive_blocked = lane.heard = false;
  }
  summed_ = 0;
  unheard_ = size() - 1;
  agree_ = true;
  prepare_ring();
  std::optional<Clock::time_point> idle_since;
  for (;;) {
    bool moved = false;
    // Each starts with its neighbour, so that they do not all turn to the same one.
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      const Lane& lane = lanes_[static_cast<size_t>(peer)];
      if (!lane.send_blocked && to_send(peer) > 0) moved |= send_some(peer);
      if (!lane.receive_blocked && can_receive(peer)) moved |= receive_some(peer);
      moved |= sum_some();
    }
    if (unheard_ == 0 && !agree_) compare();
    if (complete()) return;
    if (moved) {
      idle_since.reset();
      continue;
    }
    if (!idle_since) idle_since = Clock::now();
    pause(*idle_since);
  }
}

bool Transfer::complete() const {
  if (summed_ < work_.sum_bytes) return false;
  for (int rank = 0; rank < size(); ++rank) {
    if (is_peer(rank) && (left_to_send(rank) > 0 || left_to_receive(rank) > 0)) return false;
  }
  return true;
}

bool Transfer::send_some(int rank) {
  Lane& lane = lanes_[static_cast<size_t>(rank)];
  const Share& share = work_.shares[static_cast<size_t>(rank)];
  std::array<iovec, 3> parts;
  size_t count = 0;
  int64_t room = kChunk;
  int64_t most = to_send(rank);
  int64_t skip = lane.sent;
  const auto add = [&](const void* data, int64_t bytes) {
    const int64_t begin = std::min(skip, bytes);
    skip -= begin;
    const int64_t n = std::min({bytes - begin, room, most});
    if (n <= 0) return;
    parts[count++] = {const_cast<char*>(static_cast<const char*>(data)) + begin,
                      static_cast<size_t>(n)};
    room -= n;
    most -= n;
  };
  add(&lane.own, sizeof(Header));
  add(share.first, share.first_bytes);
  add(share.second, share.second_bytes);
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t n = ::sendmsg(connections_[static_cast<size_t>(rank)].fd(), &message,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      // What it sent before it went comes first.
      if (!can_receive(rank)) broken(rank);
    }
    lane.send_blocked = true;
    return false;
  }
  lane.sent += n;
  return true;
}

bool Transfer::receive_some(int rank) {
  Lane& lane = lanes_[static_cast<size_t>(rank)];
  const Share& share = work_.shares[static_cast<size_t>(rank)];
  std::array<iovec, 4> parts;
  size_t count = 0;
  const auto add = [&](void* data, int64_t bytes) {
    if (bytes > 0) parts[count++] = {data, static_cast<size_t>(bytes)};
  };
  const int64_t header_left = std::max<int64_t>(0, int64_t{sizeof(Header)} - lane.received);
  add(reinterpret_cast<char*>(&lane.header) + sizeof(Header) - header_left, header_left);
  int64_t room = kChunk;
  const int64_t summand_left = share.summand ? work_.sum_bytes - lane.summand : 0;
  if (summand_left > 0) {
    int64_t n = std::min({summand_left, room, ring_bytes_ - (lane.summand - summed_)});
    const int64_t place = lane.summand % ring_bytes_;
    const int64_t before_end = std::min(n, ring_bytes_ - place);
    add(lane.ring + place, before_end);
    add(lane.ring, n - before_end);
    room = n == summand_left ? room - n : 0;
  }
  if (room > 0) {
    add(share.direct + lane.direct, std::min(room, share.direct_bytes - lane.direct));
  }
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  ssize_t n = ::recvmsg(connections_[static_cast<size_t>(rank)].fd(), &message, MSG_DONTWAIT);
  if (n <= 0) {
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      lane.receive_blocked = true;
      return false;
    }
    broken(rank);
  }
  lane.received += n;
  n -= std::min<int64_t>(n, header_left);
  const int64_t summand = std::min<int64_t>(n, summand_left);
  lane.summand += summand;
  lane.direct += n - summand;
  if (!lane.heard && lane.received >= int64_t{sizeof(Header)}) hear(rank);
  return true;
}

void Transfer::hear(int rank) {
  Lane& lane = lanes_[static_cast<size_t>(rank)];
  lane.heard = true;
  lane.seen_number = lane.header.number;
  lane.seen_op = static_cast<comm::Op>(lane.header.op);
  --unheard_;
  // Whatever came behind another header is not what we took it for; and whom we disagree with does
  // not get more from us either.
  const int64_t announced = std::exchange(lane.header.announced, 0);
  if (std::memcmp(&lane.header, &header_, sizeof(Header)) != 0) {
    agree_ = false;
  } else if (const int64_t expected = work_.shares[static_cast<size_t>(rank)].expected;
             announced != expected) {
    core_->peers->fail(comm::message_mismatch(ranks_[static_cast<size_t>(rank)], work_.what.dtype,
                                              announced, ranks_[static_cast<size_t>(rank_)],
                                              Tensor(nullptr, work_.what.dtype, {expected})));
  }
}

void Transfer::compare() {
  std::vector<comm::Operation> all;
  for (int rank = 0; rank < size(); ++rank) {
    const Header& header = is_peer(rank) ? lanes_[static_cast<size_t>(rank)].header : header_;
    all.push_back({static_cast<comm::Op>(header.op), static_cast<DType>(header.dtype),
                   static_cast<Reduce>(header.reduce), header.root, header.numel});
  }
  if (const auto error = comm::disagreement(number_, ranks_, rank_, all)) {
    core_->peers->fail(*error);
  }
  core_->peers->fail(
      Error(Exit::run_failed,
            {.code = "comm.mismatch",
             .what = fmt::format("the ranks of {} have lost step at operation {} ({})",
                                 comm::group_name(ranks_), number_, comm::describe(work_.what)),
             .help = "this is a defect: please report it"}));
}

bool Transfer::sum_some() {
  if (summed_ == work_.sum_bytes || !agree_ || unheard_ > 0) return false;
  int64_t ready = work_.sum_bytes;
  bool full = false;
  for (int rank = 0; rank < size(); ++rank) {
    if (!is_peer(rank)) continue;
    const Lane& lane = lanes_[static_cast<size_t>(rank)];
    ready = std::min(ready, lane.summand);
    full |= lane.summand - summed_ == ring_bytes_;
    if (work_.sum_is_sent) {
      ready = std::min(ready, std::max<int64_t>(0, lane.sent - int64_t{sizeof(Header)}));
    }
  }
  if (ready < work_.sum_bytes) ready = ready / kAlign * kAlign;
  if (ready == summed_) return false;
  if (ready < work_.sum_bytes && ready - summed_ < kStretch && !full) return false;
  while (summed_ < ready) {
    const int64_t place = summed_ % ring_bytes_;
    const int64_t n = std::min(ready - summed_, ring_bytes_ - place);
    inputs_.clear();
    for (int rank = 0; rank < size(); ++rank) {
      inputs_.push_back(is_peer(rank) ? lanes_[static_cast<size_t>(rank)].ring + place
                                      : work_.sum_own + summed_);
    }
    void* output = work_.sum + summed_;
    reduce_in_order(work_.what.dtype, work_.what.reduce, inputs_, {&output, 1},
                    n / bytes_of(work_.what.dtype));
    summed_ += n;
  }
  return true;
}

void Transfer::pause(Clock::time_point idle_since) {
  const Clock::time_point now = Clock::now();
  const bool spin = core_->spins && now < idle_since + kSpin;
  if (spin && size() <= kFewPeers + 1) {
    // Trying costs no more than asking.
    for (Lane& lane : lanes_) lane.send_blocked = lane.receive_blocked = false;
    if (now > idle_since + kSpin / 4) ::sched_yield();
    return;
  }
  const Clock::time_point deadline = idle_since + core_->peers->timeout();
  if (now >= deadline) {
    std::vector<int> late;
    for (const int rank : missing()) late.push_back(ranks_[static_cast<size_t>(rank)]);
    core_->peers->timed_out(late, doing());
  }
  std::vector<pollfd> files;
  files.reserve(ranks_.size() + 1);
  for (int rank = 0; rank < size(); ++rank) {
    short events = 0;
    if (is_peer(rank) && to_send(rank) > 0) events |= POLLOUT;
    if (is_peer(rank) && can_receive(rank)) events |= POLLIN;
    files.push_back({events == 0 ? -1 : connections_[static_cast<size_t>(rank)].fd(), events, 0});
  }
  files.push_back({core_->peers->wake_fd(), POLLIN, 0});
  const int64_t left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now).count();
  const int patience = spin ? 0 : static_cast<int>(std::min<int64_t>(left + 1, 3'600'000));
  ::poll(files.data(), files.size(), patience);
  if (files.back().revents != 0) core_->peers->check();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if ((files[i].revents & (POLLIN | POLLERR | POLLHUP)) != 0) lanes_[i].receive_blocked = false;
    if ((files[i].revents & (POLLOUT | POLLERR | POLLHUP)) != 0) lanes_[i].send_blocked = false;
  }
}

void Transfer::broken(int rank) {
  core_->peers->lost(ranks_[static_cast<size_t>(rank)], doing());
}

std::vector<int> Transfer::missing() const {
  std::vector<int> absent;
  for (int rank = 0; rank < size(); ++rank) {
    if (!is_peer(rank)) continue;
    const bool late = unheard_ > 0 ? !lanes_[static_cast<size_t>(rank)].heard
                                   : left_to_receive(rank) > 0 || left_to_send(rank) > 0;
    if (late) absent.push_back(rank);
  }
  return absent;
}

std::string Transfer::doing() const {
  std::string text = fmt::format("waits in operation {} ({}) of {} for", number_,
                                 comm::describe(work_.what), comm::group_name(ranks_));
  bool first = true;
  for (const int rank : missing()) {
    const Lane& lane = lanes_[static_cast<size_t>(rank)];
    text += fmt::format("{} rank {} (at operation {}, {})", first ? "" : ",",
                        ranks_[static_cast<size_t>(rank)], lane.seen_number,
                        comm::name_of(lane.seen_op));
    first = false;
  }
  return text;
}

}  // namespace mtl::tcp
