// Listening, strangers and deadlines. A crowd of strangers neither takes more than its share of
// descriptors nor keeps the true ones out: what comes while the room is full waits in the kernel's
// backlog until somebody has proved the token or has had time enough to.
#include "rendezvous/link_loop.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/longest_wait.h"

namespace mtl::link {

namespace {

constexpr size_t kMaxStrangers = 256;
// When the room is full: who has said nothing goes after the first (a true peer speaks at once),
// who has begun the handshake after the second (a few round trips to the other end of the world).
constexpr Nanoseconds kSilentGrace = std::chrono::milliseconds(100);
constexpr Nanoseconds kGreetedGrace = std::chrono::milliseconds(1'000);
// Out of descriptors: wait for some to be closed instead of spinning on accept.
constexpr Nanoseconds kAcceptPause = std::chrono::milliseconds(100);
// Then the other connections have their turn.
constexpr int kAcceptsAtOnce = 64;
// Of another version, whose addresses are told.
constexpr size_t kMostTurnedAway = 16;
constexpr size_t kScratchBytes = size_t{256} << 10;

Nanoseconds read_clock(clockid_t which) {
  timespec time = {};
  ::clock_gettime(which, &time);
  return std::chrono::seconds(time.tv_sec) + Nanoseconds(time.tv_nsec);
}

}  // namespace

Nanoseconds boot_time() {
  return read_clock(CLOCK_BOOTTIME);
}

Nanoseconds system_clock() {
  return read_clock(CLOCK_REALTIME);
}

Loop::Loop(asio::io_context& context, const LinkHubOptions& given,
           std::function<void(LinkEvent)> emitter)
    : io(context),
      options(given),
      dead_after(std::clamp(given.dead_after, std::chrono::milliseconds(10), kLongestWait)),
      emit(std::move(emitter)),
      gate(std::make_shared<Gate>()),
      scratch(kScratchBytes),
      random_(std::random_device()()),
      key_(given.token.empty() ? nullptr : std::make_unique<auth::Key>(given.token)),
      timer_(context) {
  gate->io = &io;
}

// Handlers that Asio still holds keep their peers for a little longer than us: they find them gone.
Loop::~Loop() {
  {
    const std::lock_guard lock(gate->mutex);
    gate->io = nullptr;
  }
  resuming_ = true;
  drained = nullptr;
  for (const auto& peer : everybody([](Peer&) { return true; })) peer->drop();
}

const auth::Key& Loop::key() {
  return *key_;
}

void Loop::listen(Fd socket) {
  Listener& listener = listeners_.emplace_back(io);
  listener.socket.assign(socket.release());
  accept(listener);
}

void Loop::accept(Listener& listener) {
  listener.paused = false;
  listener.socket.async_wait(asio::posix::stream_descriptor::wait_read,
                             [this, &listener](error_code error) {
                               if (!error) accept_some(listener);
                             });
}

void Loop::accept_some(Listener& listener) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    if (!make_room()) {
      listener.paused = true;
      return;
    }
    Fd socket = net::accept_one(listener.socket.native_handle());
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        listener.paused = true;
        wake_at(boot_time() + kAcceptPause);
        return;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      continue;  // that connection failed before we had it
    }
    std::make_shared<Peer>(*this, 0)->accept(std::move(socket));
  }
  accept(listener);
}

// Whether one more stranger may come in.
bool Loop::make_room() {
  if (silent_.size() + greeted_.size() < kMaxStrangers) return true;
  const Nanoseconds now = boot_time();
  const auto drop_oldest = [now](Strangers& list, Nanoseconds grace) {
    if (list.empty() || now < list.front().since + grace) return false;
    const std::shared_ptr<Peer> oldest = list.front().peer;
    oldest->drop();
    return true;
  };
  if (drop_oldest(silent_, kSilentGrace) || drop_oldest(greeted_, kGreetedGrace)) return true;
  Nanoseconds next = Nanoseconds::max();
  if (!silent_.empty()) next = silent_.front().since + kSilentGrace;
  if (!greeted_.empty()) next = std::min(next, greeted_.front().since + kGreetedGrace);
  wake_at(next);
  return false;
}

void Loop::add_stranger(const std::shared_ptr<Peer>& peer) {
  const Nanoseconds now = boot_time();
  peer->strangers_ = &silent_;
  peer->place_ = silent_.insert(silent_.end(), {peer, now});
  peer->until_ = now + options.auth_timeout;
  wake_at(peer->until_);
}

void Loop::stranger_greeted(const std::shared_ptr<Peer>& peer) {
  if (peer->strangers_ != &silent_) return;
  greeted_.splice(greeted_.end(), silent_, peer->place_);
  peer->place_->since = boot_time();
  peer->strangers_ = &greeted_;
}

void Loop::remove_stranger(Peer& peer) {
  if (peer.strangers_ == nullptr) return;
  peer.strangers_->erase(peer.place_);
  peer.strangers_ = nullptr;
  const bool waiting = std::any_of(listeners_.begin(), listeners_.end(),
                                   [](const Listener& listener) { return listener.paused; });
  // Not for each one that goes: the others come in faster together.
  const bool room = silent_.size() + greeted_.size() <= kMaxStrangers * 3 / 4;
  if (!waiting || !room || resuming_) return;
  resuming_ = true;
  asio::post(io, [this] {
    resuming_ = false;
    for (Listener& listener : listeners_) {
      if (listener.paused) accept(listener);
    }
  });
}

void Loop::turned_away(const std::string& address, uint32_t version) {
  // Anybody can say that.
  if (turned_away_.size() == kMostTurnedAway || !turned_away_.insert(address).second) return;
  LinkEvent event;
  event.kind = LinkEvent::turned_away;
  event.loss = LinkEvent::wrong_version;
  event.reason = fmt::format(
      "the mtl that has come from {} speaks version {} of the protocol, this one version {}: "
      "install the same version on all nodes",
      address, version, wire::kVersion);
  emit(std::move(event));
}

void Loop::add_closing(const std::shared_ptr<Peer>& peer) {
  ++closings_;
  closing_.push_back(peer);
  wake_at(peer->next_change());
}

void Loop::closing_over() {
  --closings_;
  if (is_drained() && drained) drained();
}

void Loop::count(int64_t bytes) {
  pending_ = static_cast<size_t>(static_cast<int64_t>(pending_) + bytes);
  if (is_drained() && drained) drained();
}

void Loop::wake_at(Nanoseconds when) {
  if (when >= tick_at_) return;
  const Nanoseconds now = boot_time();
  tick_at_ = when;
  timer_.expires_after(std::max(Nanoseconds(0), std::min<Nanoseconds>(when - now, kLongestWait)));
  timer_.async_wait([this](error_code error) {
    if (!error) tick();
  });
}

// As a list of its own, since what is done to one of them may remove from every other list.
std::vector<std::shared_ptr<Peer>> Loop::everybody(const std::function<bool(Peer&)>& wanted) {
  std::vector<std::shared_ptr<Peer>> all;
  for (const auto& [id, peer] : peers) {
    if (wanted(*peer)) all.push_back(peer);
  }
  for (const Strangers* list : {&silent_, &greeted_}) {
    for (const Stranger& stranger : *list) {
      if (wanted(*stranger.peer)) all.push_back(stranger.peer);
    }
  }
  for (auto it = closing_.begin(); it != closing_.end();) {
    const std::shared_ptr<Peer> peer = it->lock();
    if (!peer || peer->gone()) {
      it = closing_.erase(it);
      continue;
    }
    if (wanted(*peer)) all.push_back(peer);
    ++it;
  }
  return all;
}

void Loop::tick() {
  const Nanoseconds now = boot_time();
  const Nanoseconds interval = Pulse::interval(dead_after);
  const bool overslept = now - tick_at_ > 2 * interval;
  tick_at_ = Nanoseconds::max();
  Nanoseconds next = Nanoseconds::max();
  const std::vector<std::shared_ptr<Peer>> due = everybody([&](Peer& peer) {
    if (overslept) peer.overslept(now);
    const Nanoseconds change = peer.next_change();
    if (change > now) next = std::min(next, change);
    return change <= now;
  });
  for (const auto& peer : due) {
    peer->tick(now);
    next = std::min(next, peer->next_change());
  }
  // Thousands of heartbeats do not need thousands of looks at everybody.
  if (next != Nanoseconds::max()) wake_at(std::max(next, now + interval / 16));
  for (Listener& listener : listeners_) {
    if (listener.paused) accept_some(listener);
  }
}

}  // namespace mtl::link
