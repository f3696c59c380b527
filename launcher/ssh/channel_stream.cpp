#include "launcher/ssh/channel_stream.h"

#include <algorithm>
#include <cerrno>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "launcher/ssh/connection.h"

namespace mtl::ssh {

namespace {

constexpr size_t kPiece = 32 * 1024;  // the largest packet of a channel

}  // namespace

ChannelStream::ChannelStream(Loop& loop, Connection& connection, std::function<void()> changed)
    : loop_(loop),
      connection_(connection),
      changed_(std::move(changed)),
      channel_(ssh_channel_new(connection.session())) {
  if (channel_ == nullptr) throw std::bad_alloc();
  callbacks_.userdata = this;
  callbacks_.channel_data_function = &data;
  callbacks_.channel_eof_function = &eof;
  callbacks_.channel_close_function = &closed;
  callbacks_.channel_exit_status_function = &status;
  callbacks_.channel_exit_signal_function = &signalled;
  ssh_callbacks_init(&callbacks_);
  ssh_set_channel_callbacks(channel_, &callbacks_);
}

ChannelStream::~ChannelStream() {
  if (watch_ != 0) loop_.unwatch(watch_);
  if (channel_ != nullptr) {
    ssh_remove_channel_callbacks(channel_, &callbacks_);
    ssh_channel_free(channel_);  // closes it, too
  }
}

int ChannelStream::data(ssh_session, ssh_channel, void* bytes, uint32_t size, int is_stderr,
                        void* self) {
  auto& stream = *static_cast<ChannelStream*>(self);
  const std::string_view text(static_cast<const char*>(bytes), size);
  if (is_stderr != 0) {
    if (stream.on_stderr) stream.on_stderr(text);
    return static_cast<int>(size);
  }
  const size_t taken = stream.take(text);
  stream.left_ = size - taken;
  stream.dirty_ = stream.dirty_ || stream.left_ > 0;
  return static_cast<int>(taken);
}

void ChannelStream::eof(ssh_session, ssh_channel, void* self) {
  auto& stream = *static_cast<ChannelStream*>(self);
  stream.eof_ = stream.dirty_ = true;
}

void ChannelStream::closed(ssh_session, ssh_channel, void* self) {
  auto& stream = *static_cast<ChannelStream*>(self);
  stream.eof_ = stream.closed_ = stream.dirty_ = true;
}

void ChannelStream::status(ssh_session, ssh_channel, int code, void* self) {
  static_cast<ChannelStream*>(self)->exit_code = code;
}

void ChannelStream::signalled(ssh_session, ssh_channel, const char* signal, int, const char*,
                              const char*, void* self) {
  static_cast<ChannelStream*>(self)->exit_signal = signal != nullptr ? signal : "?";
}

size_t ChannelStream::take(std::string_view bytes) {
  if (draining_) return 0;
  if (!socket_) {
    if (!on_stdout) return 0;  // it waits in the channel for attach()
    on_stdout(bytes);
    return bytes.size();
  }
  if (reader_gone_) return bytes.size();
  const size_t all = bytes.size();
  if (out_.empty()) {
    const ssize_t sent =
        send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      reader_gone_ = true;
      return all;
    }
  }
  if (congested()) return all - bytes.size();
  out_.append(bytes);
  // Else nobody waits for room in the socket: if nothing comes behind them, they stay here.
  dirty_ = dirty_ || !out_.empty();
  return all;
}

void ChannelStream::flush_out() {
  size_t sent_all = 0;
  while (sent_all < out_.size() && !reader_gone_) {
    const ssize_t sent = send(socket_.get(), out_.data() + sent_all, out_.size() - sent_all,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_all += static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      reader_gone_ = true;
    }
  }
  if (reader_gone_ || sent_all == out_.size()) {
    out_ = {};
  } else {
    out_.erase(0, sent_all);
  }
}

// What libssh still has is taken in one go and only into an empty buffer: each read widens the
// channel's window again, and small ones would let it pile up.
void ChannelStream::drain_left() {
  if (left_ == 0 || !out_.empty() || channel_ == nullptr) return;
  const size_t take_now = left_;
  left_ = 0;
  draining_ = true;
  std::string bytes(take_now, '\0');
  size_t got_all = 0;
  while (got_all < take_now) {
    const int got = ssh_channel_read_nonblocking(channel_, bytes.data() + got_all,
                                                 static_cast<uint32_t>(take_now - got_all), 0);
    if (got <= 0) break;
    got_all += static_cast<size_t>(got);
  }
  draining_ = false;
  bytes.resize(got_all);
  out_ = std::move(bytes);
  flush_out();
}

void ChannelStream::send_in() {
  if (eof_sent_ || closed_ || channel_ == nullptr || !ssh_channel_is_open(channel_)) return;
  const ssh_session session = connection_.session();
  char piece[kPiece];
  while ((ssh_get_poll_flags(session) & SSH_WRITE_PENDING) == 0) {
    if (in_.empty() && !in_over_) {
      const size_t window = std::min<size_t>(ssh_channel_window_size(channel_), sizeof piece);
      if (window == 0) return;
      const ssize_t got = recv(socket_.get(), piece, window, MSG_DONTWAIT);
      if (got > 0) {
        const int wrote = ssh_channel_write(channel_, piece, static_cast<uint32_t>(got));
        if (wrote < 0) return;  // the connection is broken, and its user is told so
        in_.assign(piece + wrote, static_cast<size_t>(got - wrote));
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      in_over_ = true;
    }
    if (!in_.empty()) {
      const int wrote = ssh_channel_write(channel_, in_.data(), static_cast<uint32_t>(in_.size()));
      if (wrote <= 0) return;
      in_.erase(0, static_cast<size_t>(wrote));
      continue;
    }
    ssh_channel_send_eof(channel_);
    eof_sent_ = true;
    return;
  }
}

void ChannelStream::attach(Fd ours, std::string_view first) {
  socket_ = std::move(ours);
  out_.assign(first);
  watch_ = loop_.watch(socket_.get(), 0, [this](uint32_t events) {
    dirty_ = true;
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
      reader_gone_ = true;
      // With nobody at the other end it would be reported for ever; reads still work.
      loop_.unwatch(watch_);
      watch_ = 0;
    }
    changed_();
  });
  update();
}

void ChannelStream::update() {
  if (!socket_) return;
  dirty_ = false;
  flush_out();
  drain_left();
  send_in();
  if (eof_ && out_.empty() && left_ == 0 && !end_passed_on_) {
    end_passed_on_ = true;
    shutdown(socket_.get(), SHUT_WR);
  }
  rearm();
}

void ChannelStream::rearm() {
  const bool sending = !eof_sent_ && !closed_ && channel_ != nullptr;
  const bool room = sending && in_.empty() && !in_over_ && ssh_channel_window_size(channel_) > 0 &&
                    (ssh_get_poll_flags(connection_.session()) & SSH_WRITE_PENDING) == 0;
  waits_for_connection_ = sending && !room;
  if (watch_ == 0) return;
  loop_.change(watch_, (room ? unsigned{EPOLLIN} : 0U) | (out_.empty() ? 0U : unsigned{EPOLLOUT}));
}

void ChannelStream::connection_lost() {
  drain_left();
  left_ = 0;
  eof_ = closed_ = true;
  update();
}

void ChannelStream::close() {
  if (channel_ != nullptr && ssh_channel_is_open(channel_)) ssh_channel_close(channel_);
}

}  // namespace mtl::ssh
