// One SSH connection: name, TCP (or a socket made by a jump host or a proxy command), key exchange,
// host key, authentication; then the bytes of its channels. libssh never blocks here: every step is
// repeated when the socket is ready, but for the talk with an ssh agent, which has its own thread.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <libssh/callbacks.h>
#include <libssh/libssh.h>

#include "common/error.h"
#include "common/files.h"
#include "launcher/ssh/agent_talk.h"
#include "launcher/ssh/child.h"
#include "launcher/ssh/config.h"
#include "launcher/ssh/identities.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/loop.h"
#include "launcher/ssh/resolver.h"

namespace mtl::ssh {

// What all connections of a fleet share; used in the loop's thread only.
struct Shared {
  explicit Shared(int agent_talks) : resolver(loop), agent(loop, agent_talks) {}
  Loop loop;
  Resolver resolver;
  KnownHosts known_hosts;
  Identities identities;
  AgentTalk agent;
};

struct Failure {
  Diagnostic error;
  bool again = false;  // the server dropped us before it said anything: it may be busy
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // Called in the loop; activity() with libssh's callbacks done. To be destroyed by Loop::defer().
  struct User {
    virtual ~User() = default;
    virtual void ready() = 0;                         // authenticated: channels can be opened
    virtual void failed(const Failure& failure) = 0;  // before ready()
    virtual void activity() = 0;                      // after ready(): bytes came, or can be sent
    virtual void lost(const std::string& why) = 0;    // after ready()
  };

  Connection(Shared& shared, const HostSettings& settings, User& user);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();              // by TCP, or the proxy command of the settings
  void start_on(Fd socket);  // connected already
  // What it waits for, for a message about a timeout: "a connection to 10.0.0.1:22".
  std::string waiting_for() const;
  // No answer from the server yet.
  bool silent() const { return state_ < State::keys; }
  // Connected over TCP, before ready(), and packets of ours were lost.
  bool on_lossy_line() const;

  ssh_session session() { return session_; }
  void pause_reading(bool paused);  // of a stream whose reader does not keep up
  // After channels were written to or requests made: watches for what the socket has to do.
  void rearm();

 private:
  enum class State {
    idle,
    resolving,
    connecting,
    greeting,
    keys,
    asking,
    identities,
    agent,
    ready,
    over
  };

  // One attempt to connect; several are under way while none is answered.
  struct Attempt {
    Fd socket;
    uint64_t watch = 0;
    size_t address = 0;
    Clock::time_point begun;
  };
  struct Target {
    Address address;
    bool given_up = false;
    std::optional<Clock::time_point> unreachable;  // so it was said, then
  };

  void connect_next();
  void attempt_over(std::list<Attempt>::iterator attempt);
  void drop_attempts();
  void connected(Fd socket);
  void open_session();
  void on_socket();
  void step();
  void pump();
  void start_proxy();
  bool check_host_key();
  std::vector<std::string> certificate_paths() const;
  void find_offers();
  void ask_agent();
  void fail(Failure failure);
  void lose();
  void close_watch();
  Failure greeting_failure();
  Failure proxy_failure();
  Failure auth_failure(const std::string& cut);

  Shared& shared_;
  const HostSettings& settings_;
  User& user_;
  State state_ = State::idle;
  std::vector<Target> targets_;
  std::list<Attempt> attempts_;  // newest last
  size_t next_target_ = 0, last_target_ = 0;
  int attempts_made_ = 0;
  uint64_t next_attempt_ = 0;  // the timer
  std::string connect_error_;
  Fd socket_;  // until libssh has it
  uint64_t watch_ = 0;
  ssh_session session_ = nullptr;
  ssh_event event_ = nullptr;
  ssh_counter_struct raw_{};
  bool reading_paused_ = false;
  // What is in files, in the order in which it is shown to the server.
  struct Offer {
    std::string path;
    ssh_key key = nullptr;    // of the shared identities
    std::string certificate;  // in base64; "" = the bare key
  };
  std::vector<Offer> offers_;
  size_t next_offer_ = 0;
  std::shared_ptr<AgentTalk::Talk> talk_;
  std::string agent_problem_;
  int auth_methods_ = 0;
  Child proxy_;
  Fd proxy_errors_;  // a file without a name: what the ProxyCommand says on stderr
  std::vector<std::string> tried_, locked_, unreadable_;
};

}  // namespace mtl::ssh
