// How a connection gets its socket: addresses, attempts beside each other, or a ProxyCommand.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <poll.h>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "launcher/ssh/connection.h"
#include "launcher/ssh/messages.h"
#include "launcher/ssh/start_up.h"
#include "rendezvous/sockets.h"

namespace mtl::ssh {

namespace {

// Of one that stays without an answer: the far side's death is noticed by heartbeats long before;
// this only frees what the connection holds, and must not end one over a lossy line.
constexpr std::chrono::seconds kUserTimeout{20};
// The kernel repeats a lost SYN after 1, 2, 4 ... s. So after this time without an answer another
// attempt is made beside those that wait, to the next address or the same one, and the first to be
// answered is taken (as in RFC 8305, "Happy Eyeballs"); the first few at the short distance.
constexpr std::chrono::milliseconds kNextAttempt{400}, kLaterAttempts{1'000};
constexpr int kQuickAttempts = 6;
constexpr size_t kAttemptsAtOnce = 6;  // beyond them the oldest is given up
// "No route to host" is also what is said after three lost questions for its hardware address, at
// intervals of a second. A host that is off is to be named soon: two more.
constexpr std::chrono::milliseconds kSecondChance{1'500};

}  // namespace

void Connection::start() {
  if (!settings_.proxy_command.empty()) return start_proxy();
  state_ = State::resolving;
  shared_.resolver.resolve(settings_.host_name, settings_.port, settings_.address_family,
                           [weak = weak_from_this()](const Resolved& resolved) {
                             const auto self = weak.lock();
                             if (!self || self->state_ != State::resolving) return;
                             if (resolved.addresses.empty()) {
                               self->fail({unknown_host(self->settings_, resolved.error)});
                               return;
                             }
                             for (const Address& address : resolved.addresses) {
                               self->targets_.push_back({address, false, std::nullopt});
                             }
                             self->state_ = State::connecting;
                             self->connect_next();
                           });
}

void Connection::connect_next() {
  shared_.loop.cancel(next_attempt_);
  for (size_t i = 0; i < targets_.size(); ++i) {
    const size_t index = next_target_++ % targets_.size();
    Target& target = targets_[index];
    if (target.given_up) continue;
    if (target.unreachable && Clock::now() - *target.unreachable > kSecondChance) {
      target.given_up = true;
      continue;
    }
    const Address& address = target.address;
    last_target_ = index;
    const auto give_up = [&](const std::string& error) {
      connect_error_ = error;
      target.given_up = true;
    };
    Fd attempt(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!attempt) {
      give_up(strerror(errno));
      continue;
    }
    const int fd = attempt.get();
    net::tune(fd, kUserTimeout);
    net::tune_for_messages(fd);
    if (!settings_.bind_address.empty()) {
      sockaddr_storage from{};
      socklen_t size = 0;
      if (!numeric_address(settings_.bind_address, address.storage.ss_family, from, size) ||
          bind(fd, reinterpret_cast<const sockaddr*>(&from), size) != 0) {
        give_up(fmt::format("BindAddress {}: {}", settings_.bind_address, strerror(errno)));
        continue;
      }
    }
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) {
      return connected(std::move(attempt));
    }
    if (errno != EINPROGRESS) {
      give_up(strerror(errno));
      continue;
    }
    if (attempts_.size() == kAttemptsAtOnce) {
      shared_.loop.unwatch(attempts_.front().watch);
      attempts_.pop_front();
    }
    attempts_.push_back({std::move(attempt), 0, index, Clock::now()});
    const auto place = std::prev(attempts_.end());
    place->watch =
        shared_.loop.watch(fd, EPOLLOUT, [this, place](uint32_t) { attempt_over(place); });
    const bool quick = ++attempts_made_ < kQuickAttempts || target.unreachable;
    const auto pause = quick ? kNextAttempt : kLaterAttempts;
    next_attempt_ = shared_.loop.at(Clock::now() + pause, [this] { connect_next(); });
    return;
  }
  drop_attempts();
  fail({refused(settings_, targets_[last_target_].address.text(), connect_error_)});
}

void Connection::attempt_over(std::list<Attempt>::iterator attempt) {
  Attempt over = std::move(*attempt);
  shared_.loop.unwatch(over.watch);
  attempts_.erase(attempt);
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(over.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return connected(std::move(over.socket));
  connect_error_ = strerror(error);
  Target& target = targets_[over.address];
  // All attempts hear of it that were under way.
  const bool first = error == EHOSTUNREACH && !target.unreachable;
  const bool same = error == EHOSTUNREACH && target.unreachable && over.begun < *target.unreachable;
  if (first) target.unreachable = Clock::now();
  if (!first && !same) target.given_up = true;
  const bool known = std::any_of(attempts_.begin(), attempts_.end(),
                                 [&](const Attempt& other) { return other.begun > over.begun; });
  if (!known) connect_next();  // else it has been made, and its time runs
}

void Connection::drop_attempts() {
  shared_.loop.cancel(next_attempt_);
  for (const Attempt& attempt : attempts_) shared_.loop.unwatch(attempt.watch);
  attempts_.clear();
}

void Connection::start_on(Fd socket) {
  socket_ = std::move(socket);
  open_session();
}

void Connection::start_proxy() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail({proxy_failed(settings_, settings_.proxy_command, strerror(errno))});
  }
  Fd ours(ends[0]), theirs(ends[1]);
  std::string command;
  if (!expand_proxy_command(settings_, command)) {
    return fail({proxy_failed(settings_, settings_.proxy_command,
                              "the host's name has characters that a shell would act on")});
  }
  proxy_errors_ = Fd(memfd_create("mtl-proxy", MFD_CLOEXEC));
  proxy_ = Child({"/bin/sh", "-c", "exec " + command}, theirs.get(), proxy_errors_.get());
  if (proxy_.pid() < 0) {
    return fail({proxy_failed(settings_, settings_.proxy_command, strerror(errno))});
  }
  make_nonblocking(ours.get());
  start_on(std::move(ours));
}

// It ends before the server has said anything. Its last words say why.
Failure Connection::proxy_failure() {
  constexpr int kEndMs = 100;  // its socket is closed a little earlier than it has ended
  constexpr int kSshFailed = 255;
  pollfd ended{proxy_.ended_fd(), POLLIN, 0};
  const bool over = poll(&ended, 1, kEndMs) > 0;
  const int status = over ? proxy_.reap() : 0;
  const std::string how = !over ? "it leads to nobody who greets"
                          : WIFSIGNALED(status)
                              ? fmt::format("it was killed by signal {}", WTERMSIG(status))
                              : fmt::format("it ended with {}", WEXITSTATUS(status));
  Failure failure{{proxy_failed(settings_, settings_.proxy_command, how)}};
  char text[4'096];
  const ssize_t got = pread(proxy_errors_.get(), text, sizeof text, 0);
  const std::string words(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  add_lines(failure.error.notes, "it says:", last_lines(words, kShownLines));
  // An ssh whose jump host is busy may get through a little later.
  failure.again = over && WIFEXITED(status) && WEXITSTATUS(status) == kSshFailed;
  return failure;
}

void Connection::connected(Fd socket) {
  drop_attempts();
  start_on(std::move(socket));
}

}  // namespace mtl::ssh
