// Authentication by an ssh agent. libssh talks to the agent by blocking reads, and an agent may ask
// its user or a smart card: that must not stop the loop. So the whole step runs in a thread of its
// own, a few at a time, and is ended by shutting the sockets down.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <libssh/libssh.h>

#include "common/files.h"
#include "launcher/ssh/agent_filter.h"

namespace mtl::ssh {

class Loop;

class AgentTalk {
 public:
  struct Talk {
    ssh_session session;
    AgentKeys keys;
    Fd agent, client;  // the agent, and our end of what libssh takes for it
    Fd socket;         // a copy, to be shut down
    std::function<void(int outcome)> done;
    bool abandoned = false;
    bool running = false;
    bool over = false;
  };

  AgentTalk(Loop& loop, int at_once) : loop_(loop), at_once_(at_once) {}
  ~AgentTalk();
  AgentTalk(const AgentTalk&) = delete;
  AgentTalk& operator=(const AgentTalk&) = delete;

  // `session` belongs to the talk until `done` (with a value of ssh_auth_e) has run in the loop.
  // Null, with `problem` set, if there is no agent at `path`.
  std::shared_ptr<Talk> start(ssh_session session, const std::string& path, AgentKeys keys,
                              std::string& problem, std::function<void(int outcome)> done);
  // Ends it and waits for its end; `done` will not run.
  void abandon(const std::shared_ptr<Talk>& talk);

 private:
  void work();

  Loop& loop_;
  int at_once_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Talk>> waiting_;
  std::vector<std::thread> threads_;
  int idle_ = 0;
  bool closing_ = false;
};

}  // namespace mtl::ssh
