#include "launcher/output/outlet.h"

#include <cerrno>
#include <poll.h>
#include <unistd.h>

#include <sys/eventfd.h>

#include "common/quiet_threads.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBlockCost = 64;          // of a short block, beside its bytes
constexpr size_t kJoinedBytes = 64 << 10;  // short blocks for one consumer become one write

}  // namespace

Outlet::Outlet(size_t capacity_bytes, int wake, Policy policy)
    : capacity_(capacity_bytes), wake_(wake), policy_(policy), moved_(Clock::now()) {}

void Outlet::start_thread() {
  const SignalsBlocked for_the_thread;
  thread_ = std::thread([this] { run(); });
}

Outlet::~Outlet() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  filled_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Outlet::push(Consumer& consumer, std::string block) {
  if (block.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (drops()) {
      const auto size = static_cast<int64_t>(block.size());
      consumer.lost += size;
      consumer.lost_in_all += size;
      dropped_ += size;
      return;
    }
    if (consumer.lost > 0) {
      if (consumer.gap) queue(consumer, consumer.gap(consumer.lost));
      consumer.lost = 0;
    }
    queue(consumer, std::move(block));
  }
  filled_.notify_one();
}

void Outlet::close_gap(Consumer& consumer) {
  {
    const std::lock_guard lock(mutex_);
    if (consumer.lost == 0) return;
    if (consumer.gap) queue(consumer, consumer.gap(consumer.lost));
    consumer.lost = 0;
  }
  filled_.notify_one();
}

bool Outlet::drops() {
  if (policy_ == Policy::wait) return full() && Clock::now() >= moved_ + kStall;
  if (full()) dropping_ = true;
  if (dropping_ && queued_ <= capacity_ / 2) dropping_ = false;
  return dropping_;
}

void Outlet::queue(Consumer& consumer, std::string block) {
  if (!thread_.joinable()) start_thread();
  if (blocks_.empty() && queued_ == 0) moved_ = Clock::now();
  if (!blocks_.empty() && blocks_.back().consumer == &consumer &&
      blocks_.back().bytes.size() + block.size() <= kJoinedBytes) {
    queued_ += block.size();
    blocks_.back().bytes += block;
    return;
  }
  queued_ += block.size() + kBlockCost;
  blocks_.push_back({&consumer, std::move(block)});
}

bool Outlet::accepts() const {
  if (policy_ == Policy::drop) return true;
  const std::lock_guard lock(mutex_);
  return !full() || Clock::now() >= moved_ + kStall;
}

Clock::time_point Outlet::stall_time() const {
  const std::lock_guard lock(mutex_);
  return moved_ + kStall;
}

int64_t Outlet::dropped_bytes() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void Outlet::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    filled_.wait(lock, [this] { return closing_ || !blocks_.empty(); });
    if (blocks_.empty()) return;
    const Block block = std::move(blocks_.front());
    blocks_.pop_front();
    lock.unlock();
    block.consumer->write(block.bytes);
    lock.lock();
    const bool was_full = full();
    queued_ -= block.bytes.size() + kBlockCost;
    moved_ = Clock::now();
    if (was_full && !full()) eventfd_write(wake_, 1);
  }
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<size_t>(wrote));
    } else if (errno == EAGAIN) {  // somebody else's O_NONBLOCK on a shared terminal or pipe
      pollfd writable{fd, POLLOUT, 0};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void each_line(std::string_view block, const std::function<void(std::string_view)>& on_line) {
  while (!block.empty()) {
    const size_t end = block.find('\n');
    on_line(block.substr(0, end));
    block.remove_prefix(end == std::string_view::npos ? block.size() : end + 1);
  }
}

std::string LineCutter::add(std::string_view bytes) {
  const size_t end = bytes.rfind('\n');
  std::string block;
  if (end != std::string_view::npos) {
    block.swap(partial_);
    block.append(bytes.substr(0, end + 1));
    bytes.remove_prefix(end + 1);
  }
  partial_.append(bytes);
  if (partial_.size() >= kMaxLine) block += finish();
  return block;
}

std::string LineCutter::finish() {
  std::string block;
  block.swap(partial_);
  if (!block.empty()) block += '\n';
  return block;
}

}  // namespace mtl
