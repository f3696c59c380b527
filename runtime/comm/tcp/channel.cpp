#include "runtime/comm/tcp/channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>

#include <sys/socket.h>

#include <fmt/format.h>

#include "runtime/comm/operation.h"

namespace mtl::tcp {

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr int64_t kMostKept = int64_t{64} << 20;
constexpr int64_t kPiece = 1 << 20;
constexpr int64_t kRead = 1 << 20;
// A receiver that is reading makes room within this: cheaper than keeping a copy.
constexpr auto kBriefly = 100us;

struct Header {
  int64_t numel = 0;
  int64_t dtype = 0;
};

std::string waits_in_send(const Tensor& x, int to) {
  return fmt::format("waits in send({} x {}) to rank {}", x.numel(), safetensors_name(x.dtype), to);
}

std::string waits_in_recv(const Tensor& x, int from) {
  return fmt::format("waits in recv({} x {}) for a message of rank {}", x.numel(),
                     safetensors_name(x.dtype), from);
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

OutgoingChannel::OutgoingChannel(std::shared_ptr<Core> core, uint64_t group, int to)
    : core_(std::move(core)), to_(to), connection_(core_, [&] {
        const ConnectionKey key = {Purpose::channel_out, group, to};
        core_->network->connect(key);
        return core_->peers->take(key,
                                  [&] { return fmt::format("connects to rank {} to send", to); });
      }()) {}

OutgoingChannel::~OutgoingChannel() {
  {
    std::scoped_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

int64_t OutgoingChannel::write(const char* data, int64_t bytes) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::send(connection_.fd(), data + done, static_cast<size_t>(bytes - done),
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      done += n;
      continue;
    }
    if (errno == EINTR) continue;
    if (!would_block()) return -1;
    pollfd file = {connection_.fd(), POLLOUT, 0};
    const timespec briefly = {0, std::chrono::nanoseconds(kBriefly).count()};
    if (::ppoll(&file, 1, &briefly, nullptr) <= 0) break;
  }
  return done;
}

void OutgoingChannel::send(const Tensor& x) {
  core_->peers->check();
  const Header header = {x.numel(), static_cast<int64_t>(x.dtype)};
  const char* const data = static_cast<const char*>(x.data);
  int64_t header_done = 0, done = 0;
  bool direct = false, broken = false;
  {
    std::scoped_lock lock(mutex_);
    direct = kept_bytes_ == 0;
    broken = broken_;
  }
  if (direct && !broken) {
    // Nobody else writes: the thread has nothing to do and gets work only from us.
    msghdr message = {};
    iovec parts[2] = {{const_cast<Header*>(&header), sizeof(header)},
                      {const_cast<char*>(data), static_cast<size_t>(x.bytes())}};
    message.msg_iov = parts;
    message.msg_iovlen = x.bytes() > 0 ? 2 : 1;
    const ssize_t n = ::sendmsg(connection_.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    broken = n < 0 && !would_block() && errno != EINTR;
    header_done = std::clamp<int64_t>(n, 0, sizeof(header));
    done = std::max<int64_t>(0, n - header_done);
    if (header_done == sizeof(header) && done < x.bytes()) {
      const int64_t more = write(data + done, x.bytes() - done);
      broken |= more < 0;
      done += std::max<int64_t>(0, more);
    }
  }
  if (broken) core_->peers->lost(to_, waits_in_send(x, to_));
  keep(reinterpret_cast<const char*>(&header) + header_done,
       static_cast<int64_t>(sizeof(header)) - header_done, x);
  keep(data + done, x.bytes() - done, x);
}

void OutgoingChannel::keep(const char* data, int64_t bytes, const Tensor& x) {
  while (bytes > 0) {
    const int64_t n = std::min(bytes, kPiece);
    std::vector<char> piece(data, data + n);
    std::unique_lock lock(mutex_);
    Clock::time_point deadline = Clock::now() + core_->peers->timeout();
    int64_t before = kept_bytes_;
    while (!broken_ && kept_bytes_ + n > kMostKept) {
      changed_.wait_for(lock, 100ms);
      if (kept_bytes_ != before) deadline = Clock::now() + core_->peers->timeout();
      before = kept_bytes_;
      lock.unlock();
      core_->peers->check();
      if (Clock::now() >= deadline) {
        core_->peers->timed_out({to_}, waits_in_send(x, to_) + " for room");
      }
      lock.lock();
    }
    if (broken_) {
      lock.unlock();
      core_->peers->lost(to_, waits_in_send(x, to_));
    }
    kept_.push_back(std::move(piece));
    kept_bytes_ += n;
    changed_.notify_all();
    if (!thread_.joinable()) thread_ = std::thread([this] { send_kept(); });
    data += n;
    bytes -= n;
  }
}

void OutgoingChannel::send_kept() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !kept_.empty() || ending_; });
    if (kept_.empty() || broken_) return;
    const std::vector<char>& piece = kept_.front();
    const int64_t size = static_cast<int64_t>(piece.size());
    lock.unlock();
    int64_t done = 0;
    bool good = true;
    Clock::time_point deadline = Clock::now() + core_->peers->timeout();
    while (good && done < size) {
      const int64_t n = write(piece.data() + done, size - done);
      good = n >= 0;
      if (n > 0) deadline = Clock::now() + core_->peers->timeout();
      done += std::max<int64_t>(0, n);
      if (!good || done == size) break;
      pollfd files[2] = {{connection_.fd(), POLLOUT, 0}, {core_->peers->wake_fd(), POLLIN, 0}};
      ::poll(files, 2, 1000);
      good = files[1].revents == 0;
      // While the rank lives, its receiver may be late: send() itself knows the limit.
      const std::scoped_lock again(mutex_);
      good &= !ending_ || Clock::now() < deadline;
    }
    lock.lock();
    kept_.pop_front();
    kept_bytes_ -= size;
    broken_ = !good;
    changed_.notify_all();
    if (broken_) return;
  }
}

IncomingChannel::IncomingChannel(std::shared_ptr<Core> core, uint64_t group, int from,
                                 const Tensor& first)
    : core_(std::move(core)),
      from_(from),
      connection_(core_, core_->peers->take({Purpose::channel_in, group, from},
                                            [&] { return waits_in_recv(first, from); })) {}

void IncomingChannel::receive(const Tensor& x) {
  core_->peers->check();
  Header header;
  read(reinterpret_cast<char*>(&header), sizeof(header), x);
  const auto dtype = static_cast<DType>(header.dtype);
  if (dtype != x.dtype || header.numel != x.numel()) {
    core_->peers->fail(comm::message_mismatch(from_, dtype, header.numel, core_->peers->rank(), x));
  }
  read(static_cast<char*>(x.data), x.bytes(), x);
}

void IncomingChannel::read(char* data, int64_t bytes, const Tensor& x) {
  Clock::time_point moved = Clock::now();
  bool idle = false;
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = ::recv(connection_.fd(), data + done,
                             static_cast<size_t>(std::min(kRead, bytes - done)), MSG_DONTWAIT);
    if (n > 0) {
      done += n;
      idle = false;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || !would_block()) core_->peers->lost(from_, waits_in_recv(x, from_));
    const Clock::time_point now = Clock::now();
    if (!idle) moved = now;
    idle = true;
    if (core_->spins && now < moved + kSpin) continue;
    const Clock::time_point deadline = moved + core_->peers->timeout();
    if (now >= deadline) core_->peers->timed_out({from_}, waits_in_recv(x, from_));
    const int64_t left = std::chrono::duration_cast<milliseconds>(deadline - now).count();
    pollfd files[2] = {{connection_.fd(), POLLIN, 0}, {core_->peers->wake_fd(), POLLIN, 0}};
    ::poll(files, 2, static_cast<int>(std::min<int64_t>(left + 1, 3'600'000)));
    if (files[1].revents != 0) core_->peers->check();
  }
}

}  // namespace mtl::tcp
