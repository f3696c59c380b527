#include "launcher/ssh/dial.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include <sys/socket.h>

#include <fmt/format.h>

#include "launcher/ssh/messages.h"

namespace mtl::ssh {

namespace {

constexpr int kMaxHops = 8;
constexpr int kMaxTries = 12;
// Over a line that loses packets a handshake may stand still for seconds, as the far kernel repeats
// what was lost ever more rarely: then another one is made beside it, and the first one wins.
constexpr std::chrono::milliseconds kBeside{700}, kLookAtLine{200};
constexpr size_t kTriesAtOnce = 4;
constexpr int kFirstPauseMs = 100, kLongestPauseMs = 2'000;

// "user@host:port", "[fd00::1]:22", "ssh://..." of a ProxyJump.
Host parse_hop(std::string text) {
  Host host;
  if (text.starts_with("ssh://")) text.erase(0, 6);
  if (const size_t at = text.rfind('@'); at != std::string::npos) {
    host.user = text.substr(0, at);
    text.erase(0, at + 1);
  }
  if (text.starts_with('[')) {
    const size_t end = std::min(text.find(']'), text.size());
    host.name = text.substr(1, end - 1);
    if (end + 2 < text.size()) host.port = atoi(text.c_str() + end + 2);
  } else {
    const size_t colon = text.find(':');
    host.name = text.substr(0, colon);
    if (colon != std::string::npos) host.port = atoi(text.c_str() + colon + 1);
  }
  return host;
}

Route route(const Host& host, Config& config, int depth) {
  Route result{config.of(host), {}};
  if (depth > kMaxHops || static_cast<int>(result.host.jumps.size()) > kMaxHops) {
    throw Error(Exit::config, {.code = "ssh.config",
                               .what = fmt::format("{}: more than {} jump hosts before it; do they "
                                                   "lie behind each other?",
                                                   host.name, kMaxHops)});
  }
  for (size_t i = 0; i < result.host.jumps.size(); ++i) {
    const Host hop = parse_hop(result.host.jumps[i]);
    if (i == 0) {
      Route first = route(hop, config, depth + 1);  // it may have a jump host of its own
      result.hops = std::move(first.hops);
      result.hops.push_back(std::move(first.host));
    } else {
      result.hops.push_back(config.of(hop));
    }
  }
  return result;
}

int random_between(int low, int high) {
  static thread_local std::minstd_rand engine(std::random_device{}());
  return std::uniform_int_distribution<int>(low, high)(engine);
}

}  // namespace

Route route_to(const Host& host, Config& config) {
  return route(host, config, 0);
}

Dial::Dial(Shared& shared, JumpHosts& jumps, const HostSettings& host,
           std::vector<HostSettings> hops, User& user)
    : shared_(shared), jumps_(jumps), host_(host), hops_(std::move(hops)), user_(user) {}

Dial::~Dial() {
  shared_.loop.cancel(timer_);
  shared_.loop.cancel(retry_);
  shared_.loop.cancel(beside_);
}

bool Dial::silent() const {
  return std::all_of(tries_.begin(), tries_.end(),
                     [](const auto& one) { return one->connection->silent(); });
}

void Dial::start(Clock::time_point deadline, std::chrono::milliseconds patience) {
  deadline_ = deadline;
  patience_ = patience;
  timer_ = shared_.loop.at(deadline, [this] {
    if (over_) return;
    std::string what = "its turn";
    if (!tries_.empty()) {
      what = tries_.front()->connection->waiting_for();
    } else if (!hops_.empty()) {
      what = fmt::format("the jump host {}", hops_.back().label());
    }
    give_up(timed_out(host_, patience_.count(), what, ""));
  });
  try_once();
}

Connection& Dial::add_try() {
  const auto& added = tries_.emplace_back(std::make_shared<Try>(*this));
  added->connection = std::make_shared<Connection>(shared_, host_, *added);
  return *added->connection;
}

void Dial::try_once() {
  ++tried_;
  if (hops_.empty()) {
    add_try().start();
    beside_ = shared_.loop.at(Clock::now() + kBeside, [this] { try_beside(); });
    return;
  }
  JumpHost& jump = jumps_.get(hops_, deadline_, patience_);
  jump.open(host_, [this, weak = std::weak_ptr(alive_)](JumpHost::Opened opened) {
    if (weak.expired() || over_) return;
    if (opened.error) return give_up(*opened.error);
    add_try().start_on(std::move(opened.socket));
  });
}

void Dial::try_beside() {
  if (over_ || tries_.empty() || tries_.size() >= kTriesAtOnce) return;
  const bool lossy = tries_.back()->connection->on_lossy_line();
  if (lossy) add_try().start();
  beside_ =
      shared_.loop.at(Clock::now() + (lossy ? kBeside : kLookAtLine), [this] { try_beside(); });
}

void Dial::drop(std::list<std::shared_ptr<Try>> tries) {
  shared_.loop.defer([dropped = std::move(tries)] {});
}

void Dial::hang_up() {
  over_ = true;
  shared_.loop.cancel(timer_);
  shared_.loop.cancel(retry_);
  shared_.loop.cancel(beside_);
  tries_.clear();
}

void Dial::ready(Try& ready) {
  if (over_) return;
  over_ = true;
  shared_.loop.cancel(timer_);
  shared_.loop.cancel(beside_);
  std::list<std::shared_ptr<Try>> others;
  others.swap(tries_);
  const auto found = std::find_if(others.begin(), others.end(),
                                  [&](const auto& one) { return one.get() == &ready; });
  tries_.splice(tries_.end(), others, found);
  drop(std::move(others));
  user_.ready();
}

void Dial::failed(Try& failed, const Failure& failure) {
  if (over_) return;
  const auto found = std::find_if(tries_.begin(), tries_.end(),
                                  [&](const auto& one) { return one.get() == &failed; });
  std::list<std::shared_ptr<Try>> gone;
  gone.splice(gone.end(), tries_, found);
  drop(std::move(gone));
  if (!tries_.empty()) return;  // what is wrong for good the other one will hear too
  shared_.loop.cancel(beside_);
  // A pause with some chance in it, so that those who were dropped together do not return together.
  const int longest = std::min(kFirstPauseMs << std::min(tried_, 8), kLongestPauseMs);
  const auto pause = std::chrono::milliseconds(random_between(longest / 2, longest));
  if (!failure.again || tried_ >= kMaxTries || Clock::now() + pause >= deadline_) {
    return give_up(failure.error);
  }
  retry_ = shared_.loop.at(Clock::now() + pause, [this] { try_once(); });
}

void Dial::give_up(const Diagnostic& error) {
  over_ = true;
  shared_.loop.cancel(timer_);
  shared_.loop.cancel(retry_);
  shared_.loop.cancel(beside_);
  shared_.loop.defer([this, weak = std::weak_ptr(alive_), error] {
    if (weak.expired()) return;
    tries_.clear();
    user_.failed(error);
  });
}

// --- jump hosts

JumpHost::JumpHost(Shared& shared, JumpHosts& jumps, std::vector<HostSettings> hops)
    : shared_(shared),
      host_(hops.back()),
      dial_(shared, jumps, host_, {hops.begin(), hops.end() - 1}, *this) {}

void JumpHost::start(Clock::time_point deadline, std::chrono::milliseconds patience) {
  dial_.start(deadline, patience);
}

void JumpHost::open(const HostSettings& target, Done done) {
  if (failure_) {
    shared_.loop.defer([error = jump_failed(target, host_, *failure_), done = std::move(done)] {
      done({Fd(), error});
    });
    return;
  }
  forwards_.push_back({&target, std::move(done), nullptr, false});
  if (!ready_) return;
  begin(forwards_.back());
  if (!advance(forwards_.back())) forwards_.pop_back();
  dial_.connection().rearm();
}

void JumpHost::begin(Forward& forward) {
  forward.stream = std::make_unique<ChannelStream>(shared_.loop, dial_.connection(), [this] {
    // From a handler of one socket, not from inside the walk over all.
    if (!activity_due_)
      shared_.loop.defer([this] {
        activity_due_ = false;
        activity();
      });
    activity_due_ = true;
  });
}

void JumpHost::ready() {
  ready_ = true;
  for (Forward& forward : forwards_) begin(forward);
  activity();
}

bool JumpHost::advance(Forward& forward) {
  if (forward.open) {
    forward.stream->update();
    return !forward.stream->finished();
  }
  const int rc =
      ssh_channel_open_forward(forward.stream->channel(), forward.target->host_name.c_str(),
                               forward.target->port, "127.0.0.1", 0);
  if (rc == SSH_AGAIN) return true;
  int ends[2];
  std::string problem;
  if (rc != SSH_OK) {
    problem = ssh_get_error(dial_.connection().session());
  } else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    problem = strerror(errno);
  }
  if (!problem.empty()) {
    shared_.loop.defer([error = proxy_failed(*forward.target, host_.label(), problem),
                        done = std::move(forward.done)] {
      done({Fd(), error});
    });
    return false;
  }
  forward.open = true;
  auto theirs = std::make_shared<Fd>(ends[1]);
  forward.stream->attach(Fd(ends[0]), "");
  shared_.loop.defer([theirs, done = std::move(forward.done)] {
    done({std::move(*theirs), std::nullopt});
  });
  return true;
}

void JumpHost::activity() {
  if (!ready_) return;
  for (auto at = forwards_.begin(); at != forwards_.end();) {
    Forward& forward = *at;
    const bool due = !forward.open || forward.stream->wants_update();
    at = !due || advance(forward) ? std::next(at) : forwards_.erase(at);
  }
  dial_.connection().rearm();
}

void JumpHost::failed(const Diagnostic& error) {
  failure_ = error;
  std::list<Forward> forwards;
  forwards.swap(forwards_);
  for (Forward& forward : forwards) {
    if (forward.done) forward.done({Fd(), jump_failed(*forward.target, host_, error)});
  }
}

void JumpHost::lost(const std::string& why) {
  ready_ = false;
  for (Forward& forward : forwards_) {
    if (forward.stream) forward.stream->connection_lost();
  }
  failed({.code = "ssh.connect",
          .what = fmt::format("{}: the connection was lost: {}", host_.label(), why)});
}

JumpHost& JumpHosts::get(const std::vector<HostSettings>& hops, Clock::time_point deadline,
                         std::chrono::milliseconds patience) {
  std::string key;
  for (const HostSettings& hop : hops) key += hop.key() + " ";
  std::unique_ptr<JumpHost>& host = hosts_[key];
  if (!host) {
    host = std::make_unique<JumpHost>(shared_, *this, hops);
    host->start(deadline, patience);
    order_.push_back(key);
  }
  return *hosts_.at(key);
}

void JumpHosts::close() {
  // A host is added to the order after those that it needed for its start.
  while (!order_.empty()) {
    hosts_.erase(order_.back());
    order_.pop_back();
  }
}

}  // namespace mtl::ssh
