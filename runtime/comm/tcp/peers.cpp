// Failing together over TCP. A broken data connection says only that a peer is gone; why, its
// control connection says, and the two race. So whoever meets a broken connection waits for the
// word before it draws conclusions.
#include "runtime/comm/tcp/peers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <fmt/format.h>

namespace mtl::tcp {

namespace {

using namespace std::chrono_literals;

// For the word why a connection has ended.
constexpr auto kVerdictPatience = 1s;
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);

}  // namespace

std::string Card::encode() const {
  return fmt::format("{} {} {} {}", host, pid, address, port);
}

std::optional<Card> Card::decode(const std::string& text) {
  std::istringstream in(text);
  Card card;
  in >> card.host >> card.pid >> card.address >> card.port;
  return in ? std::optional(card) : std::nullopt;
}

Peers::Peers(int rank, std::vector<Card> cards, std::chrono::milliseconds timeout)
    : rank_(rank),
      cards_(std::move(cards)),
      timeout_(std::min(timeout, kLongest)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_) return;
  throw Error(Exit::environment,
              {.code = "comm.socket",
               .what = fmt::format("no event descriptor for rank {}: {}", rank, strerror(errno)),
               .help = "raise the limit of open files (ulimit -n)"});
}

void Peers::wake() {
  ended_.store(true, std::memory_order_release);
  ::eventfd_write(wake_.get(), 1);  // never read: it stays readable
  changed_.notify_all();
}

void Peers::throw_end() const {
  const std::scoped_lock lock(mutex_);
  if (failure_) {
    Diagnostic diagnostic = failure_->diagnostics().front();
    diagnostic.notes = {fmt::format("first noticed by rank {}", failure_rank_)};
    throw Error(failure_->exit(), std::move(diagnostic));
  }
  throw Error(Exit::run_failed,
              {.code = "comm.peer_lost",
               .what = fmt::format("rank {} has left: another of its threads failed", rank_),
               .help = "the first error in the log of this rank says why"});
}

bool Peers::record(const Error& error, int rank) {
  const std::scoped_lock lock(mutex_);
  if (failure_ || left_) return false;
  failure_ = error;
  failure_rank_ = rank;
  wake();
  return true;
}

void Peers::end(const Error& error) {
  if (!record(error, rank_)) return;
  if (tell_failure) tell_failure(error);
  if (on_failure) on_failure(error);
}

void Peers::fail(const Error& error) {
  end(error);
  throw error;
}

void Peers::failed_elsewhere(int rank, const Error& error) {
  if (record(error, rank) && on_failure) on_failure(error);
}

void Peers::leave() {
  {
    const std::scoped_lock lock(mutex_);
    if (left_) return;
    left_ = true;
    wake();
  }
  if (tell_leave) tell_leave();
  const std::scoped_lock lock(mutex_);
  for (const int fd : in_use_) ::shutdown(fd, SHUT_RDWR);
}

void Peers::lost(int rank, const std::string& doing) {
  std::string reason = "has closed its connection";
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kVerdictPatience,
                      [&] { return failure_ || left_ || departed_.contains(rank); });
    if (!failure_ && !left_ && departed_.contains(rank)) reason = departed_[rank];
  }
  check();
  fail(Error(Exit::run_failed,
             {.code = "comm.peer_lost",
              .what = fmt::format("rank {} {} while rank {} {}", rank, reason, rank_, doing),
              .help = fmt::format("the log of rank {} says why it ended", rank)}));
}

void Peers::timed_out(const std::vector<int>& missing, const std::string& doing) {
  fail(Error(Exit::timeout,
             {.code = "comm.timeout",
              .what = fmt::format("rank {} has waited {} s while it {}", rank_,
                                  static_cast<double>(timeout_.count()) / 1000, doing),
              .help = fmt::format("rank {} is stuck or much slower than the others: see its log "
                                  "and its stack (gdb -p <pid>)",
                                  fmt::join(missing, ", "))}));
}

Fd Peers::take(const ConnectionKey& key, const std::function<std::string()>& doing) {
  const Clock::time_point deadline = Clock::now() + timeout_;
  std::optional<Error> error;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] {
      return failure_ || left_ || arrivals_.contains(key) || departed_.contains(key.peer);
    });
    const auto found = arrivals_.find(key);
    if (!failure_ && !left_ && found != arrivals_.end()) {
      if (!found->second.error) {
        Fd fd = std::move(found->second.fd);
        arrivals_.erase(found);
        return fd;
      }
      // Perhaps it has died, which says more than that it cannot be reached.
      changed_.wait_for(lock, kVerdictPatience,
                        [&] { return failure_ || left_ || departed_.contains(key.peer); });
      if (!departed_.contains(key.peer)) error = arrivals_[key].error;
    }
  }
  check();
  if (error) fail(*error);
  if (has_departed(key.peer)) lost(key.peer, doing());
  timed_out({key.peer}, doing());
}

void Peers::in_use(int fd) {
  const std::scoped_lock lock(mutex_);
  in_use_.insert(fd);
  if (left_) ::shutdown(fd, SHUT_RDWR);
}

void Peers::not_in_use(int fd) {
  const std::scoped_lock lock(mutex_);
  in_use_.erase(fd);
}

void Peers::departed(int rank, const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  departed_.emplace(rank, reason);
  changed_.notify_all();
}

bool Peers::has_departed(int rank) const {
  const std::scoped_lock lock(mutex_);
  return departed_.contains(rank);
}

void Peers::arrived(const ConnectionKey& key, Fd fd) {
  const std::scoped_lock lock(mutex_);
  arrivals_[key] = {std::move(fd), std::nullopt};
  changed_.notify_all();
}

void Peers::unreachable(const ConnectionKey& key, const Error& error) {
  const std::scoped_lock lock(mutex_);
  arrivals_[key] = {Fd(), error};
  changed_.notify_all();
}

std::optional<Error> Peers::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

bool Peers::has_left() const {
  const std::scoped_lock lock(mutex_);
  return left_;
}

}  // namespace mtl::tcp
