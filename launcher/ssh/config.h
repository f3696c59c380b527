// ~/.ssh/config as ssh_config(5) has it: read once, then asked for each host. libssh reads it too,
// but leaves out settings without a word, and tells neither the list of keys nor the jumps.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "launcher/hosts.h"

namespace mtl::ssh {

enum class KeyPolicy { strict, accept_new };  // of unknown host keys; changed ones never pass

// Everything about reaching one host.
struct HostSettings {
  std::string name;       // as given
  std::string host_name;  // to connect to
  std::string user;
  int port = 22;
  int address_family = 0;  // AF_UNSPEC, AF_INET, AF_INET6
  std::string bind_address;
  int connect_timeout_s = 0;       // 0 = not said
  std::vector<std::string> jumps;  // ProxyJump, nearest first: "user@host:port"
  std::string proxy_command;

  std::vector<std::string> identity_files;
  std::vector<std::string> certificate_files;
  bool identities_given = false;  // by the config, not the defaults
  bool identities_only = false;
  std::string agent;  // path of its socket; "" = none

  std::string key_alias;                 // the name in known_hosts, if not that of the host
  std::vector<std::string> known_hosts;  // the user's
  std::vector<std::string> global_known_hosts;
  KeyPolicy key_policy = KeyPolicy::strict;
  bool hash_known_hosts = false;

  std::string ciphers, macs, kex, host_key_algorithms, pubkey_algorithms;  // "" = libssh's
  bool compression = false;

  // "m1", or "m1 (user@10.0.0.1:2222)" where the config makes it something else.
  std::string label() const;
  // Two hosts of the same key can share a connection (as a jump host).
  std::string key() const;
};

class Config {
 public:
  // "" = ~/.ssh/config and /etc/ssh/ssh_config where they exist; "none" = nothing; else this file.
  // Throws Error (ssh.config) where a file is not there, cannot be read or is no configuration.
  explicit Config(const std::string& file);
  // Adds to warnings() what is set for this host and not honoured.
  HostSettings of(const Host& host);
  const std::vector<Diagnostic>& warnings() const { return warnings_; }

 private:
  struct Line {
    std::string key;  // lower case
    std::vector<std::string> arguments;
    std::string raw;  // all arguments as they stand
    Place place;
    int block;  // index in blocks_; every line belongs to the last Host or Match before it
  };
  struct Block {
    bool match = false;  // Match, not Host
    std::vector<std::string> arguments;
    Place place;
    int outer;  // the block that the Include stood in; -1 = none
  };
  struct Asked;  // the values of one host while they are collected

  void read(const std::string& path, bool required, int block, int depth);
  bool applies(int block, const Host& host, const Asked& asked, std::vector<int8_t>& known);
  bool matches(const Block& block, const Host& host, const Asked& asked);
  void take(const Line& line, Asked& asked);
  void warn(const Line& line, const std::string& why);

  bool user_config_ = false;  // whose relative includes are looked for in ~/.ssh, as in ssh -F
  std::vector<Line> lines_;
  std::vector<Block> blocks_;
  std::vector<Diagnostic> warnings_;
  std::set<std::string> warned_;
  std::map<std::string, bool> commands_;  // Match exec, with its outcome
};

// The user's home directory: $HOME, else that of the password file.
std::string home_directory();
std::string local_user();
// ssh_config(5)'s PATTERNS: a comma- or space-separated list with *, ? and !.
bool matches_patterns(const std::vector<std::string>& patterns, std::string_view text);

}  // namespace mtl::ssh
