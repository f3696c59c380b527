// Connecting. The kernel repeats a lost SYN after 1, 2, 4 ... s; further attempts of our own beside
// those that have not been answered yet are much faster when packets are lost or the listener's
// backlog is full: the first to be answered is taken (as in RFC 8305, "Happy Eyeballs"). Random
// pauses keep thousands of agents from knocking in step.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/link_loop.h"
#include "rendezvous/longest_wait.h"

namespace mtl::link {

namespace {

using std::chrono::milliseconds;

// Until another one is begun beside it: at first, and after so many rounds through the addresses.
constexpr milliseconds kFirstAttempt{250};
constexpr int kQuickRounds = 8;
constexpr milliseconds kLongestAttempt{2'000};
// Beyond them the oldest is given up.
constexpr size_t kAttemptsAtOnce = 8;
constexpr milliseconds kFirstPause{50};
constexpr milliseconds kLongestPause{500};

LinkEvent::Loss dial_loss(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
      return LinkEvent::refused;
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case EACCES:
    case EPERM:
    case EAFNOSUPPORT:
      return LinkEvent::unreachable;
    default:
      return LinkEvent::broken;
  }
}

// A name may have several addresses: the failure of the one that answered says most.
int telling(LinkEvent::Loss loss) {
  return loss == LinkEvent::broken ? 2 : loss == LinkEvent::refused ? 1 : 0;
}

}  // namespace

Dialer::Dialer(Loop& loop, std::string host, uint16_t port, milliseconds patience, std::string from)
    : loop_(loop),
      host_(std::move(host)),
      port_(port),
      from_(std::move(from)),
      begin_(boot_time()),
      deadline_(begin_ + std::clamp(patience, milliseconds(0), kLongestWait)),
      timer_(loop.io),
      attempt_(kFirstAttempt),
      pause_(kFirstPause) {}

std::string Dialer::target() const {
  return fmt::format("{} port {}", host_, port_);
}

void Dialer::start() {
  if (!from_.empty()) {
    const net::Lookup found = net::look_up_numeric(from_, 0);
    if (found.addresses.empty()) {
      stopped_ = true;
      return failed({LinkEvent::broken,
                     fmt::format("the local address '{}' is not a numeric address", from_)});
    }
    from_address_ = found.addresses.front();
  }
  net::Lookup numeric = net::look_up_numeric(host_, port_);
  if (!numeric.addresses.empty()) return use(std::move(numeric));
  named_ = true;
  look_up();
}

// In a thread of its own, which may hang for as long as the system's resolver pleases.
void Dialer::look_up() {
  const int serial = ++serial_;
  const auto work = [gate = loop_.gate, host = host_, port = port_, self = weak_from_this(),
                     serial] {
    net::Lookup lookup = net::look_up(host, port);
    const std::lock_guard lock(gate->mutex);
    if (gate->io == nullptr) return;
    asio::post(*gate->io, [self, serial, lookup = std::move(lookup)]() mutable {
      const auto dialer = self.lock();
      if (dialer && dialer->serial_ == serial) dialer->use(std::move(lookup));
    });
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error& error) {
    net::Lookup none;
    none.error = error.what();
    return use(std::move(none));
  }
  timer_.expires_after(std::max(Nanoseconds(0), deadline_ - boot_time()));
  timer_.async_wait([this, self = shared_from_this(), serial](error_code error) {
    if (error || serial != serial_ || stopped_) return;
    note({LinkEvent::unknown_name,
          fmt::format("the name '{}' has not been resolved: no answer", host_)});
    give_up();
  });
}

void Dialer::use(net::Lookup lookup) {
  if (stopped_) return;
  ++serial_;
  timer_.cancel();
  addresses_ = std::move(lookup.addresses);
  next_ = 0;
  new_round_ = true;
  if (addresses_.empty()) {
    note({LinkEvent::unknown_name,
          fmt::format("the name '{}' does not resolve: {}", host_, lookup.error)});
    return pause();
  }
  next();
}

void Dialer::next() {
  while (!stopped_) {
    if (boot_time() >= deadline_ && failure_) return give_up();
    if (next_ >= addresses_.size()) return pause();
    const net::Address& to = addresses_[next_++];
    if (from_address_ && from_address_->family() != to.family()) {
      note({LinkEvent::unreachable,
            fmt::format("{} has no address of the kind of {}, which is to be used", target(),
                        from_)});
      continue;
    }
    net::Dial dial =
        net::dial(to, from_address_ ? &*from_address_ : nullptr, 2 * loop_.options.dead_after);
    if (dial.bad_from) {
      stopped_ = true;
      return failed({LinkEvent::broken, fmt::format("cannot use the local address {}: {}", from_,
                                                    strerror(dial.error))});
    }
    if (dial.error == EINPROGRESS) return wait_for(std::move(dial.socket));
    if (dial.error == 0) {
      drop_attempts();
      return connected(std::move(dial.socket));
    }
    note({dial_loss(dial.error), fmt::format("{}: {}", target(), strerror(dial.error))});
  }
}

void Dialer::wait_for(Fd socket) {
  const int serial = ++serial_;
  const auto attempt = std::make_shared<asio::posix::stream_descriptor>(loop_.io);
  error_code error;
  attempt->assign(socket.get(), error);
  if (error) {
    note({LinkEvent::broken, error.message()});
    return pause();
  }
  socket.release();
  attempts_.push_back(attempt);
  if (attempts_.size() > kAttemptsAtOnce) {
    attempts_.front()->close(error);
    attempts_.pop_front();
  }
  pausing_ = false;
  attempt->async_wait(asio::posix::stream_descriptor::wait_write, [this, self = shared_from_this(),
                                                                   attempt](error_code aborted) {
    if (aborted || stopped_ || !attempt->is_open()) return;
    const bool newest = attempt == attempts_.back() && !pausing_;
    attempts_.remove(attempt);
    Fd done(attempt->release());
    const int result = net::dial_result(done.get());
    if (result != 0) note({dial_loss(result), fmt::format("{}: {}", target(), strerror(result))});
    if (result != 0 && !newest) return;  // the next one is under way
    ++serial_;
    timer_.cancel();
    if (result != 0) return next();
    drop_attempts();
    connected(std::move(done));
  });
  const Nanoseconds left = deadline_ - boot_time();
  const Nanoseconds limit = std::min<Nanoseconds>(attempt_, std::max(left, Nanoseconds(1)));
  timer_.expires_after(limit);
  timer_.async_wait([this, self = shared_from_this(), serial, limit](error_code aborted) {
    if (aborted || serial != serial_ || stopped_) return;
    ++serial_;
    pausing_ = true;
    // An attempt that the deadline cut short says less than what was seen before.
    if (!failure_ || limit >= attempt_) {
      note({LinkEvent::unreachable, fmt::format("{}: no answer", target())});
    }
    next();
  });
}

void Dialer::drop_attempts() {
  error_code ignored;
  for (const auto& attempt : attempts_) attempt->close(ignored);
  attempts_.clear();
}

void Dialer::again(const Failure& failure) {
  if (stopped_) return;
  note(failure);
  next();
}

// Between two rounds through all addresses.
void Dialer::pause() {
  const Nanoseconds now = boot_time();
  if (now >= deadline_) return give_up();
  const auto length = std::chrono::duration_cast<Nanoseconds>(pause_ * (0.5 + loop_.random()));
  pausing_ = true;
  if (++rounds_ >= kQuickRounds) attempt_ = std::min(2 * attempt_, kLongestAttempt);
  pause_ = std::min(pause_ + pause_ / 4, kLongestPause);
  const int serial = ++serial_;
  timer_.expires_after(std::min(length, deadline_ - now));
  timer_.async_wait([this, self = shared_from_this(), serial](error_code aborted) {
    if (aborted || serial != serial_ || stopped_) return;
    if (boot_time() >= deadline_) return give_up();
    if (named_) return look_up();
    next_ = 0;
    new_round_ = true;
    next();
  });
}

void Dialer::note(const Failure& failure) {
  if (new_round_ || !failure_ || telling(failure.loss) >= telling(failure_->loss)) {
    failure_ = failure;
  }
  new_round_ = false;
}

void Dialer::give_up() {
  if (stopped_) return;
  stopped_ = true;
  drop_attempts();
  if (!failure_) failure_ = Failure{LinkEvent::unreachable, "no time to try"};
  const double seconds = std::chrono::duration<double>(boot_time() - begin_).count();
  failure_->reason += fmt::format(" (tried for {:.1f} s)", seconds);
  failed(*failure_);
}

void Dialer::stop() {
  stopped_ = true;
  ++serial_;
  timer_.cancel();
  drop_attempts();
}

}  // namespace mtl::link
