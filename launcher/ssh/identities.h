// Private keys and certificates, each file read once for all hosts.
#pragma once

#include <map>
#include <string>
#include <utility>

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
  // A private key that shows this certificate of its public half; null if there is none of it.
  ssh_key certified(const std::string& key, const std::string& certificate);

 private:
  std::map<std::string, Identity> loaded_;
  std::map<std::string, std::string> certificates_;
  std::map<std::pair<std::string, std::string>, ssh_key> certified_;
};

}  // namespace mtl::ssh
