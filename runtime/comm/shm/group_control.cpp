// Layout of a group's memory: Header, RankArea[n]; page-aligned from here: small slots[n][2],
// staging[n], pieces of the channels[n][n], Channel[n][n]. Pages that nobody touches cost nothing.
#include "runtime/comm/shm/group_control.h"

#include <algorithm>

#include <fmt/format.h>

namespace mtl::shm {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSlots = 2 * static_cast<size_t>(kSmallBytes);

size_t control_bytes(size_t n, size_t header, size_t area) {
  return (header + n * area + kPage - 1) / kPage * kPage;
}

}  // namespace

size_t GroupControl::bytes(int size, bool with_data) {
  const size_t n = static_cast<size_t>(size);
  const size_t control = control_bytes(n, sizeof(Header), sizeof(RankArea));
  if (!with_data) return control;
  return control + n * (kSlots + static_cast<size_t>(kStagingBytes)) +
         n * n * (kPieces * static_cast<size_t>(kPieceBytes) + sizeof(Channel));
}

GroupControl::GroupControl(std::shared_ptr<WorldState> world, std::vector<int> ranks,
                           SharedMemory memory)
    : world_(std::move(world)), ranks_(std::move(ranks)), memory_(std::move(memory)) {
  rank_ = static_cast<int>(std::lower_bound(ranks_.begin(), ranks_.end(), world_->rank()) -
                           ranks_.begin());
}

std::vector<int> GroupControl::job_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) ranks.push_back(job_rank(rank));
  return ranks;
}

char* GroupControl::data() const {
  return memory_.data() + control_bytes(ranks_.size(), sizeof(Header), sizeof(RankArea));
}

char* GroupControl::small_slot(int rank, uint64_t number) const {
  return data() + static_cast<size_t>(rank) * kSlots + (number % 2) * kSmallBytes;
}

char* GroupControl::staging(int rank) const {
  return data() + ranks_.size() * kSlots + rank * kStagingBytes;
}

char* GroupControl::piece(int from, int to, uint32_t index) const {
  const size_t channel_number = static_cast<size_t>(from) * ranks_.size() + static_cast<size_t>(to);
  return staging(size()) + (channel_number * kPieces + index) * kPieceBytes;
}

Channel& GroupControl::channel(int from, int to) const {
  char* channels = piece(size(), 0, 0);
  return reinterpret_cast<Channel*>(channels)[from * size() + to];
}

const Descriptor& GroupControl::descriptor(int rank) const {
  return area(rank).descriptors[number_ % 2];
}

void GroupControl::begin(const Descriptor& what) {
  world_->check_failure();
  ++number_;
  RankArea& own = area(rank_);
  own.descriptors[number_ % 2] = what;
  own.op.store(what.op, std::memory_order_relaxed);
  own.number.store(static_cast<uint32_t>(number_), std::memory_order_relaxed);
  barrier();
  compare();
}

void GroupControl::compare() {
  const comm::Operation first = descriptor(0).operation();
  bool agree = true;
  for (int rank = 1; rank < size(); ++rank) agree &= descriptor(rank).operation() == first;
  if (agree) return;
  std::vector<comm::Operation> all;
  for (int rank = 0; rank < size(); ++rank) all.push_back(descriptor(rank).operation());
  if (const auto error = comm::disagreement(number_, job_ranks(), rank_, all)) fail(*error);
}

void GroupControl::barrier() {
  Header& shared = header();
  // Nobody can move the epoch before we are counted.
  const uint32_t epoch = shared.epoch.word.load(std::memory_order_acquire);
  RankArea& own = area(rank_);
  own.arrivals.store(own.arrivals.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  if (shared.count.fetch_add(1, std::memory_order_acq_rel) + 1 ==
      static_cast<uint32_t>(ranks_.size())) {
    shared.count.store(0, std::memory_order_relaxed);
    shared.epoch.set(epoch + 1);
    return;
  }
  world_->wait(
      shared.epoch, [&] { return shared.epoch.word.load(std::memory_order_acquire) != epoch; },
      [&] { return missing(); }, [&] { return doing(); });
}

std::vector<int> GroupControl::missing() const {
  const uint32_t arrivals = area(rank_).arrivals.load(std::memory_order_relaxed);
  std::vector<int> absent;
  for (int rank = 0; rank < size(); ++rank) {
    if (area(rank).arrivals.load(std::memory_order_acquire) != arrivals) {
      absent.push_back(world_rank(rank));
    }
  }
  return absent;
}

std::string GroupControl::doing() const {
  const uint32_t arrivals = area(rank_).arrivals.load(std::memory_order_relaxed);
  std::string text = fmt::format("waits in operation {} ({}) of {} for", number_,
                                 describe(area(rank_).descriptors[number_ % 2].operation()),
                                 comm::group_name(job_ranks()));
  bool first = true;
  for (int rank = 0; rank < size(); ++rank) {
    const RankArea& other = area(rank);
    if (other.arrivals.load(std::memory_order_acquire) == arrivals) continue;
    text += fmt::format("{} rank {} (at operation {}, {})", first ? "" : ",", job_rank(rank),
                        other.number.load(std::memory_order_relaxed),
                        name_of(other.op.load(std::memory_order_relaxed)));
    first = false;
  }
  return text;
}

void GroupControl::wait_for_peer(Signal& signal, const std::function<bool()>& ready, int peer,
                                 const std::function<std::string()>& doing_what) {
  world_->check_failure();
  world_->wait(
      signal, ready, [&] { return std::vector<int>{world_rank(peer)}; }, doing_what);
}

}  // namespace mtl::shm
