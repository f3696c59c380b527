// An authenticated connection to one host: through its jump hosts, again when a busy server drops
// us, a second one beside the first where the line loses packets, until a deadline. Jump hosts are
// shared: one connection each, with a channel per host behind.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/ssh/channel_stream.h"
#include "launcher/ssh/connection.h"

namespace mtl::ssh {

// How to reach a host: its settings, and the jump hosts, the first one reached directly.
struct Route {
  HostSettings host;
  std::vector<HostSettings> hops;
};

// Throws Error (ssh.config) where jump hosts lie behind each other in a circle.
Route route_to(const Host& host, Config& config);

class JumpHosts;

class Dial final {
 public:
  struct User {
    virtual ~User() = default;
    virtual void ready() = 0;
    virtual void failed(const Diagnostic& error) = 0;
    virtual void activity() = 0;
    virtual void lost(const std::string& why) = 0;
  };

  // `hops` of the route lie before the host. Both must outlive it.
  Dial(Shared& shared, JumpHosts& jumps, const HostSettings& host, std::vector<HostSettings> hops,
       User& user);
  ~Dial();

  void start(Clock::time_point deadline, std::chrono::milliseconds patience);
  Connection& connection() { return *tries_.front()->connection; }  // the one that is ready
  void hang_up();                                                   // the user hears nothing more
  bool silent() const;

 private:
  struct Try final : Connection::User {
    explicit Try(Dial& of) : dial(of) {}
    void ready() override { dial.ready(*this); }
    void failed(const Failure& failure) override { dial.failed(*this, failure); }
    void activity() override { dial.user_.activity(); }
    void lost(const std::string& why) override { dial.user_.lost(why); }
    Dial& dial;
    std::shared_ptr<Connection> connection;
  };

  Connection& add_try();
  void try_once();
  void try_beside();
  void ready(Try& ready);
  void failed(Try& failed, const Failure& failure);
  void give_up(const Diagnostic& error);
  // Not at once: their handlers may be running.
  void drop(std::list<std::shared_ptr<Try>> tries);

  Shared& shared_;
  JumpHosts& jumps_;
  const HostSettings& host_;
  std::vector<HostSettings> hops_;
  User& user_;
  std::list<std::shared_ptr<Try>> tries_;  // oldest first; none or one, but over lossy lines
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Clock::time_point deadline_;
  std::chrono::milliseconds patience_{0};
  uint64_t timer_ = 0, retry_ = 0, beside_ = 0;
  int tried_ = 0;
  bool over_ = false;
};

// One jump host and its channels to hosts behind it.
class JumpHost final : public Dial::User {
 public:
  struct Opened {
    Fd socket;
    std::optional<Diagnostic> error;
  };
  using Done = std::function<void(Opened)>;

  JumpHost(Shared& shared, JumpHosts& jumps, std::vector<HostSettings> hops);

  void start(Clock::time_point deadline, std::chrono::milliseconds patience);
  // A socket that leads to the host, over a channel of the connection.
  void open(const HostSettings& target, Done done);

 private:
  struct Forward {
    const HostSettings* target;
    Done done;
    std::unique_ptr<ChannelStream> stream;
    bool open = false;
  };

  void ready() override;
  void failed(const Diagnostic& error) override;
  void activity() override;
  void lost(const std::string& why) override;
  bool advance(Forward& forward);  // false when it is over
  void begin(Forward& forward);

  Shared& shared_;
  HostSettings host_;
  Dial dial_;
  bool ready_ = false;
  bool activity_due_ = false;
  std::optional<Diagnostic> failure_;
  std::list<Forward> forwards_;
};

class JumpHosts {
 public:
  explicit JumpHosts(Shared& shared) : shared_(shared) {}
  // The last of `hops`, reached through those before it.
  JumpHost& get(const std::vector<HostSettings>& hops, Clock::time_point deadline,
                std::chrono::milliseconds patience);
  // The last hosts first: their connections run through the others.
  void close();

 private:
  Shared& shared_;
  std::map<std::string, std::unique_ptr<JumpHost>> hosts_;
  std::vector<std::string> order_;
};

}  // namespace mtl::ssh
