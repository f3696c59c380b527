// What OpenSSH says, put into our codes. Its words have been stable for decades; what is not found
// here is shown as it is.
#include <algorithm>

#include <fmt/format.h>

#include "launcher/ssh/command_fleet.h"
#include "launcher/ssh/messages.h"
#include "launcher/ssh/start_up.h"

namespace mtl::ssh {

namespace {

bool says(const std::string& text, std::initializer_list<const char*> any) {
  return std::any_of(any.begin(), any.end(),
                     [&](const char* one) { return text.find(one) != std::string::npos; });
}

// "password,keyboard-interactive" of "Permission denied (password,keyboard-interactive)."
std::string methods_of(const std::string& text) {
  const size_t start = text.find("Permission denied (");
  if (start == std::string::npos) return {};
  const size_t open = text.find('(', start) + 1;
  return text.substr(open, std::min(text.find(')', open), text.size()) - open);
}

}  // namespace

Diagnostic classify(const Host& host, const FleetOptions& options, int exit_code,
                    const std::string& noise, const std::string& errors) {
  HostSettings settings;  // what messages need of it
  settings.name = settings.host_name = host.name;
  settings.user = host.user;
  Diagnostic error{.code = "ssh.command", .what = {}};
  const std::string target =
      host.user.empty() ? host.name : fmt::format("{}@{}", host.user, host.name);
  if (errors.starts_with("mtl-ssh: ")) {  // the shell that starts it
    error.code = "ssh.config";
    error.what = fmt::format("'{}' cannot be started", options.ssh_command);
    error.help = "install OpenSSH's client, or correct ssh_command";
  } else if (exit_code != 255) {
    return command_failed(settings, options.command,
                          {.exit_code = exit_code, .noise = noise, .errors = errors});
  } else if (says(errors, {"IDENTIFICATION HAS CHANGED", "REVOKED HOST KEY", "is revoked"})) {
    error.code = "ssh.host_key_changed";
    error.what = fmt::format("{}: its host key is not the known one", host.name);
    error.help = "if the machine's owner confirms the new key, remove the old one as ssh says";
  } else if (says(errors, {"Host key verification failed"})) {
    error.code = "ssh.host_key_unknown";
    error.what = fmt::format("{}: its host key is not known", host.name);
    error.help = fmt::format("see its fingerprint and accept it, once: ssh {} true", target);
  } else if (says(errors, {"Permission denied (", "Too many authentication failures"})) {
    error.code = "ssh.auth";
    const std::string methods = methods_of(errors);
    error.what = fmt::format("{}: not let in", host.name);
    if (!methods.empty()) error.notes.push_back("the server takes: " + methods);
    error.help = methods.find("publickey") == std::string::npos && !methods.empty()
                     ? fmt::format(
                           "a launcher cannot type passwords: allow keys in its "
                           "sshd_config, then: ssh-copy-id {}",
                           target)
                     : fmt::format(
                           "put your key there (ssh-copy-id {}); give an agent the keys "
                           "that have a passphrase (ssh-add)",
                           target);
  } else if (says(errors, {"stdio forwarding failed", "UNKNOWN port 65535", "open failed"})) {
    error.code = "ssh.proxy";
    error.what = fmt::format("{}: cannot be reached through its proxy or jump host", host.name);
    error.help = fmt::format("try: ssh {}", target);
  } else if (says(errors, {"Could not resolve hostname"})) {
    error.code = "ssh.unknown_host";
    error.what = fmt::format("{}: no such host", host.name);
    error.help = "correct the name, or give it a HostName in ~/.ssh/config";
  } else if (says(errors, {"timed out"})) {
    error.code = "ssh.timeout";
    error.what = fmt::format("{}: no answer", host.name);
    error.help = fmt::format("try: ssh {}", target);
  } else if (says(errors, {"Bad configuration option", "bad configuration options",
                           "Can't open user config file", "no argument after keyword"})) {
    error.code = "ssh.config";
    error.what = fmt::format("{}: ssh does not take its configuration", host.name);
  } else if (says(errors, {"Connection refused", "No route to host", "Network is unreachable",
                           "kex_exchange_identification", "Connection reset", "Connection closed",
                           "no matching"})) {
    error.code = "ssh.connect";
    error.what = fmt::format("{}: no connection", host.name);
    error.help = "see that the machine is up and that sshd listens on that port";
  } else {
    return command_failed(settings, options.command,
                          {.exit_code = exit_code, .noise = noise, .errors = errors});
  }
  add_lines(error.notes, "ssh says:", last_lines(errors, kShownLines));
  add_lines(error.notes, "stdout:", last_lines(noise, kShownLines));
  return error;
}

}  // namespace mtl::ssh
