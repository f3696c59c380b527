// Many hosts by ssh at once: connects, checks the host's key, authenticates, starts one command on
// each, and gives its owner a socket per host that is the command's stdin and stdout. One thread
// with one loop for all hosts; libssh does the protocol. Or, with `ssh_command`, one OpenSSH client
// process per host, for settings that libssh does not know.
//
// The far side's death is seen as the end of the socket; our death closes the channels, so that the
// command reads the end of its stdin, which is how the remote tree learns to die.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "launcher/hosts.h"

namespace mtl {

struct FleetOptions {
  std::vector<Host> hosts;
  // Run by the user's login shell on the far side (`exec` in front saves a process). Nothing secret
  // may stand in it.
  std::string command;
  // What the command writes to stdout first, a line by itself; what comes before it is noise of the
  // shell's start-up files and is shown only if the line never comes.
  std::string magic;
  std::string config_file;  // "" = ~/.ssh/config; "none" = none
  std::string
      ssh_command;  // "" = libssh; else OpenSSH or a wrapper: "ssh -o ..." (split by a shell)
  std::chrono::milliseconds connect_timeout{10'000};  // to the magic line, of each host
  int handshakes = 32;                                // at most so many hosts at once
};

struct FleetEvent {
  enum Kind {
    started,  // the magic line has come: `stream` is the command's stdin and stdout from there on
    failed,   // it will not start; `error` says why and what to do
    ended,    // the command ended after it had started; exit code or signal, if they arrived
  };
  Kind kind = started;
  size_t host = 0;  // index in FleetOptions::hosts
  Fd stream;        // a connected AF_UNIX stream socket, non-blocking; its halves close separately
  std::optional<Diagnostic> error;
  std::optional<int> exit_code;
  std::string signal;       // "SEGV"; empty = none
  std::string stderr_tail;  // ended: the last lines of the far side's stderr (failed: in its notes)
};

class SshFleet {
 public:
  virtual ~SshFleet() = default;  // closes all channels and connections
  virtual int fd() const = 0;     // readable while events wait
  virtual std::optional<FleetEvent> next() = 0;
  // Warnings for people: settings in ~/.ssh/config that libssh does not know and that matter here.
  virtual std::vector<Diagnostic> warnings() const = 0;
};

// Codes of `failed`: ssh.unknown_host (the name does not resolve), ssh.connect (refused, no route),
// ssh.timeout (no answer), ssh.host_key_unknown, ssh.host_key_changed, ssh.auth (with the methods
// that the server would take, e.g. password only), ssh.command (no magic line: the program is
// missing there, its exit code and the noise), ssh.config, ssh.proxy.
// Throws Error only for what concerns all hosts (a config file that cannot be read).
std::unique_ptr<SshFleet> start_fleet(const FleetOptions& options);

}  // namespace mtl
