// Who shares a host with whom, and a world that sends each group where it is fastest.
#include "runtime/comm/world.h"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/comm/check.h"
#include "runtime/comm/meeting.h"
#include "runtime/comm/self_world.h"
#include "runtime/comm/shm/host.h"
#include "runtime/comm/shm/shm_world.h"
#include "runtime/comm/tcp/tcp_world.h"

namespace mtl {

namespace {

// A group in shared memory whose failures the ranks of other hosts learn too.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::unique_ptr<Communicator> group, std::shared_ptr<TcpWorld> all)
      : group_(std::move(group)), all_(std::move(all)) {}

  int size() const override { return group_->size(); }
  int rank() const override { return group_->rank(); }
  void barrier() override {
    told([&] { group_->barrier(); });
  }
  void all_reduce(Tensor x, Reduce op) override {
    told([&] { group_->all_reduce(x, op); });
  }
  void reduce_scatter(Tensor all, Tensor mine) override {
    told([&] { group_->reduce_scatter(all, mine); });
  }
  void all_gather(Tensor mine, Tensor all) override {
    told([&] { group_->all_gather(mine, all); });
  }
  void broadcast(Tensor x, int root) override {
    told([&] { group_->broadcast(x, root); });
  }
  void all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                    std::span<const int64_t> recv_counts) override {
    told([&] { group_->all_to_all_v(from, send_counts, to, recv_counts); });
  }
  void send(Tensor x, int to) override {
    told([&] { group_->send(x, to); });
  }
  void recv(Tensor x, int from) override {
    told([&] { group_->recv(x, from); });
  }
  const Traffic& traffic() const override { return group_->traffic(); }

 private:
  template <class Action>
  void told(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      // A mistake of the caller's alone is not the end of the world.
      if (error.diagnostics().front().code != "comm.argument") all_->end(error);
      throw;
    }
  }

  const std::unique_ptr<Communicator> group_;
  const std::shared_ptr<TcpWorld> all_;
};

class MixedWorld final : public CommWorld {
 public:
  // `local_ranks`: of this host, ascending; `local` has them in this order (null: we are alone).
  MixedWorld(std::shared_ptr<TcpWorld> all, std::shared_ptr<ShmWorld> local,
             std::vector<int> local_ranks)
      : all_(std::move(all)), local_(std::move(local)), local_ranks_(std::move(local_ranks)) {}

  int rank() const override { return all_->rank(); }
  int size() const override { return all_->size(); }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    comm::check_group(ranks, rank(), size());
    if (ranks.size() == 1) return make_self_communicator();
    if (!std::includes(local_ranks_.begin(), local_ranks_.end(), ranks.begin(), ranks.end())) {
      return all_->group(ranks);
    }
    std::vector<int> places;
    for (const int member : ranks) {
      const auto found = std::lower_bound(local_ranks_.begin(), local_ranks_.end(), member);
      places.push_back(static_cast<int>(found - local_ranks_.begin()));
    }
    try {
      return std::make_unique<LocalCommunicator>(local_->group(places), all_);
    } catch (const Error& error) {
      all_->end(error);
      throw;
    }
  }

  // The ranks of a host share it; TCP reads and writes it as any memory.
  void* allocate(size_t bytes) override {
    try {
      return local_ ? local_->allocate(bytes) : all_->allocate(bytes);
    } catch (const Error& error) {
      all_->end(error);
      throw;
    }
  }

  void leave() override {
    all_->leave();
    if (local_) local_->leave();
  }

 private:
  const std::shared_ptr<TcpWorld> all_;
  const std::shared_ptr<ShmWorld> local_;
  const std::vector<int> local_ranks_;
};

enum class Transport { best, shm, tcp };

// For tests and for finding out what a transport does to a run.
Transport wanted_transport() {
  const char* const text = std::getenv("MTL_COMM");
  const std::string name = text != nullptr ? text : "";
  if (const std::optional<Error> wrong = wrong_transport(name)) throw *wrong;
  if (name.empty()) return Transport::best;
  return name == "shm" ? Transport::shm : Transport::tcp;
}

// Ranks with the same text can share memory: of one kernel, one container and one user.
std::string place_of(const shm::Identity& identity, const std::string& user) {
  return fmt::format("{} {} {}", identity.boot, identity.pid_namespace, user);
}

}  // namespace

std::optional<Error> wrong_transport(const std::string& name) {
  if (name.empty() || name == "shm" || name == "tcp") return std::nullopt;
  return Error(Exit::environment,
               {.code = "comm.transport",
                .what = fmt::format("MTL_COMM={} is no transport", name),
                .help = "use tcp or shm, or unset MTL_COMM: then mtl chooses per group"});
}

std::unique_ptr<CommWorld> make_cpu_world(Store& store, const WorldOptions& options) {
  comm::check_member("make_cpu_world", options.rank, options.size);
  const std::string prefix = fmt::format("world/{}/", options.generation);
  comm::claim_rank(store, prefix, options.rank);
  const Transport wanted = wanted_transport();
  // The user, then who it is.
  const std::vector<std::string> texts =
      comm::meet(store, prefix + "who", options.rank, options.size,
                 fmt::format("{} {}", ::geteuid(), shm::Identity::own().encode()), options.timeout);

  std::vector<std::string> places, cpus;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const size_t space = std::min(texts[rank].find(' '), texts[rank].size());
    const auto identity = shm::Identity::decode(texts[rank].substr(space));
    if (!identity) comm::refuse_card(static_cast<int>(rank));
    places.push_back(place_of(*identity, texts[rank].substr(0, space)));
    cpus.push_back(identity->cpus);
  }
  const std::string& own_place = places[static_cast<size_t>(options.rank)];
  std::vector<int> local_ranks;
  std::string local_cpus;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank] != own_place) continue;
    local_ranks.push_back(static_cast<int>(rank));
    local_cpus = shm::unite_cpus(local_cpus, cpus[rank]);
  }
  const int local_size = static_cast<int>(local_ranks.size());

  if (wanted == Transport::shm || (wanted == Transport::best && local_size == options.size)) {
    return make_shm_world(store, {.rank = options.rank,
                                  .size = options.size,
                                  .timeout = options.timeout,
                                  .prefix = prefix + "shm/"});
  }
  std::shared_ptr<ShmWorld> local;
  if (wanted == Transport::best && local_size > 1) {
    const auto own = std::find(local_ranks.begin(), local_ranks.end(), options.rank);
    local = make_shm_world(store, {.rank = static_cast<int>(own - local_ranks.begin()),
                                   .size = local_size,
                                   .timeout = options.timeout,
                                   .prefix = fmt::format("{}host-{}/", prefix, local_ranks.front()),
                                   .job_ranks = local_ranks});
  }
  std::shared_ptr<TcpWorld> all =
      make_tcp_world(store, {.rank = options.rank,
                             .size = options.size,
                             .address = options.address,
                             .token = options.token,
                             .generation = options.generation,
                             .timeout = options.timeout,
                             .prefix = prefix + "tcp/",
                             .spins = shm::count_cpus(local_cpus) >= local_size,
                             .on_failure = [local](const Error& error) {
                               if (local) local->end(error);
                             }});
  if (!local) local_ranks = {options.rank};
  return std::make_unique<MixedWorld>(std::move(all), std::move(local), std::move(local_ranks));
}

}  // namespace mtl
