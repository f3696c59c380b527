// What people read when a host cannot be used. One function for each way to fail, for libssh and
// OpenSSH alike.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "common/error.h"
#include "launcher/ssh/config.h"
#include "launcher/ssh/known_hosts.h"

namespace mtl::ssh {

Diagnostic unknown_host(const HostSettings& host, const std::string& reason);
Diagnostic refused(const HostSettings& host, const std::string& address, const std::string& reason);
// `greeted`: it speaks SSH; `dropped`: it closed the connection without a word.
Diagnostic greeting_failed(const HostSettings& host, const std::string& reason, bool greeted,
                           bool dropped);
Diagnostic timed_out(const HostSettings& host, int64_t waited_ms, const std::string& waiting_for,
                     const std::string& noise);
Diagnostic unusable_algorithms(const HostSettings& host, const std::string& list);
Diagnostic proxy_failed(const HostSettings& host, const std::string& proxy,
                        const std::string& reason);
// The jump host `hop` could not be reached, for `cause`.
Diagnostic jump_failed(const HostSettings& host, const HostSettings& hop, const Diagnostic& cause);

Diagnostic host_key_unreadable(const HostSettings& host, const std::string& reason);
// `problem`: the key would have been taken, but known_hosts could not be written.
Diagnostic host_key_unknown(const HostSettings& host, const HostKey& key,
                            const std::string& fingerprint, const KeyCheck& check,
                            const std::string& problem);
Diagnostic host_key_changed(const HostSettings& host, const HostKey& key,
                            const std::string& fingerprint, const KeyCheck& check);

struct AuthStory {
  int methods = 0;  // SSH_AUTH_METHOD_*, that the server would take
  std::vector<std::string> tried, locked, unreadable;
  std::string agent_problem;
  std::string reason;  // why it ended before all keys were tried
};
Diagnostic not_authenticated(const HostSettings& host, const AuthStory& story);

// The command ended, or could not be asked for, before its magic line.
struct StartFailure {
  std::optional<int> exit_code = {};
  std::string signal = {};
  std::string lost = {};                // the connection was, for this reason
  std::string noise = {}, errors = {};  // what came on stdout and stderr
};
Diagnostic command_failed(const HostSettings& host, const std::string& command,
                          const StartFailure& failure);

// Notes with the lines of `text` under a title; nothing for an empty text.
void add_lines(std::vector<std::string>& notes, const std::string& title, const std::string& text);
// Of what somebody printed.
inline constexpr size_t kShownLines = 20;

// --- small things of the connections

bool numeric_address(const std::string& text, int family, sockaddr_storage& address,
                     socklen_t& size);
void make_nonblocking(int fd);
// %h, %p, %r, %n of a ProxyCommand; false if the host's name could do more than name a host.
bool expand_proxy_command(const HostSettings& host, std::string& command);

}  // namespace mtl::ssh
