// Private keys and certificates, each file read once for all hosts.
#pragma once

#include <map>
#include <string>

#include <libssh/libssh.h>

namespace mtl::ssh {

struct Identity {
  enum State { loaded, missing, encrypted, unreadable };
  State state = missing;
  ssh_key key = nullptr;
  std::string public_key;  // in base64; also of a key that only an agent can use, where it is known
};

class Identities {
 public:
  Identities() = default;
  ~Identities();
  Identities(const Identities&) = delete;
  Identities& operator=(const Identities&) = delete;
  const Identity& get(const std::string& path);
  // In base64, as a key; "" if it is not there or is none.
  const std::string& certificate(const std::string& path);

 private:
  std::map<std::string, Identity> loaded_;
  std::map<std::string, std::string> certificates_;
};

}  // namespace mtl::ssh
