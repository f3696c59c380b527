// One connection of the hub: frames both ways, and its end; how it begins is in link_handshake.cpp.
// It is read and written by plain
// system calls when Asio says that it is ready, so that an idle link holds no buffer and everything
// that waits goes out in one call.
#include <array>
#include <cerrno>
#include <cstring>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/link_loop.h"

namespace mtl::link {

namespace {

constexpr size_t kPiecesAtOnce = 64;
// Per turn, then the other connections have theirs.
constexpr size_t kWrittenAtOnce = size_t{1} << 20;
constexpr int kReadsAtOnce = 8;

LinkEvent::Loss peer_loss(int error) {
  switch (error) {
    case ECONNRESET:
    case EPIPE:
      return LinkEvent::closed;
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return LinkEvent::silent;
    default:
      return LinkEvent::broken;
  }
}

bool is_socket(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

}  // namespace

Peer::Peer(Loop& loop, LinkId id) : loop_(loop), id_(id), in_(loop.io), out_(loop.io) {}

void Peer::note_queued(int64_t bytes) {
  queued_ = static_cast<size_t>(static_cast<int64_t>(queued_) + bytes);
  if (id_ != 0) loop_.backlog.queued(id_, queued_);
  loop_.count(bytes);
}

void Peer::begin_stream(Fd in, Fd out) {
  ++serial_;
  splitter_ = Splitter();
  write_error_ = 0;
  writing_ = false;
  socket_ = !adopted_ || is_socket(in.get());
  error_code error;
  in_.assign(in.get(), error);
  if (!error) in.release();
  if (!error && out) {
    out_.assign(out.get(), error);
    if (!error) out.release();
  }
  if (error) fail(LinkEvent::broken, "cannot watch its descriptor: " + error.message());
}

void Peer::end_stream() {
  ++serial_;
  error_code ignored;
  if (in_.is_open()) {
    if (socket_) {
      // Unread bytes would turn the end into a reset, which may cost the peer what we said last;
      // the shutdown ends the connection even if a forked child still holds a copy of it.
      ssize_t got = 0;
      do {
        got = ::recv(in_.native_handle(), loop_.scratch.data(), loop_.scratch.size(), MSG_DONTWAIT);
      } while (got > 0);
      ::shutdown(in_.native_handle(), SHUT_RDWR);
    }
    in_.close(ignored);
  }
  if (out_.is_open()) out_.close(ignored);
  auto gone = -static_cast<int64_t>(offset_);
  for (const auto* waiting : {&queue_, &early_}) {
    if (waiting == &early_ && stage_ != Stage::gone) continue;  // for the next attempt
    for (const Outgoing& frame : *waiting) gone += static_cast<int64_t>(frame.size());
  }
  offset_ = 0;
  queue_.clear();
  if (stage_ == Stage::gone) early_.clear();
  note_queued(-gone);
}

void Peer::wait_readable() {
  if (!in_.is_open()) return;
  in_.async_wait(asio::posix::stream_descriptor::wait_read,
                 [this, self = shared_from_this(), serial = serial_](error_code error) {
                   if (serial != serial_ || error == asio::error::operation_aborted) return;
                   if (error) return fail(LinkEvent::broken, error.message());
                   read();
                 });
}

void Peer::wait_writable() {
  if (writing_) return;
  writing_ = true;
  auto& stream = out_.is_open() ? out_ : in_;
  stream.async_wait(asio::posix::stream_descriptor::wait_write,
                    [this, self = shared_from_this(), serial = serial_](error_code error) {
                      if (serial != serial_ || error == asio::error::operation_aborted) return;
                      writing_ = false;
                      if (error) return fail(LinkEvent::broken, error.message());
                      write();
                    });
}

void Peer::read() {
  const int serial = serial_;
  const auto limit = [this] {
    const bool trusted = stage_ == Stage::open && (!adopted_ || greeted_);
    return trusted ? wire::kMaxFrame : wire::kMaxHandshakeFrame;
  };
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t got = ::read(in_.native_handle(), loop_.scratch.data(), loop_.scratch.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      const int error = got < 0 ? errno : write_error_;
      if (error == 0) return fail(LinkEvent::closed, "it closed the connection");
      return fail(peer_loss(error), fmt::format("the connection failed: {}", strerror(error)));
    }
    if (stage_ == Stage::closing) continue;  // only its end is of interest
    if (pulse_) pulse_->heard(boot_time());
    const auto result = splitter_.feed(
        {loop_.scratch.data(), static_cast<size_t>(got)}, limit,
        [this, serial](std::string_view payload) { return take(payload) && serial == serial_; });
    if (serial != serial_) return;
    if (result == Splitter::Result::malformed) {
      return fail(LinkEvent::broken, "it sent something that is not a frame of ours");
    }
    if (static_cast<size_t>(got) < loop_.scratch.size()) break;
  }
  write();
  if (serial == serial_) wait_readable();
}

bool Peer::take(std::string_view payload) {
  switch (stage_) {
    case Stage::hello:
      on_hello(payload);
      break;
    case Stage::proof:
      on_proof(payload);
      break;
    case Stage::challenge:
      on_challenge(payload);
      break;
    case Stage::welcome:
      on_welcome(payload);
      break;
    case Stage::open:
      return take_frame(payload);
    default:
      break;
  }
  return stage_ != Stage::gone && stage_ != Stage::dialing;
}

bool Peer::take_frame(std::string_view payload) {
  const auto frame = decode(payload);
  const auto malformed = [this] {
    fail(LinkEvent::broken, "it sent something that is not a frame of ours");
    return false;
  };
  if (!frame) return malformed();
  if (adopted_ && !greeted_) {
    if (frame->tag != Frame::Tag::greeting) return malformed();
    if (frame->version != wire::kVersion) {
      fail(LinkEvent::wrong_version,
           fmt::format("it speaks version {} of the protocol, we speak {}", frame->version,
                       wire::kVersion));
      return false;
    }
    greeted_ = true;
    return true;
  }
  switch (frame->tag) {
    case Frame::Tag::message: {
      LinkEvent event;
      event.kind = LinkEvent::arrived;
      event.link = id_;
      event.message = {frame->kind, frame->generation, std::string(frame->body)};
      event.clock_ahead = pulse_->clock().ahead;
      loop_.emit(std::move(event));
      return true;
    }
    case Frame::Tag::beat:
      // Its clock is behind ours by what it sees ours ahead.
      if (frame->round_trip >= 0) {
        pulse_->saw_clock(told(frame->round_trip), -told(frame->ahead));
      }
      pulse_->answering(boot_time());
      send({.head = answer(frame->sent, system_clock().count()), .urgent = true});
      return stage_ == Stage::open;
    case Frame::Tag::answer:
      pulse_->answered(told(frame->sent), told(frame->clock), boot_time(), system_clock());
      tell_lease();
      return true;
    case Frame::Tag::greeting:
      return malformed();
  }
  return malformed();
}

void Peer::tell_lease() {
  if (const auto end = pulse_->lease_end()) loop_.leased_until(id_, end);
}

void Peer::send(Outgoing frame) {
  if (stage_ == Stage::gone || stage_ == Stage::closing || write_error_ != 0) return;
  const size_t size = frame.size();
  if (queued_ + size > loop_.options.max_queued_bytes && !frame.urgent) {
    return lose({LinkEvent::overflow,
                 fmt::format("it does not read: {} bytes wait for it", queued_ + size)});
  }
  note_queued(static_cast<int64_t>(size));
  if (stage_ != Stage::open) {
    early_.push_back(std::move(frame));
  } else if (frame.urgent) {
    auto place = queue_.begin() + (offset_ > 0 ? 1 : 0);
    while (place != queue_.end() && place->urgent) ++place;
    queue_.insert(place, std::move(frame));
  } else {
    queue_.push_back(std::move(frame));
  }
}

void Peer::write() {
  if (writing_ || write_error_ != 0 || !in_.is_open()) return;
  const int fd = out_.is_open() ? out_.native_handle() : in_.native_handle();
  size_t written = 0;
  while (!queue_.empty()) {
    if (written >= kWrittenAtOnce) return wait_writable();
    std::array<iovec, kPiecesAtOnce> pieces;
    size_t count = 0, wanted = 0, skip = offset_;
    const auto add = [&](std::string_view bytes) {
      if (skip >= bytes.size()) {
        skip -= bytes.size();
        return;
      }
      bytes.remove_prefix(skip);
      skip = 0;
      pieces[count++] = {const_cast<char*>(bytes.data()), bytes.size()};
      wanted += bytes.size();
    };
    for (const Outgoing& frame : queue_) {
      if (count + 2 > pieces.size() || wanted >= kWrittenAtOnce) break;
      add(frame.head.view());
      add(frame.body);
    }
    const ssize_t sent = ::writev(fd, pieces.data(), static_cast<int>(count));
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return wait_writable();
    if (sent < 0) {
      // What the peer said before it died is still to be read; its end follows.
      write_error_ = errno;
      asio::post(loop_.io, [this, self = shared_from_this(), serial = serial_] {
        if (serial == serial_) read();
        if (serial == serial_) {
          fail(peer_loss(write_error_),
               fmt::format("the connection failed: {}", strerror(write_error_)));
        }
      });
      return;
    }
    written += static_cast<size_t>(sent);
    offset_ += static_cast<size_t>(sent);
    while (!queue_.empty() && offset_ >= queue_.front().size()) {
      offset_ -= queue_.front().size();
      queue_.pop_front();
    }
    note_queued(-sent);
    if (static_cast<size_t>(sent) < wanted) return wait_writable();
  }
  if (stage_ == Stage::closing) half_close();
}

void Peer::close(Nanoseconds linger) {
  if (stage_ == Stage::gone) return;
  const auto self = shared_from_this();
  loop_.peers.erase(id_);
  if (stage_ != Stage::open || write_error_ != 0) return drop();
  stage_ = Stage::closing;
  until_ = boot_time() + linger;
  loop_.add_closing(self);
  write();
  if (queue_.empty()) half_close();
}

// The peer reads our end after our last message, and then ends the connection itself.
void Peer::half_close() {
  if (stage_ != Stage::closing) return;
  error_code ignored;
  if (out_.is_open()) {
    out_.close(ignored);
  } else if (socket_) {
    ::shutdown(in_.native_handle(), SHUT_WR);
  } else {
    drop();
  }
}

void Peer::drop() {
  if (stage_ == Stage::gone) return;
  const auto self = shared_from_this();
  const bool closing = stage_ == Stage::closing;
  stage_ = Stage::gone;
  if (dialer_) dialer_->stop();
  end_stream();
  if (closing) loop_.closing_over();
  loop_.remove_stranger(*this);
  if (id_ != 0) loop_.peers.erase(id_);
  if (pulse_ && pulse_->lease_end()) loop_.leased_until(id_, std::nullopt);
}

void Peer::lose(const Failure& failure) {
  if (stage_ == Stage::gone) return;
  const bool silent = stage_ == Stage::closing || id_ == 0;
  drop();
  if (silent) return;
  LinkEvent event;
  event.kind = LinkEvent::lost;
  event.link = id_;
  event.loss = failure.loss;
  event.reason = failure.reason;
  loop_.emit(std::move(event));
}

// The stream is of no use any more.
void Peer::fail(LinkEvent::Loss loss, std::string reason, bool for_good) {
  const bool again = dialer_ && !for_good;
  if (!again) return lose({loss, std::move(reason)});
  if (loss == LinkEvent::closed) {
    // Perhaps its listener was full, or has just been replaced.
    loss = LinkEvent::broken;
    reason = "it closed the connection during the handshake";
  }
  const auto self = shared_from_this();
  stage_ = Stage::dialing;
  until_ = Nanoseconds::max();
  end_stream();
  dialer_->again({loss, std::move(reason)});
}

void Peer::tick(Nanoseconds now) {
  if (stage_ == Stage::open) {
    if (pulse_->beat_due(now)) {
      pulse_->beat(now);
      const Pulse::Sample& clock = pulse_->clock();
      send({.head = beat(now.count(), clock.round_trip.count(), clock.ahead.count()),
            .urgent = true});
      write();
    }
    if (stage_ == Stage::open && pulse_->dead(now)) {
      lose({LinkEvent::silent,
            fmt::format("nothing heard from it for {:.1f} s",
                        std::chrono::duration<double>(pulse_->silence(now)).count())});
    }
  } else if (now >= until_) {
    if (stage_ == Stage::challenge || stage_ == Stage::welcome) {
      fail(LinkEvent::unreachable, "it accepts the connection and does not answer");
    } else {
      drop();
    }
  }
}

void Peer::overslept(Nanoseconds now) {
  if (pulse_) pulse_->overslept(now);
}

Nanoseconds Peer::next_change() const {
  return stage_ == Stage::open ? pulse_->next_change() : until_;
}

}  // namespace mtl::link
