// How the ranks of one host find each other and make their shared memory. The store is needed only
// until the world stands; groups and arenas are announced in the world's own control memory.
#include "runtime/comm/shm/shm_world.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/comm/check.h"
#include "runtime/comm/meeting.h"
#include "runtime/comm/operation.h"
#include "runtime/comm/self_world.h"
#include "runtime/comm/shm/group_control.h"
#include "runtime/comm/shm/shm_communicator.h"
#include "runtime/comm/shm/world_state.h"

namespace mtl {

namespace {

using namespace shm;
using Clock = std::chrono::steady_clock;

class SharedWorld final : public ShmWorld {
 public:
  SharedWorld(std::shared_ptr<WorldState> state, std::unique_ptr<GroupControl> all)
      : state_(std::move(state)), all_(std::move(all)) {}

  int rank() const override { return state_->rank(); }
  int size() const override { return state_->size(); }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    comm::check_group(ranks, rank(), size());
    if (ranks.size() == 1) return make_self_communicator();
    state_->check_failure();
    std::vector<int> members(ranks.begin(), ranks.end());
    // The same ranks may make several groups: the n-th of one rank is the n-th of all.
    const uint64_t key = comm::group_key(ranks, occurrences_[members]++);
    const int leader = members.front();
    auto control = std::make_unique<GroupControl>(state_, members, [&] {
      if (rank() == leader) {
        SharedMemory memory = SharedMemory::create(
            "mtl-group", GroupControl::bytes(static_cast<int>(members.size()), true));
        state_->announce(key, memory.name());
        return memory;
      }
      return SharedMemory::open(state_->announcement(leader, key, [&] {
        std::vector<int> names;
        for (const int member : members) names.push_back(state_->job_rank(member));
        return fmt::format("waits for rank {} to make {}", names.front(), comm::group_name(names));
      }));
    }());
    // When all are here all have opened the memory.
    control->begin({.op = Op::join});
    if (rank() == leader) {
      control->close_file();
      state_->announce(0, {});
    }
    return std::make_unique<ShmCommunicator>(std::move(control));
  }

  void* allocate(size_t bytes) override {
    constexpr size_t kPage = 4096;
    const size_t rounded = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
    SharedMemory own = SharedMemory::create("mtl-arena", rounded);
    const uint64_t key = comm::group_key({}, static_cast<uint64_t>(state_->regions()));
    state_->announce(key, own.name());
    all_->begin({.op = Op::allocate});
    std::vector<SharedMemory> mappings(static_cast<size_t>(size()));
    try {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        mappings[static_cast<size_t>(peer)] = SharedMemory::open(state_->member(peer).memory);
      }
    } catch (const Error& error) {
      all_->fail(error);
    }
    all_->barrier();
    own.close_file();
    state_->announce(0, {});
    void* data = own.data();
    mappings[static_cast<size_t>(rank())] = std::move(own);
    state_->add_region(std::move(mappings));
    return data;
  }

  void leave() override { state_->leave(); }
  void end(const Error& error) override { state_->record(error); }

 private:
  const std::shared_ptr<WorldState> state_;
  const std::unique_ptr<GroupControl> all_;  // of all ranks: for allocate()
  std::map<std::vector<int>, uint64_t> occurrences_;
};

// What a rank tells the others through the store.
struct SharedCard {
  Identity identity;
  MemoryName control = {};  // of rank 0: the control memory of the world and of its group
  MemoryName all = {};

  std::string encode() const {
    return fmt::format("{} {} {} {} {} {} {} {} {}", control.fd, control.device, control.inode,
                       control.bytes, all.fd, all.device, all.inode, all.bytes, identity.encode());
  }
  static std::optional<SharedCard> decode(const std::string& text);
};

std::optional<SharedCard> SharedCard::decode(const std::string& text) {
  SharedCard card;
  int length = 0;
  unsigned long numbers[6] = {};
  if (std::sscanf(text.c_str(), "%d %lu %lu %lu %d %lu %lu %lu %n", &card.control.fd, &numbers[0],
                  &numbers[1], &numbers[2], &card.all.fd, &numbers[3], &numbers[4], &numbers[5],
                  &length) != 8) {
    return std::nullopt;
  }
  const auto identity = Identity::decode(text.substr(static_cast<size_t>(length)));
  if (!identity) return std::nullopt;
  card.identity = *identity;
  card.control = {identity->pid, card.control.fd, numbers[0], numbers[1], numbers[2]};
  card.all = {identity->pid, card.all.fd, numbers[3], numbers[4], numbers[5]};
  return card;
}

void check_same_host(const Identity& zero, int zero_rank, const Identity& other, int rank) {
  if (zero.boot == other.boot && zero.pid_namespace == other.pid_namespace) return;
  const bool containers = zero.boot == other.boot;
  throw Error(Exit::environment,
              {.code = "comm.host",
               .what = fmt::format("rank {} ({}) and rank {} ({}) {}", zero_rank, zero.host, rank,
                                   other.host,
                                   containers ? "are in different containers of one host"
                                              : "are on different hosts and cannot share memory"),
               .help = containers ? "start all ranks of one host in one container"
                                  : "use a transport that crosses hosts, or run on one host"});
}

}  // namespace

std::unique_ptr<ShmWorld> make_shm_world(Store& store, const ShmOptions& options) {
  const int rank = options.rank;
  const int size = options.size;
  comm::check_member("make_shm_world", rank, size);
  const auto key = [&](const char* what, int of) {
    return fmt::format("{}{}/{}", options.prefix, what, of);
  };
  const auto name = [&](int of) {
    return options.job_ranks.empty() ? of : options.job_ranks[static_cast<size_t>(of)];
  };
  comm::claim_rank(store, options.prefix, name(rank));
  SharedCard own = {.identity = Identity::own()};
  SharedMemory control, all;
  if (rank == 0) {
    control = SharedMemory::create("mtl-world", WorldState::control_bytes(size));
    all = SharedMemory::create("mtl-world-group", GroupControl::bytes(size, false));
    own.control = control.name();
    own.all = all.name();
  }
  store.set(key("rank", rank), own.encode());

  const auto deadline = Clock::now() + std::min<std::chrono::milliseconds>(
                                           options.timeout, std::chrono::hours(24 * 365));
  std::vector<Identity> identities;
  SharedCard zero;
  for (int peer = 0; peer < size; ++peer) {
    std::string text;
    try {
      text = store.get(
          key("rank", peer),
          std::max(std::chrono::milliseconds(0),
                   std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now())));
    } catch (const Error& error) {
      if (error.exit() != Exit::timeout) throw;
      throw Error(
          Exit::timeout,
          {.code = "comm.timeout",
           .what = fmt::format("rank {} of {} has not joined within {} s", name(peer), size,
                               static_cast<double>(options.timeout.count()) / 1000),
           .help = fmt::format("the log of rank {} says why it did not start", name(peer))});
    }
    const auto card = SharedCard::decode(text);
    if (!card) comm::refuse_card(name(peer));
    if (peer == 0) zero = *card;
    check_same_host(zero.identity, name(0), card->identity, name(peer));
    identities.push_back(card->identity);
  }
  if (rank != 0) {
    control = SharedMemory::open(zero.control);
    all = SharedMemory::open(zero.all);
  }
  auto state = std::make_shared<WorldState>(rank, std::move(identities), options.timeout,
                                            std::move(control), options.job_ranks);
  std::vector<int> ranks;
  for (int peer = 0; peer < size; ++peer) ranks.push_back(peer);
  auto group = std::make_unique<GroupControl>(state, std::move(ranks), std::move(all));
  group->begin({.op = Op::join});
  state->close_control_file();
  group->close_file();
  return std::make_unique<SharedWorld>(std::move(state), std::move(group));
}

}  // namespace mtl
