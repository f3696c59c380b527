#include "runtime/comm/clocked.h"

#include <utility>

namespace mtl {

namespace {

class ClockedCommunicator final : public Communicator {
 public:
  ClockedCommunicator(std::unique_ptr<Communicator> group, StepClock& clock)
      : group_(std::move(group)), clock_(&clock) {}

  int size() const override { return group_->size(); }
  int rank() const override { return group_->rank(); }
  void barrier() override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->barrier();
  }
  void all_reduce(Tensor x, Reduce op) override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->all_reduce(x, op);
  }
  void reduce_scatter(Tensor all, Tensor mine) override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->reduce_scatter(all, mine);
  }
  void all_gather(Tensor mine, Tensor all) override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->all_gather(mine, all);
  }
  void broadcast(Tensor x, int root) override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->broadcast(x, root);
  }
  void all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                    std::span<const int64_t> recv_counts) override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->all_to_all_v(from, send_counts, to, recv_counts);
  }
  void all_to_all_rounds(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                         std::span<const int64_t> recv_counts) override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->all_to_all_rounds(from, send_counts, to, recv_counts);
  }
  void send(Tensor x, int to) override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->send(x, to);
  }
  void recv(Tensor x, int from) override {
    const StepClock::Scope waiting(clock_, Phase::wait);
    group_->recv(x, from);
  }
  const Traffic& traffic() const override { return group_->traffic(); }
  CommLane* lane() override { return group_->lane(); }
  void share_lane(Communicator& other) override { group_->share_lane(other); }
  void check() override { group_->check(); }

 private:
  const std::unique_ptr<Communicator> group_;
  StepClock* const clock_;
};

}  // namespace

std::unique_ptr<Communicator> clocked(std::unique_ptr<Communicator> group, StepClock* clock) {
  if (clock == nullptr || group->size() == 1) return group;
  return std::make_unique<ClockedCommunicator>(std::move(group), *clock);
}

}  // namespace mtl
