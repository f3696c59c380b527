// Stands between libssh and an ssh agent. libssh offers every key of the agent, in the agent's
// order; but a server listens to few (MaxAuthTries, usually 6), so that ssh(1) offers those first
// that the configuration names, and with IdentitiesOnly no others.
#pragma once

#include <string>
#include <thread>
#include <vector>

namespace mtl::ssh {

// Public keys in base64, as in the files of public keys.
struct AgentKeys {
  std::vector<std::string> first;    // the configured ones, in their order
  std::vector<std::string> refused;  // tried already, from their files
  bool only = false;                 // no others than `first`
};

// The agent's message with its list of keys, with those that are to be offered. Every other
// message, and one that is not well formed, is given back as it is.
std::string choose_keys(const std::string& message, const AgentKeys& keys);

// Passes on messages between the two sockets, which have to block, in a thread of its own. Ends
// with either of them, and then ends the other.
class AgentFilter {
 public:
  AgentFilter(int agent, int client, AgentKeys keys);
  ~AgentFilter();
  AgentFilter(const AgentFilter&) = delete;
  AgentFilter& operator=(const AgentFilter&) = delete;

 private:
  void end();

  int agent_, client_;
  std::thread thread_;
};

}  // namespace mtl::ssh
