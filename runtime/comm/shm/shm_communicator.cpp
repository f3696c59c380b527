// Three paths per collective, the same arithmetic in all:
//   small     (at most kSmallBytes) everybody copies its tensor into its slot, one barrier,
//             everybody takes what it needs from all slots;
//   resident  (all tensors lie in arenas, at any offsets) ranks read and write each other's
//             tensors in place, between two barriers;
//   staged    the tensors pass through the staging areas, chunk by chunk.
// Reduce-scatter and all-gather write only the caller's own memory, whether in place or not.
// begin() tells all ranks what all others have, so that all take the same path.
#include "runtime/comm/shm/shm_communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "runtime/comm/check.h"
#include "runtime/comm/reduce.h"

namespace mtl::shm {

namespace {

constexpr int64_t kCacheLine = 64;

// A null pointer is fine for no bytes, but not for memcpy; nor is a copy onto itself.
void copy(void* target, const void* source, int64_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, static_cast<size_t>(bytes));
}

struct Range {
  int64_t first, count;
};
// A nearly equal part per rank, in whole cache lines.
Range part_of(int64_t numel, int64_t element, int rank, int size) {
  const int64_t line = std::max<int64_t>(1, kCacheLine / element);
  const int64_t lines = (numel + line - 1) / line;
  const int64_t first = std::min(numel, lines * rank / size * line);
  const int64_t last = std::min(numel, lines * (rank + 1) / size * line);
  return {first, last - first};
}

}  // namespace

ShmCommunicator::ShmCommunicator(std::unique_ptr<GroupControl> group) : group_(std::move(group)) {
  for (int rank = 0; rank < size(); ++rank) staging_.push_back(group_->staging(rank));
  tensors_.resize(staging_.size());
}

Descriptor ShmCommunicator::descriptor(Op op, const Tensor& x, const Tensor& read_by_peers) const {
  Descriptor what = {.op = op, .dtype = x.dtype, .numel = x.numel()};
  if (!small(x)) {
    what.residence =
        group_->world().find(read_by_peers.data, read_by_peers.bytes()).value_or(Residence());
  }
  return what;
}

bool ShmCommunicator::find_tensors() {
  for (int rank = 0; rank < size(); ++rank) {
    const Residence residence = group_->descriptor(rank).residence;
    if (residence.region < 0) return false;
    tensors_[static_cast<size_t>(rank)] =
        group_->world().address(residence, group_->world_rank(rank));
  }
  return true;
}

void ShmCommunicator::inputs_from(const std::vector<char*>& bases, int64_t offset) {
  inputs_.clear();
  for (const char* base : bases) inputs_.push_back(base + offset);
}

void ShmCommunicator::barrier() {
  group_->begin({.op = Op::barrier});
}

void ShmCommunicator::all_reduce(Tensor x, Reduce op) {
  comm::check_reducible("all_reduce", x);
  Descriptor what = descriptor(Op::all_reduce, x, x);
  what.reduce = op;
  traffic_.all_reduce += x.bytes();
  if (small(x)) {
    copy(group_->next_small_slot(), x.data, x.bytes());
    group_->begin(what);
    inputs_.clear();
    for (int rank = 0; rank < size(); ++rank) inputs_.push_back(group_->small_slot(rank));
    reduce_in_order(x.dtype, op, inputs_, {&x.data, 1}, x.numel());
    return;
  }
  group_->begin(what);
  if (!find_tensors()) return staged_all_reduce(x, op);
  // Every rank reduces one part and writes it to all, straight from its cache: cheaper by a whole
  // pass over memory than leaving it to the others to fetch. Nobody else touches this part.
  const Range part = part_of(x.numel(), bytes_of(x.dtype), rank(), size());
  inputs_from(tensors_, part.first * bytes_of(x.dtype));
  outputs_.clear();
  for (char* tensor : tensors_) outputs_.push_back(tensor + part.first * bytes_of(x.dtype));
  reduce_in_order(x.dtype, op, inputs_, outputs_, part.count);
  group_->barrier();
}

void ShmCommunicator::staged_all_reduce(const Tensor& x, Reduce op) {
  const int64_t element = bytes_of(x.dtype);
  const int64_t chunk = kStagingBytes / element;
  char* own = group_->staging(rank());
  for (int64_t first = 0; first < x.numel(); first += chunk) {
    const Tensor piece = x.slice(first, std::min(chunk, x.numel() - first));
    copy(own, piece.data, piece.bytes());
    group_->barrier();
    const Range part = part_of(piece.numel(), element, rank(), size());
    inputs_from(staging_, part.first * element);
    outputs_.clear();
    for (char* area : staging_) outputs_.push_back(area + part.first * element);
    reduce_in_order(x.dtype, op, inputs_, outputs_, part.count);
    group_->barrier();
    // Until the next barrier nobody else looks into our area: read and refill it in peace.
    copy(piece.data, own, piece.bytes());
  }
}

void ShmCommunicator::reduce_scatter(Tensor all, Tensor mine) {
  comm::check_reducible("reduce_scatter", all);
  comm::check_part("reduce_scatter", mine, all, rank(), size());
  const Descriptor what = descriptor(Op::reduce_scatter, all, all);
  traffic_.reduce_scatter += all.bytes();
  if (small(all)) {
    copy(group_->next_small_slot(), all.data, all.bytes());
    group_->begin(what);
    inputs_.clear();
    for (int from = 0; from < size(); ++from) {
      inputs_.push_back(group_->small_slot(from) + mine.bytes() * rank());
    }
    reduce_in_order(mine.dtype, Reduce::sum, inputs_, {&mine.data, 1}, mine.numel());
    return;
  }
  group_->begin(what);
  if (!find_tensors()) return staged_reduce_scatter(all, mine);
  // In place, the range that we overwrite is the one that nobody else reads.
  inputs_from(tensors_, mine.bytes() * rank());
  reduce_in_order(mine.dtype, Reduce::sum, inputs_, {&mine.data, 1}, mine.numel());
  group_->barrier();
}

void ShmCommunicator::staged_reduce_scatter(const Tensor& all, const Tensor& mine) {
  // A chunk holds the same stretch of every rank's range, side by side. While one half is read the
  // other is filled, and the barrier in between is the only one.
  const int64_t element = bytes_of(all.dtype);
  const int64_t count = mine.numel();
  const int64_t chunk = kStagingBytes / 2 / size() / kCacheLine * kCacheLine / element;
  int64_t half = 0;
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t n = std::min(chunk, count - first);
    char* own = group_->staging(rank()) + half;
    for (int to = 0; to < size(); ++to) {
      copy(own + to * chunk * element, all.slice(to * count + first, n).data, n * element);
    }
    group_->barrier();
    inputs_from(staging_, half + rank() * chunk * element);
    const Tensor piece = mine.slice(first, n);
    reduce_in_order(all.dtype, Reduce::sum, inputs_, {&piece.data, 1}, n);
    half = kStagingBytes / 2 - half;
  }
}

void ShmCommunicator::all_gather(Tensor mine, Tensor all) {
  comm::check_part("all_gather", mine, all, rank(), size());
  const Descriptor what = descriptor(Op::all_gather, all, mine);
  traffic_.all_gather += all.bytes();
  const auto take = [&](int from, const void* source) {
    copy(all.slice(from * mine.numel(), mine.numel()).data, source, mine.bytes());
  };
  if (small(all)) {
    copy(group_->next_small_slot(), mine.data, mine.bytes());
    group_->begin(what);
    for (int from = 0; from < size(); ++from) take(from, group_->small_slot(from));
    return;
  }
  group_->begin(what);
  if (!find_tensors()) return staged_all_gather(mine, all);
  // Each rank starts with its neighbour, so that they do not all read the same memory at once.
  for (int i = 1; i < size(); ++i) {
    const int from = (rank() + i) % size();
    take(from, tensors_[static_cast<size_t>(from)]);
  }
  take(rank(), mine.data);
  group_->barrier();
}

void ShmCommunicator::staged_all_gather(const Tensor& mine, const Tensor& all) {
  const int64_t element = bytes_of(all.dtype);
  const int64_t count = mine.numel();
  const int64_t chunk = kStagingBytes / 2 / element;
  int64_t half = 0;
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t n = std::min(chunk, count - first);
    copy(group_->staging(rank()) + half, mine.slice(first, n).data, n * element);
    group_->barrier();
    for (int i = 1; i < size(); ++i) {
      const int from = (rank() + i) % size();
      copy(all.slice(from * count + first, n).data, group_->staging(from) + half, n * element);
    }
    half = kStagingBytes / 2 - half;
  }
  copy(all.slice(rank() * count, count).data, mine.data, mine.bytes());
}

void ShmCommunicator::broadcast(Tensor x, int root) {
  comm::check_member("broadcast", root, size());
  Descriptor what = descriptor(Op::broadcast, x, x);
  what.root = root;
  const bool source = rank() == root;
  traffic_.broadcast += x.bytes();
  if (small(x)) {
    if (source) copy(group_->next_small_slot(), x.data, x.bytes());
    group_->begin(what);
    if (!source) copy(x.data, group_->small_slot(root), x.bytes());
    return;
  }
  group_->begin(what);
  // Only the root's tensor is read by others.
  const Residence residence = group_->descriptor(root).residence;
  if (residence.region < 0) return staged_broadcast(x, root);
  if (!source) {
    copy(x.data, group_->world().address(residence, group_->world_rank(root)), x.bytes());
  }
  group_->barrier();
}

void ShmCommunicator::staged_broadcast(const Tensor& x, int root) {
  const int64_t element = bytes_of(x.dtype);
  const int64_t chunk = kStagingBytes / 2 / element;
  int64_t half = 0;
  for (int64_t first = 0; first < x.numel(); first += chunk) {
    const Tensor piece = x.slice(first, std::min(chunk, x.numel() - first));
    if (rank() == root) copy(group_->staging(root) + half, piece.data, piece.bytes());
    group_->barrier();
    if (rank() != root) copy(piece.data, group_->staging(root) + half, piece.bytes());
    half = kStagingBytes / 2 - half;
  }
}

// A rank's slot has what it sends to whom, and behind that its tensor if there is room.
void ShmCommunicator::all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                                   std::span<const int64_t> recv_counts) {
  comm::check_all_to_all(from, send_counts, to, recv_counts, rank(), size());
  const int64_t counts_bytes = int64_t{sizeof(int64_t)} * size();
  comm::check_room("all_to_all", counts_bytes, kSmallBytes);
  const int64_t element = bytes_of(from.dtype);
  const auto fits = [&](int64_t bytes) { return counts_bytes + bytes <= kSmallBytes; };
  Descriptor what = {.op = Op::all_to_all, .dtype = from.dtype};
  char* const slot = group_->next_small_slot();
  copy(slot, send_counts.data(), counts_bytes);
  if (fits(from.bytes())) {
    copy(slot + counts_bytes, from.data, from.bytes());
  } else {
    what.residence = group_->world().find(from.data, from.bytes()).value_or(Residence());
  }
  traffic_.all_to_all += from.bytes() - send_counts[static_cast<size_t>(rank())] * element;
  group_->begin(what);

  std::vector<Piece> pieces(static_cast<size_t>(size()));
  std::vector<int64_t> counts(pieces.size());
  int64_t place = 0;
  bool read_by_peers = false, staged = false;
  for (int source = 0; source < size(); ++source) {
    const auto at = static_cast<size_t>(source);
    copy(counts.data(), group_->small_slot(source), counts_bytes);
    Piece& piece = pieces[at];
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) piece.first = piece.all;
      piece.all += counts[static_cast<size_t>(peer)];
    }
    piece.count = counts[static_cast<size_t>(rank())];
    piece.place = place;
    place += recv_counts[at];
    piece.is_in_slot = fits(piece.all * element);
    piece.is_resident = !piece.is_in_slot && group_->descriptor(source).residence.region >= 0;
    read_by_peers |= piece.is_resident;
    staged |= !piece.is_in_slot && !piece.is_resident;
    if (piece.count != recv_counts[at]) {
      group_->fail(comm::message_mismatch(group_->job_rank(source), from.dtype, piece.count,
                                          group_->job_rank(rank()),
                                          Tensor(nullptr, to.dtype, {recv_counts[at]})));
    }
  }
  // Each rank starts with itself and goes on with its neighbour.
  for (int i = 0; i < size(); ++i) {
    const int source = (rank() + i) % size();
    const Piece& piece = pieces[static_cast<size_t>(source)];
    const char* first = nullptr;
    if (source == rank()) {
      first = from.as<const char>();
    } else if (piece.is_in_slot) {
      first = group_->small_slot(source) + counts_bytes;
    } else if (piece.is_resident) {
      first =
          group_->world().address(group_->descriptor(source).residence, group_->world_rank(source));
    } else {
      continue;
    }
    copy(to.as<char>() + piece.place * element, first + piece.first * element,
         piece.count * element);
  }
  if (staged) staged_all_to_all(from, to, pieces);
  if (read_by_peers) group_->barrier();
}

void ShmCommunicator::staged_all_to_all(const Tensor& from, const Tensor& to,
                                        const std::vector<Piece>& pieces) {
  const int64_t element = bytes_of(from.dtype);
  const int64_t chunk = kStagingBytes / 2 / element;
  const auto is_staged = [](const Piece& piece) { return !piece.is_in_slot && !piece.is_resident; };
  int64_t longest = 0;
  for (const Piece& piece : pieces) {
    if (is_staged(piece)) longest = std::max(longest, piece.all);
  }
  int64_t half = 0;
  for (int64_t first = 0; first < longest; first += chunk) {
    if (is_staged(pieces[static_cast<size_t>(rank())]) && first < from.numel()) {
      const Tensor part = from.slice(first, std::min(chunk, from.numel() - first));
      copy(group_->staging(rank()) + half, part.data, part.bytes());
    }
    group_->barrier();
    for (int i = 1; i < size(); ++i) {
      const int source = (rank() + i) % size();
      const Piece& piece = pieces[static_cast<size_t>(source)];
      if (!is_staged(piece)) continue;
      const int64_t begin = std::max(first, piece.first);
      const int64_t end = std::min(first + chunk, piece.first + piece.count);
      if (begin >= end) continue;
      copy(to.as<char>() + (piece.place + begin - piece.first) * element,
           group_->staging(source) + half + (begin - first) * element, (end - begin) * element);
    }
    half = kStagingBytes / 2 - half;
  }
}

void ShmCommunicator::send(Tensor x, int to) {
  comm::check_peer("send", to, rank(), size());
  Channel& channel = group_->channel(rank(), to);
  const auto doing = [&] {
    return fmt::format("waits in send({} x {}) to rank {} for room", x.numel(),
                       safetensors_name(x.dtype), group_->job_rank(to));
  };
  int64_t done = 0;
  do {
    uint64_t used = 0;
    group_->wait_for_peer(
        channel.taken,
        [&] { return (used = channel.used.load(std::memory_order_acquire)) != ~uint64_t{0}; }, to,
        doing);
    const uint32_t piece = static_cast<uint32_t>(std::countr_one(used));
    const int64_t bytes = std::min(kPieceBytes, x.bytes() - done);
    copy(group_->piece(rank(), to, piece), static_cast<const char*>(x.data) + done, bytes);
    channel.used.fetch_or(uint64_t{1} << piece, std::memory_order_relaxed);
    const uint32_t posted = channel.posted.word.load(std::memory_order_relaxed);
    channel.posts[posted % kPieces] = {
        .piece = piece, .dtype = x.dtype, .message_numel = x.numel(), .bytes = bytes};
    channel.posted.set(posted + 1);
    done += bytes;
  } while (done < x.bytes());
  traffic_.send += x.bytes();
}

void ShmCommunicator::recv(Tensor x, int from) {
  comm::check_peer("recv", from, rank(), size());
  Channel& channel = group_->channel(from, rank());
  const auto doing = [&] {
    return fmt::format("waits in recv({} x {}) for a message of rank {}", x.numel(),
                       safetensors_name(x.dtype), group_->job_rank(from));
  };
  int64_t done = 0;
  do {
    const uint32_t taken = channel.taken.word.load(std::memory_order_relaxed);
    group_->wait_for_peer(
        channel.posted,
        [&] { return channel.posted.word.load(std::memory_order_acquire) != taken; }, from, doing);
    const Channel::Post post = channel.posts[taken % kPieces];
    if (post.dtype != x.dtype || post.message_numel != x.numel()) {
      group_->fail(comm::message_mismatch(group_->job_rank(from), post.dtype, post.message_numel,
                                          group_->job_rank(rank()), x));
    }
    copy(static_cast<char*>(x.data) + done, group_->piece(from, rank(), post.piece), post.bytes);
    channel.used.fetch_and(~(uint64_t{1} << post.piece), std::memory_order_release);
    channel.taken.set(taken + 1);
    done += post.bytes;
  } while (done < x.bytes());
}

}  // namespace mtl::shm
