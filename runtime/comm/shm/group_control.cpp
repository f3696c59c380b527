// Layout of a group's memory: Header, RankArea[n]; page-aligned from here: small slots[n][2],
// staging[n], pieces of the channels[n][n], Channel[n][n]. Pages that nobody touches cost nothing.
#include "runtime/comm/shm/group_control.h"

#include <algorithm>

#include <fmt/format.h>

namespace mtl::shm {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSlots = 2 * static_cast<size_t>(kSmallBytes);

const char* name_of(Op op) {
  switch (op) {
    case Op::none:
      return "nothing yet";
    case Op::join:
      return "joining";
    case Op::allocate:
      return "allocate";
    case Op::barrier:
      return "barrier";
    case Op::all_reduce:
      return "all_reduce";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::all_gather:
      return "all_gather";
    case Op::broadcast:
      return "broadcast";
  }
  return "";
}

size_t control_bytes(size_t n, size_t header, size_t area) {
  return (header + n * area + kPage - 1) / kPage * kPage;
}

}  // namespace

std::string describe(const Descriptor& what) {
  switch (what.op) {
    case Op::none:
    case Op::join:
    case Op::allocate:
    case Op::barrier:
      return name_of(what.op);
    case Op::all_reduce:
      return fmt::format("all_reduce({} x {}, {})", what.numel, safetensors_name(what.dtype),
                         what.reduce == Reduce::sum ? "sum" : "max");
    case Op::broadcast:
      return fmt::format("broadcast({} x {}, root {})", what.numel, safetensors_name(what.dtype),
                         what.root);
    case Op::reduce_scatter:
    case Op::all_gather:
      return fmt::format("{}({} x {})", name_of(what.op), what.numel, safetensors_name(what.dtype));
  }
  return "";
}

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

std::string GroupControl::name() const {
  return fmt::format("the group of ranks {}", fmt::join(ranks_, ", "));
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
  compare(what);
}

void GroupControl::compare(const Descriptor& own) {
  const Descriptor& first = descriptor(0);
  for (int rank = 1; rank < size(); ++rank) {
    const Descriptor& other = descriptor(rank);
    if (other.op == first.op && other.dtype == first.dtype && other.reduce == first.reduce &&
        other.root == first.root && other.numel == first.numel) {
      continue;
    }
    fail(Error(
        Exit::run_failed,
        {.code = "comm.mismatch",
         .what = fmt::format("the ranks do not do the same: as operation {} of {}, rank {} calls "
                             "{} and rank {} calls {}",
                             number_, name(), world_rank(0), describe(first), world_rank(rank),
                             describe(other)),
         .notes = {fmt::format("rank {} itself calls {}", world_->rank(), describe(own))},
         .help = "all ranks must run the same program with the same configuration; if they do, "
                 "this is a defect: please report it"}));
  }
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
                                 describe(area(rank_).descriptors[number_ % 2]), name());
  bool first = true;
  for (int rank = 0; rank < size(); ++rank) {
    const RankArea& other = area(rank);
    if (other.arrivals.load(std::memory_order_acquire) == arrivals) continue;
    text += fmt::format("{} rank {} (at operation {}, {})", first ? "" : ",", world_rank(rank),
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
