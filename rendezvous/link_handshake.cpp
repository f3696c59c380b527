// How a connection of the hub begins: taken, handed over or dialed, and what the two say to each
// other until each has the other's proof of the token.
#include <algorithm>
#include <fcntl.h>
#include <utility>

#include "rendezvous/link_loop.h"

namespace mtl::link {

namespace {

void make_non_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0) ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

}  // namespace

void Peer::accept(Fd socket) {
  stage_ = Stage::hello;
  loop_.add_stranger(shared_from_this());
  begin_stream(std::move(socket), Fd());
  read();  // who connects speaks first, so its Hello is often here already
}

void Peer::adopt(Fd in, Fd out, bool leased) {
  adopted_ = true;
  make_non_blocking(in.get());
  if (out) make_non_blocking(out.get());
  begin_stream(std::move(in), std::move(out));
  if (stage_ == Stage::gone) return;
  stage_ = Stage::open;
  queue_.push_back({.head = greeting(), .urgent = true});
  note_queued(static_cast<int64_t>(queue_.back().size()));
  greeted_ = false;
  open(leased, boot_time());
  write();
  wait_readable();
}

void Peer::connect(std::string host, uint16_t port, std::chrono::milliseconds patience,
                   std::string from) {
  stage_ = Stage::dialing;
  dialer_ = std::make_shared<Dialer>(loop_, std::move(host), port, patience, std::move(from));
  const std::weak_ptr<Peer> weak = weak_from_this();
  dialer_->connected = [weak](Fd socket) {
    const auto self = weak.lock();
    if (!self || self->stage_ != Stage::dialing) return;
    self->begin_stream(std::move(socket), Fd());
    if (self->stage_ != Stage::dialing) return;
    self->stage_ = Stage::challenge;
    self->until_ = std::min<Nanoseconds>(
        boot_time() + self->loop_.options.auth_timeout,
        std::max(self->dialer_->deadline(), boot_time() + std::chrono::milliseconds(1)));
    self->loop_.wake_at(self->until_);
    self->hello_ = {.service = wire::Service::link, .nonce = auth::random_nonce()};
    self->said_at_ = boot_time();
    self->say(wire::encode(self->hello_));
    self->wait_readable();
  };
  dialer_->failed = [weak](const Failure& failure) {
    if (const auto self = weak.lock()) self->lose(failure);
  };
  dialer_->start();
}

// A step of the handshake.
void Peer::say(const std::string& payload) {
  Outgoing frame;
  frame.body = wire::frame(payload);
  note_queued(static_cast<int64_t>(frame.size()));
  queue_.push_back(std::move(frame));
  write();
}

void Peer::on_hello(std::string_view payload) {
  const auto hello = wire::decode_hello(payload);
  if (!hello || hello->service != wire::Service::link) return drop();
  if (hello->version != wire::kVersion) {
    loop_.turned_away(net::peer_address(in_.native_handle()), hello->version);
    return refuse({.verdict = wire::Verdict::wrong_version, .generation = 0});
  }
  hello_ = *hello;
  loop_.stranger_greeted(shared_from_this());
  challenge_ = {.nonce = auth::random_nonce(), .clock = system_clock().count()};
  said_at_ = boot_time();
  stage_ = Stage::proof;
  say(wire::encode(challenge_));
}

void Peer::on_challenge(std::string_view payload) {
  const auto challenge = wire::decode_challenge(payload);
  if (!challenge) {
    const auto refusal = wire::decode_welcome(payload);
    if (refusal && refusal->verdict == wire::Verdict::wrong_version) {
      return fail(LinkEvent::wrong_version, "it speaks another version of the protocol", true);
    }
    return fail(LinkEvent::broken, "it does not speak our protocol");
  }
  challenge_ = *challenge;
  const Nanoseconds now = boot_time();
  const Nanoseconds clock = system_clock();
  first_rtt_ = now - said_at_;
  first_ahead_ = told(challenge_.clock) - (clock - first_rtt_ / 2);
  said_at_ = now;
  stage_ = Stage::welcome;
  say(wire::encode(
      wire::Proof{.mac = auth::client_proof(loop_.key(), hello_, challenge_, clock.count()),
                  .clock = clock.count()}));
}

void Peer::on_proof(std::string_view payload) {
  const auto proof = wire::decode_proof(payload);
  if (!proof) return drop();
  if (!auth::equal(proof->mac, auth::client_proof(loop_.key(), hello_, challenge_, proof->clock))) {
    return refuse({.verdict = wire::Verdict::wrong_token, .generation = 0});
  }
  const Nanoseconds now = boot_time();
  first_rtt_ = now - said_at_;
  first_ahead_ = told(proof->clock) - (system_clock() - first_rtt_ / 2);
  wire::Welcome welcome;
  welcome.mac = auth::server_proof(loop_.key(), hello_, challenge_, welcome);
  const auto self = shared_from_this();
  loop_.remove_stranger(*this);
  say(wire::encode(welcome));
  if (stage_ != Stage::proof) return;
  id_ = loop_.new_id();
  loop_.peers[id_] = self;
  open(false, now);
}

void Peer::on_welcome(std::string_view payload) {
  const auto welcome = wire::decode_welcome(payload);
  if (!welcome) return fail(LinkEvent::broken, "it does not speak our protocol");
  if (!auth::equal(welcome->mac, auth::server_proof(loop_.key(), hello_, challenge_, *welcome)) ||
      welcome->verdict != wire::Verdict::accepted) {
    return fail(LinkEvent::wrong_token, "it has another token than we: it belongs to another run",
                true);
  }
  open(true, said_at_);
}

void Peer::refuse(const wire::Welcome& welcome) {
  say(wire::encode(welcome));
  drop();
}

// `since`: when the peer may first have counted on us, or we on it.
void Peer::open(bool leased, Nanoseconds since) {
  stage_ = Stage::open;
  until_ = Nanoseconds::max();
  dialer_.reset();
  pulse_.emplace(leased, loop_.dead_after, since, loop_.random());
  tell_lease();
  LinkEvent event;
  event.kind = LinkEvent::opened;
  event.link = id_;
  if (!adopted_) {
    pulse_->saw_clock(first_rtt_, first_ahead_);
    event.local_address = net::local_address(in_.native_handle());
    event.clock_ahead = first_ahead_;
  } else {
    pulse_->beat_now();
  }
  loop_.wake_at(pulse_->next_change());
  for (Outgoing& frame : early_) queue_.push_back(std::move(frame));
  early_.clear();
  loop_.emit(std::move(event));
}

}  // namespace mtl::link
