// known_hosts files: read once for all hosts, then asked for each. Plain, hashed and wildcard
// names, [host]:port, @revoked and @cert-authority as sshd(8) has them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/ssh/config.h"

namespace mtl::ssh {

struct HostKey {
  std::string type;    // "ssh-ed25519"
  std::string base64;  // of the key's blob
};

struct KeyCheck {
  enum Result { ok, unknown, changed, revoked };
  Result result = unknown;
  Place place;             // changed, revoked: the line that says otherwise
  std::string known_type;  // changed: the type known there
  bool authority = false;  // unknown, but a @cert-authority is known for the host
};

class KnownHosts {
 public:
  KnownHosts();
  ~KnownHosts();
  KnownHosts(const KnownHosts&) = delete;
  KnownHosts& operator=(const KnownHosts&) = delete;

  KeyCheck check(const HostSettings& host, const HostKey& key);
  // The types of the keys known for a host: to be asked for first, or a server with several keys
  // would seem to have changed its key.
  std::vector<std::string> types(const HostSettings& host);
  // Adds a line to the first of the user's files; "" or the reason why not.
  std::string add(const HostSettings& host, const HostKey& key);

 private:
  struct File;
  struct Entry;
  struct Found {
    const File* file;
    const Entry* entry;
  };
  File& file(const std::string& path);
  std::vector<Found> entries(const HostSettings& host, const std::string& name);

  std::map<std::string, std::unique_ptr<File>> files_;
};

// The name of a host in known_hosts: its alias, or "host", or "[host]:port".
std::string known_name(const HostSettings& host);

}  // namespace mtl::ssh
