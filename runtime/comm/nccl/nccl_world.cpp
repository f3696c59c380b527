#include "runtime/comm/nccl/nccl_world.h"

#include <fstream>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "runtime/comm/check.h"
#include "runtime/comm/meeting.h"
#include "runtime/comm/nccl/environment.h"
#include "runtime/comm/nccl/nccl_communicator.h"
#include "runtime/comm/operation.h"

namespace mtl {

namespace {

class NcclWorld final : public CommWorld {
 public:
  explicit NcclWorld(std::shared_ptr<nccl::State> state) : state_(std::move(state)) {}

  int rank() const override { return state_->rank(); }
  int size() const override { return state_->size(); }

  // Nothing moves until the group communicates: all its ranks make the groups in one order, so that
  // they count those of the same ranks alike.
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    return make(ranks, false);
  }
  std::unique_ptr<Communicator> group_for_numbers(std::span<const int> ranks) override {
    return make(ranks, true);
  }

  void* allocate(size_t bytes) override { return state_->allocate(bytes); }
  void leave() override { state_->leave(); }

 private:
  std::unique_ptr<Communicator> make(std::span<const int> ranks, bool numbers) {
    comm::check_group(ranks, rank(), size());
    nccl::GroupName name;
    name.numbers = numbers;
    name.ranks.assign(ranks.begin(), ranks.end());
    name.key = comm::group_key(ranks, made_[name.ranks]++);
    return std::make_unique<nccl::NcclCommunicator>(state_, std::move(name));
  }

  const std::shared_ptr<nccl::State> state_;
  std::map<std::vector<int>, uint64_t> made_;
};

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  in >> id;
  return id;
}

}  // namespace

std::unique_ptr<CommWorld> make_nccl_world(Store& store, const WorldOptions& options,
                                           std::unique_ptr<nccl::Streams> streams,
                                           const NcclOptions& nccl) {
  comm::check_member("make_nccl_world", options.rank, options.size);
  nccl::never_block();
  const nccl::Api& api = nccl.api != nullptr ? *nccl.api : nccl::load_api();
  const std::string prefix = fmt::format("nccl/{}/", options.generation);
  comm::claim_rank(store, prefix, options.rank);
  nccl::Card own = {.host = boot_id(), .gpu = streams->device_id()};
  api.get_version(&own.nccl);
  std::vector<nccl::Card> cards;
  for (const std::string& text : comm::meet(store, prefix + "card", options.rank, options.size,
                                            own.encode(), options.timeout)) {
    const auto card = nccl::Card::decode(text);
    if (!card) comm::refuse_card(static_cast<int>(cards.size()));
    cards.push_back(*card);
  }
  if (nccl::check_cards(cards, options.rank, nccl::wants_shared_gpus())) {
    nccl::pretend_own_host(options.rank);
  }
  return std::make_unique<NcclWorld>(std::make_shared<nccl::State>(
      store, options, std::move(streams), api, nccl.crash_dir, nccl.buffered_bytes));
}

}  // namespace mtl
