// Waiting, failing together, and finding memory.
#include "runtime/comm/shm/world_state.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <sched.h>
#include <thread>

#include <fmt/format.h>

namespace mtl::shm {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// How long a rank spins before it sleeps, where every rank has a CPU: a few times the cost of
// sleeping and waking up. Where they share CPUs, spinning would only hold up the awaited rank. That
// may also happen where there are CPUs enough but other work on them: after a while the rank offers
// its CPU at every turn (which costs nothing if nobody else wants it).
constexpr auto kSpin = 30us;
constexpr auto kSpinAlone = 2us;
// How often a sleeper looks whether the others are still there.
constexpr auto kLookAround = 100ms;
// For a failing rank to finish writing down why.
constexpr auto kFailurePatience = 200ms;
constexpr auto kLongest = std::chrono::hours(24 * 365);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void copy_text(char* target, size_t capacity, const std::string& text) {
  const size_t length = std::min(capacity - 1, text.size());
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

size_t members_offset() {
  return (sizeof(Failure) + alignof(Member) - 1) / alignof(Member) * alignof(Member);
}

}  // namespace

size_t WorldState::control_bytes(int size) {
  return members_offset() + sizeof(Member) * static_cast<size_t>(size);
}

WorldState::WorldState(int rank, std::vector<Identity> identities,
                       std::chrono::milliseconds timeout, SharedMemory control,
                       std::vector<int> job_ranks)
    : rank_(rank),
      size_(static_cast<int>(identities.size())),
      identities_(std::move(identities)),
      timeout_(std::min<std::chrono::milliseconds>(timeout, kLongest)),
      job_ranks_(std::move(job_ranks)),
      control_(std::move(control)) {
  std::string cpus;
  for (const Identity& identity : identities_) cpus = unite_cpus(cpus, identity.cpus);
  spins_ = count_cpus(cpus) >= size_;
}

WorldState::~WorldState() {
  leave();
}

Failure& WorldState::failure() const {
  return *reinterpret_cast<Failure*>(control_.data());
}

Member& WorldState::member(int rank) const {
  return reinterpret_cast<Member*>(control_.data() + members_offset())[rank];
}

void WorldState::wait(Signal& signal, const std::function<bool()>& ready,
                      const std::function<std::vector<int>()>& missing,
                      const std::function<std::string()>& doing) {
  const Clock::time_point start = Clock::now();
  for (Clock::time_point now = start; spins_ && now < start + kSpin; now = Clock::now()) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return;
      relax();
    }
    if (now > start + kSpinAlone) ::sched_yield();
  }
  const Clock::time_point deadline = start + timeout_;
  Clock::time_point look = start + kLookAround;
  for (;;) {
    const uint32_t seen = signal.word.load(std::memory_order_acquire);
    if (ready()) return;
    check_failure();
    const Clock::time_point now = Clock::now();
    if (now >= deadline || now >= look) {
      const std::vector<int> absent = missing();
      for (const int rank : absent) {
        const auto reason = why_lost(rank);
        // It may have come and then gone, in this order.
        if (!reason || ready()) continue;
        fail(Error(Exit::run_failed,
                   {.code = "comm.peer_lost",
                    .what = fmt::format("rank {} {} while rank {} {}", job_rank(rank), *reason,
                                        job_rank(rank_), doing()),
                    .help = fmt::format("the log of rank {} says why it ended", job_rank(rank))}),
             &signal);
      }
      if (now >= deadline && !ready()) {
        std::vector<int> late;
        for (const int rank : absent) late.push_back(job_rank(rank));
        fail(Error(Exit::timeout,
                   {.code = "comm.timeout",
                    .what = fmt::format("rank {} has waited {} s while it {}", job_rank(rank_),
                                        static_cast<double>(timeout_.count()) / 1000, doing()),
                    .help = fmt::format("rank {} is stuck or much slower than the others: see its "
                                        "log and its stack (gdb -p <pid>)",
                                        fmt::join(late, ", "))}),
             &signal);
      }
      look = now + kLookAround;
    }
    signal.sleep(seen, std::max(std::min(look, deadline) - now, Clock::duration(1us)));
  }
}

std::optional<std::string> WorldState::why_lost(int rank) const {
  if (member(rank).departed.load(std::memory_order_acquire) != 0) return "has left";
  const Identity& peer = identities_[static_cast<size_t>(rank)];
  if (!is_running(peer.pid, peer.start_time)) {
    return fmt::format("(process {}) has died", peer.pid);
  }
  return std::nullopt;
}

void WorldState::check_failure() const {
  const Failure& end = failure();
  if (end.state.load(std::memory_order_acquire) == Failure::none) {
    if (member(rank_).departed.load(std::memory_order_acquire) == 0) return;
    throw Error(
        Exit::run_failed,
        {.code = "comm.peer_lost",
         .what = fmt::format("rank {} has left: another of its threads failed", job_rank(rank_)),
         .help = "the first error in the log of this rank says why"});
  }
  const Clock::time_point patience = Clock::now() + kFailurePatience;
  while (end.state.load(std::memory_order_acquire) != Failure::complete) {
    if (Clock::now() > patience) {
      throw Error(Exit::run_failed, {.code = "comm.peer_lost",
                                     .what = "another rank died while it reported a failure",
                                     .help = "the logs of the other ranks say more"});
    }
    std::this_thread::sleep_for(1ms);
  }
  Diagnostic diagnostic = {.code = end.code, .what = end.what, .help = end.help};
  diagnostic.notes.push_back(fmt::format("first noticed by rank {}", end.rank));
  throw Error(static_cast<Exit>(end.exit), std::move(diagnostic));
}

void WorldState::record(const Error& error) {
  Failure& end = failure();
  uint32_t none = Failure::none;
  if (end.state.compare_exchange_strong(none, Failure::being_written)) {
    const Diagnostic& first = error.diagnostics().front();
    end.rank = job_rank(rank_);
    end.exit = static_cast<int32_t>(error.exit());
    copy_text(end.code, sizeof(end.code), first.code);
    copy_text(end.what, sizeof(end.what), first.what);
    copy_text(end.help, sizeof(end.help), first.help);
    end.state.store(Failure::complete, std::memory_order_release);
  }
}

void WorldState::fail(const Error& error, Signal* signal) {
  record(error);
  if (signal != nullptr) futex_wake_all(signal->word);
  throw error;
}

void WorldState::announce(uint64_t key, const MemoryName& memory) {
  Member& own = member(rank_);
  own.memory = memory;
  own.key.store(key, std::memory_order_release);
  own.announced.set(own.announced.word.load(std::memory_order_relaxed) + 1);
}

MemoryName WorldState::announcement(int rank, uint64_t key,
                                    const std::function<std::string()>& doing) {
  Member& peer = member(rank);
  wait(
      peer.announced, [&] { return peer.key.load(std::memory_order_acquire) == key; },
      [&] { return std::vector<int>{rank}; }, doing);
  return peer.memory;
}

void WorldState::add_region(std::vector<SharedMemory> mappings) {
  const std::unique_lock lock(regions_mutex_);
  regions_.push_back(std::move(mappings));
}

int WorldState::regions() const {
  const std::shared_lock lock(regions_mutex_);
  return static_cast<int>(regions_.size());
}

char* WorldState::address(Residence residence, int rank) const {
  const std::shared_lock lock(regions_mutex_);
  return regions_[static_cast<size_t>(residence.region)][static_cast<size_t>(rank)].data() +
         residence.offset;
}

std::optional<Residence> WorldState::find(const void* data, int64_t bytes) const {
  const std::shared_lock lock(regions_mutex_);
  const uintptr_t first = reinterpret_cast<uintptr_t>(data);
  for (size_t i = 0; i < regions_.size(); ++i) {
    const SharedMemory& own = regions_[i][static_cast<size_t>(rank_)];
    const uintptr_t base = reinterpret_cast<uintptr_t>(own.data());
    if (first >= base && first - base <= own.bytes() &&
        static_cast<uint64_t>(bytes) <= own.bytes() - (first - base)) {
      return Residence{static_cast<int32_t>(i), first - base};
    }
  }
  return std::nullopt;
}

}  // namespace mtl::shm
