// One mutex for what both threads use; started_ is its owner's, the work itself runs without it.
#include "runtime/comm/queue.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace mtl {

CommQueue::CommQueue(bool asynchronous, CommLane* lane, StepClock* clock)
    : asynchronous_(asynchronous), lane_(asynchronous ? lane : nullptr), clock_(clock) {}

CommQueue::~CommQueue() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (lane_ != nullptr && !error_) execute([this] { lane_->join(started_); });
  if (!error_ || thrown_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "communication failed and nobody waited for it: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "communication failed and nobody waited for it\n");
  }
}

CommQueue::Ticket CommQueue::start(std::function<void()> work) {
  if (lane_ != nullptr) {
    if (!error_) execute([&] { started_ = lane_->run(work); });
    return started_;
  }
  if (!asynchronous_) {
    if (!error_) execute(work);  // there is no other thread
    done_ = ++started_;
    return started_;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.notify_all();
  return ++started_;
}

CommQueue::Ticket CommQueue::start(int64_t bytes, std::function<void()> work) {
  constexpr int64_t kWorthOverlapping = 256 << 10;  // a copy of so much takes about a wake-up
  if (lane_ != nullptr || bytes >= kWorthOverlapping) return start(std::move(work));
  wait_all();
  work();
  return started_;
}

void CommQueue::wait(Ticket ticket) {
  if (ticket == 0) return;
  const StepClock::Scope waiting(clock_, Phase::wait);
  if (lane_ != nullptr && !error_) execute([&] { lane_->join(ticket); });
  std::unique_lock lock(mutex_);
  if (lane_ != nullptr) done_ = std::max(done_, ticket);
  changed_.wait(lock, [&] { return done_ >= ticket; });
  if (!error_) return;
  thrown_ = true;
  std::rethrow_exception(error_);
}

void CommQueue::wait_all() {
  wait(started_);
}

void CommQueue::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    if (!error_) {
      lock.unlock();
      execute(work);
      lock.lock();
    }
    ++done_;
    changed_.notify_all();
  }
}

void CommQueue::execute(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    error_ = std::current_exception();
  }
}

}  // namespace mtl
