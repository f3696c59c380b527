// Real sshd on loopback ports, for the user who runs the tests, root or not: own keys, own
// known_hosts, own HOME. Every process is a child that dies with the test.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/files.h"
#include "launcher/ssh/fleet.h"
#include "support/processes.h"
#include "support/temp_dir.h"

namespace mtl::test {

// Runs a program to its end and gives its exit code; `output`: its stdout and stderr.
int run_program(const std::vector<std::string>& argv, std::string* output = nullptr);

// A child process, killed at the end.
class Process {
 public:
  Process() = default;
  Process(const std::vector<std::string>& argv, const std::filesystem::path& log);
  Process(Process&& other) noexcept : pid_(other.pid_) { other.pid_ = -1; }
  Process& operator=(Process&& other) noexcept;
  ~Process() { stop(); }
  pid_t pid() const { return pid_; }
  void stop();

 private:
  pid_t pid_ = -1;
};

struct Sshd {
  std::string name;
  int port = 0;
  std::string host_key;  // path; with ".pub" the public one
  Process process;
};

// A folder with a user's key, a configuration and the servers that know that key.
class Site {
 public:
  Site();
  ~Site();
  // `settings`: further lines of its sshd_config, which go before ours. Also writes "Host NAME"
  // into the configuration and the key into known_hosts.
  Sshd& sshd(const std::string& name, const std::string& settings = "", bool known = true);
  const Sshd& server(const std::string& name) const;
  // Lines for the configuration; before() counts more than what sshd() wrote.
  void before(const std::string& lines);
  void after(const std::string& lines);
  void know(const Sshd& sshd, const std::string& marker = "");
  std::string known_hosts() const { return (dir_ / "known_hosts").string(); }
  std::string key() const { return (dir_ / "id").string(); }
  std::string config() const { return (dir_ / "config").string(); }
  std::filesystem::path operator/(const std::string& name) const { return dir_ / name; }
  FleetOptions options(const std::vector<std::string>& hosts, const std::string& script) const;

 private:
  TempDir dir_;
  std::vector<std::unique_ptr<Sshd>> servers_;
};

inline const char* const kMagic = "mtl-test-magic 1";

// The next event, or nothing after too long a wait.
std::optional<FleetEvent> next_event(SshFleet& fleet);
// As many events as there are hosts, in the order of the hosts.
std::vector<FleetEvent> first_events(SshFleet& fleet, size_t hosts);
// Everything until the end of the stream or `bytes`.
std::string read_stream(const Fd& stream, size_t bytes = SIZE_MAX);
void write_stream(const Fd& stream, std::string_view bytes);
std::string new_key(const std::filesystem::path& path, const std::string& type = "ed25519",
                    const std::string& passphrase = "");
int free_port();

}  // namespace mtl::test
