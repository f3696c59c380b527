// One channel of a connection, and the pump between it and a socket. Nothing piles up: what the
// reader of the socket does not take stays in 64 KiB here, then in the channel's window; from the
// socket only as much is taken as the far side has room for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <libssh/callbacks.h>
#include <libssh/libssh.h>

#include "common/files.h"
#include "launcher/ssh/loop.h"

namespace mtl::ssh {

class Connection;

class ChannelStream {
 public:
  // `changed` is called from the loop when the socket's side made progress; what the connection
  // brings, its user passes on by update().
  ChannelStream(Loop& loop, Connection& connection, std::function<void()> changed);
  ~ChannelStream();
  ChannelStream(const ChannelStream&) = delete;
  ChannelStream& operator=(const ChannelStream&) = delete;

  ssh_channel channel() { return channel_; }

  // Before attach(): what comes on stdout and stderr. They run inside libssh: they only keep it.
  std::function<void(std::string_view)> on_stdout, on_stderr;

  // `ours` is one end of a socket pair; `first` goes into it before everything else.
  void attach(Fd ours, std::string_view first);
  // Moves what can be moved.
  void update();
  // Whether update() may find something to do after the connection brought bytes or took some.
  bool wants_update() const { return dirty_ || waits_for_connection_ || watch_ == 0; }
  // More has come than the reader takes.
  bool congested() const { return out_.size() >= kHighWater; }
  // The far side closed the channel and its last byte is in the socket.
  bool finished() const { return closed_ && out_.empty() && left_ == 0; }
  bool remote_closed() const { return closed_; }
  // The connection is gone: nothing more will come.
  void connection_lost();
  // Closes the channel: the far side reads the end of its stdin.
  void close();

  std::optional<int> exit_code;
  std::string exit_signal;

 private:
  static constexpr size_t kHighWater = 64 * 1024;

  static int data(ssh_session, ssh_channel, void* bytes, uint32_t size, int is_stderr, void* self);
  static void eof(ssh_session, ssh_channel, void* self);
  static void closed(ssh_session, ssh_channel, void* self);
  static void status(ssh_session, ssh_channel, int code, void* self);
  static void signalled(ssh_session, ssh_channel, const char* signal, int core, const char* message,
                        const char* language, void* self);
  size_t take(std::string_view bytes);
  void flush_out();
  void drain_left();
  void send_in();
  void rearm();

  Loop& loop_;
  Connection& connection_;
  std::function<void()> changed_;
  ssh_channel channel_;
  ssh_channel_callbacks_struct callbacks_{};
  Fd socket_;
  uint64_t watch_ = 0;
  std::string out_;  // from the channel, for the socket
  size_t left_ = 0;  // bytes that still lie in libssh
  std::string in_;   // from the socket, for the channel
  bool eof_ = false, closed_ = false;
  bool reader_gone_ = false;  // nobody reads the socket any more
  bool in_over_ = false;      // nothing more comes from the socket
  bool draining_ = false, dirty_ = false, waits_for_connection_ = false;
  bool eof_sent_ = false, end_passed_on_ = false;
};

}  // namespace mtl::ssh
