#include "launcher/ssh/messages.h"

#include <fcntl.h>
#include <netdb.h>

#include <fmt/format.h>
#include <libssh/libssh.h>

#include "launcher/ssh/start_up.h"

namespace mtl::ssh {

namespace {

std::string ssh_command(const HostSettings& host) {
  const std::string port = host.port == 22 ? "" : fmt::format("-p {} ", host.port);
  return fmt::format("{}{}@{}", port, host.user, host.host_name);
}

std::string methods_text(int methods) {
  std::string text;
  const auto add = [&](int bit, const char* name) {
    if ((methods & bit) == 0) return;
    if (!text.empty()) text += ", ";
    text += name;
  };
  add(SSH_AUTH_METHOD_PUBLICKEY, "publickey");
  add(SSH_AUTH_METHOD_PASSWORD, "password");
  add(SSH_AUTH_METHOD_INTERACTIVE, "keyboard-interactive");
  add(SSH_AUTH_METHOD_HOSTBASED, "hostbased");
  add(SSH_AUTH_METHOD_GSSAPI_MIC, "gssapi-with-mic");
  return text.empty() ? "nothing that is known here" : text;
}

std::string list(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

}  // namespace

void add_lines(std::vector<std::string>& notes, const std::string& title, const std::string& text) {
  if (text.empty()) return;
  std::string note = title;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    note += "\n    " + text.substr(at, end - at);
    at = end + 1;
  }
  notes.push_back(note);
}

Diagnostic unknown_host(const HostSettings& host, const std::string& reason) {
  return {.code = "ssh.unknown_host",
          .what = host.name == host.host_name
                      ? fmt::format("{}: no such host: {}", host.name, reason)
                      : fmt::format("{}: no such host '{}': {}", host.name, host.host_name, reason),
          .help = "correct the name, or give it a HostName in ~/.ssh/config"};
}

Diagnostic refused(const HostSettings& host, const std::string& address,
                   const std::string& reason) {
  return {.code = "ssh.connect",
          .what = address.empty()
                      ? fmt::format("{}: {}", host.label(), reason)
                      : fmt::format("{}: no connection to {}: {}", host.name, address, reason),
          .help = "see that the machine is up and that sshd listens on that port"};
}

Diagnostic greeting_failed(const HostSettings& host, const std::string& reason, bool greeted,
                           bool dropped) {
  Diagnostic error{.code = "ssh.connect", .what = {}};
  if (dropped) {
    error.what =
        fmt::format("{}: the server closes the connection before its greeting", host.label());
    error.help =
        "it may have too many logins at once (MaxStartups of its sshd_config), or refuse this "
        "machine";
  } else if (!greeted) {
    error.what = fmt::format("{}: what listens there is no SSH server", host.label());
    error.help = "correct the port";
  } else {
    error.what = fmt::format("{}: no agreement with the server", host.label());
    error.help = "if OpenSSH reaches it, use that: --ssh_command ssh";
  }
  error.notes.push_back(reason);
  return error;
}

Diagnostic timed_out(const HostSettings& host, int64_t waited_ms, const std::string& waiting_for,
                     const std::string& noise) {
  Diagnostic error{.code = "ssh.timeout",
                   .what = fmt::format("{}: no answer within {:.3g} s", host.label(),
                                       static_cast<double>(waited_ms) / 1000),
                   .notes = {"waiting for " + waiting_for},
                   .help = fmt::format("try: ssh {}", ssh_command(host))};
  add_lines(error.notes, "it printed:", last_lines(noise, kShownLines));
  return error;
}

Diagnostic unusable_algorithms(const HostSettings& host, const std::string& algorithms) {
  return {.code = "ssh.config",
          .what = fmt::format("{}: none of these algorithms is known here: {}", host.label(),
                              algorithms),
          .help = "change the list in the ssh configuration, or use OpenSSH: --ssh_command ssh"};
}

Diagnostic proxy_failed(const HostSettings& host, const std::string& proxy,
                        const std::string& reason) {
  return {.code = "ssh.proxy",
          .what = fmt::format("{}: cannot be reached through '{}'", host.label(), proxy),
          .notes = {reason},
          .help = "try: ssh " + ssh_command(host)};
}

Diagnostic jump_failed(const HostSettings& host, const HostSettings& hop, const Diagnostic& cause) {
  Diagnostic error{.code = "ssh.proxy",
                   .what = fmt::format("{}: cannot be reached through the jump host {}",
                                       host.label(), hop.label()),
                   .notes = {fmt::format("[{}] {}", cause.code, cause.what)},
                   .help = cause.help};
  for (const std::string& note : cause.notes) error.notes.push_back(note);
  return error;
}

Diagnostic host_key_unreadable(const HostSettings& host, const std::string& reason) {
  return {.code = "ssh.host_key_unknown",
          .what = fmt::format("{}: the server shows no host key", host.label()),
          .notes = {reason}};
}

Diagnostic host_key_unknown(const HostSettings& host, const HostKey& key,
                            const std::string& fingerprint, const KeyCheck& check,
                            const std::string& problem) {
  const std::string file = host.known_hosts.empty() ? "~/.ssh/known_hosts" : host.known_hosts[0];
  Diagnostic error{.code = "ssh.host_key_unknown",
                   .what = fmt::format("{}: its host key is not known", host.label()),
                   .notes = {fmt::format("{} {}", key.type, fingerprint)}};
  if (!problem.empty()) {
    error.notes.push_back(fmt::format("it would be accepted, but cannot be added: {}", problem));
  }
  if (check.authority) {
    error.notes.push_back(
        "known_hosts has a certificate authority for it; certificates work with OpenSSH only "
        "(--ssh_command ssh)");
  }
  std::string type = key.type.starts_with("ssh-") ? key.type.substr(4) : key.type;
  if (type.starts_with("ecdsa")) type = "ecdsa";
  error.help =
      fmt::format("if that fingerprint is the machine's (ask its owner): {} >> {}",
                  !host.jumps.empty() || !host.proxy_command.empty() || !host.key_alias.empty()
                      ? fmt::format("echo '{} {} {}'", known_name(host), key.type, key.base64)
                      : fmt::format("ssh-keyscan -t {} -p {} {}", type, host.port, host.host_name),
                  file);
  return error;
}

Diagnostic host_key_changed(const HostSettings& host, const HostKey& key,
                            const std::string& fingerprint, const KeyCheck& check) {
  Diagnostic error{.code = "ssh.host_key_changed", .what = {}, .place = check.place};
  error.notes = {fmt::format("it shows {} {}", key.type, fingerprint)};
  if (check.result == KeyCheck::revoked) {
    error.what = fmt::format("{}: its host key is revoked", host.label());
    error.help = "the machine needs a new host key: ask its owner";
    return error;
  }
  error.what = fmt::format("{}: its host key is not the known one", host.label());
  error.notes.push_back(
      check.known_type == key.type
          ? "somebody may be in between, or the machine was installed anew"
          : fmt::format("known is one of type {}, which it does not show", check.known_type));
  error.help =
      fmt::format("if the machine's owner confirms the new key: ssh-keygen -f '{}' -R '{}'",
                  check.place.file, known_name(host));
  return error;
}

Diagnostic not_authenticated(const HostSettings& host, const AuthStory& story) {
  Diagnostic error{.code = "ssh.auth",
                   .what = fmt::format("{}: {} is not let in", host.label(), host.user)};
  const bool keys = (story.methods & SSH_AUTH_METHOD_PUBLICKEY) != 0;
  if (!story.reason.empty()) error.notes.push_back(story.reason);
  error.notes.push_back("the server takes: " + methods_text(story.methods));
  if (!story.tried.empty()) error.notes.push_back("refused: " + list(story.tried));
  if (!story.locked.empty()) {
    error.notes.push_back("not tried, as they want a passphrase: " + list(story.locked));
  }
  if (!story.unreadable.empty()) {
    error.notes.push_back("not readable as keys: " + list(story.unreadable));
  }
  if (!story.agent_problem.empty()) {
    error.notes.push_back(fmt::format("the ssh agent at {}: {}", host.agent, story.agent_problem));
  } else if (keys && host.agent.empty()) {
    error.notes.push_back("no ssh agent (SSH_AUTH_SOCK is not set)");
  }
  if (story.reason.find("Too many authentication failures") != std::string::npos) {
    error.help =
        "the server takes few keys: name the right one in ~/.ssh/config (IdentityFile, and "
        "IdentitiesOnly yes)";
  } else if (!keys) {
    error.help =
        "a launcher cannot type passwords: allow keys there, or reach it by OpenSSH "
        "(--ssh_command ssh)";
    if ((story.methods & (SSH_AUTH_METHOD_PASSWORD | SSH_AUTH_METHOD_INTERACTIVE)) != 0) {
      error.help = fmt::format(
          "a launcher cannot type passwords: allow keys in its sshd_config (PubkeyAuthentication), "
          "then: ssh-copy-id {}",
          ssh_command(host));
    }
  } else if (!story.locked.empty()) {
    error.help =
        "start an agent and give it the key: eval $(ssh-agent); ssh-add " + story.locked.front();
  } else if ((story.methods & (SSH_AUTH_METHOD_PASSWORD | SSH_AUTH_METHOD_INTERACTIVE)) != 0) {
    error.help = "put your key there: ssh-copy-id " + ssh_command(host);
  } else {
    error.help =
        fmt::format("add your public key to ~/.ssh/authorized_keys of {} there", host.user);
  }
  return error;
}

Diagnostic command_failed(const HostSettings& host, const std::string& command,
                          const StartFailure& failure) {
  Diagnostic error{.code = "ssh.command", .what = {}};
  // The shells' codes for a program that is missing or cannot be executed; csh has only 1 and
  // words.
  const bool of_csh = failure.exit_code == 1;
  const bool missing =
      failure.exit_code == 127 || (of_csh && failure.errors.ends_with(": Command not found."));
  const bool not_executable =
      failure.exit_code == 126 || (of_csh && failure.errors.ends_with(": Permission denied."));
  if (!failure.signal.empty()) {
    error.what = fmt::format("{}: the command was killed by SIG{} before it said that it runs",
                             host.label(), failure.signal);
  } else if (missing) {
    error.what = fmt::format("{}: the program is not there", host.label());
  } else if (not_executable) {
    error.what = fmt::format("{}: the program cannot be executed there", host.label());
  } else if (failure.exit_code) {
    error.what = fmt::format("{}: the command ended with {} before it said that it runs",
                             host.label(), *failure.exit_code);
  } else {
    error.what =
        fmt::format("{}: the connection ended before the command said that it runs", host.label());
  }
  if (!failure.lost.empty()) error.notes.push_back(failure.lost);
  error.notes.push_back("command: " + command);
  add_lines(error.notes, "stderr:", last_lines(failure.errors, kShownLines));
  add_lines(error.notes, "stdout:", last_lines(failure.noise, kShownLines));
  error.help = missing || not_executable
                   ? "install it there at the same path, or name the path that it has there"
                   : fmt::format("try: ssh {} COMMAND", ssh_command(host));
  return error;
}

bool numeric_address(const std::string& text, int family, sockaddr_storage& address,
                     socklen_t& size) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(text.c_str(), nullptr, &hints, &found) != 0) return false;
  memcpy(&address, found->ai_addr, found->ai_addrlen);
  size = found->ai_addrlen;
  freeaddrinfo(found);
  return true;
}

void make_nonblocking(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool expand_proxy_command(const HostSettings& host, std::string& command) {
  const auto harmless = [](const std::string& text) {
    return !text.empty() && text.front() != '-' &&
           text.find_first_of("'`\"$\\;&<>|(){} \t\r\n*?!#~") == std::string::npos;
  };
  if (!harmless(host.host_name) || !harmless(host.name) || !harmless(host.user)) return false;
  command.clear();
  for (size_t i = 0; i < host.proxy_command.size(); ++i) {
    const char c = host.proxy_command[i];
    if (c != '%' || i + 1 == host.proxy_command.size()) {
      command += c;
      continue;
    }
    switch (host.proxy_command[++i]) {
      case 'h':
        command += host.host_name;
        break;
      case 'n':
        command += host.name;
        break;
      case 'p':
        command += std::to_string(host.port);
        break;
      case 'r':
        command += host.user;
        break;
      case '%':
        command += '%';
        break;
      default:
        command += fmt::format("%{}", host.proxy_command[i]);
    }
  }
  return true;
}

}  // namespace mtl::ssh
