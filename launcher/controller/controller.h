// The controller of a job on several nodes: what each generation runs, what happens when something
// fails, and who is told. Who takes part is in controller_members.cpp, why nodes are not there yet
// is in gathering.h, why a generation ended in verdict.h, whether there is another in restart.h. A
// state machine without sockets, threads or a clock of its own: it is told what has happened and
// when, and it talks through a port. Whoever drives it (job_hosts.cpp, job_member.cpp) owns the
// links.
//
//   gathering --(enough nodes)--> running --(a failure, a loss, a request)--> stopping
//       ^                            |                                          |
//       +------- restart ------------+---(all nodes have stopped)---------------+--> finished
//
// Only the controller changes the generation, so there is no agreement to reach; messages of
// another generation are dropped (the fencing of torch elastic's closed rendezvous, without its
// races).
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/controller/gathering.h"
#include "launcher/controller/restart.h"
#include "launcher/controller/verdict.h"
#include "launcher/node/job_messages.h"
#include "rendezvous/membership.h"

namespace mtl {

struct ControllerOptions {
  MembershipOptions membership;
  std::string version;
  bool is_ours = false;  // the program is mtl's own runtime
  bool grows = false;    // a node that comes late leads to a new generation
  // NodeOffer::position of the node in the controller's own process: a signal there is meant for
  // the job. One at another node makes that leave, if the others may go on. -1 = none.
  int own_position = -1;
  // What our own command says, where the same is typed on every node: all ranks, and whether that
  // is what it was given (num_processes) or follows from its own node. 0 = not known.
  int ranks = 0;
  bool total_said = false;
  bool tell_nodes = false;  // notices go to the nodes, where people are, and not to the port
  int max_restarts = 0;     // after failures of ranks; the loss of a node is free while min < max
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds dead_after{5'000};
  std::chrono::milliseconds grace{30'000};
  std::chrono::milliseconds warning_grace{30'000};  // after USR2
  // What the nodes run in this generation; nothing = what they were told before. Throws Error if a
  // job of that many ranks is not possible: it is asked again with fewer nodes then, if there may
  // be fewer, and its error ends the job if not. Exit::done: there is nothing to do.
  std::function<std::optional<JobProgram>(int world, int64_t generation)> prepare;
  std::string token;  // for the workers, if the nodes do not know it
  // Where a person has listed the hosts of MembershipOptions::expected; empty = nobody has. Two of
  // them that are one machine are a mistake.
  std::vector<Place> listed_at;
  // What the agent on this node, of this place, is to prepare, where agents dial in instead of
  // being expected on a link. Nothing = it is none of ours.
  std::function<std::optional<NodeJob>(const std::string& host, int position)> job_of;
};

class ControllerPort {
 public:
  virtual ~ControllerPort() = default;
  virtual void send(LinkId link, JobMessage kind, int64_t generation, std::string body) = 0;
  virtual void close(LinkId link) = 0;  // what was sent goes out first
  virtual void notice(const std::string& line) = 0;
  virtual void output(const OutputMessage& message) = 0;  // of a shown rank
  virtual void line(const std::string& text) = 0;         // of rank 0's progress
};

class Controller {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Controller(ControllerOptions options, ControllerPort& port, Time now);

  // A link of a host of ours: `job` is what the node there is asked to prepare.
  void expect(LinkId link, const std::string& host, const NodeJob& job);
  // A host of ours that cannot be reached; its position in MembershipOptions::expected.
  void host_failed(int position, const Diagnostic& why, Time now);
  // The same of several, of which `why` is true without their names.
  void hosts_failed(const std::vector<int>& positions, const Diagnostic& why, Time now);

  void received(LinkId link, const LinkMessage& message, std::chrono::nanoseconds clock_ahead,
                Time now);
  void lost(LinkId link, LinkEvent::Loss loss, const std::string& reason, Time now);
  // Somebody who has proved nothing was not let in: for people to know.
  void turned_away(const std::string& reason);
  // A person or a scheduler wants the job to stop; the second time at once. USR2 (the time is
  // nearly over) asks for no more than that, however often it comes, and what follows it is a first
  // time.
  void interrupt(int signal, Time now);
  // Something that the ranks are to get (USR1, QUIT).
  void pass_on(int signal);
  void tick(Time now);
  // When tick() is due without anything else happening.
  std::optional<Time> next_tick(Time now) const;

  const std::optional<JobOutcome>& outcome() const { return outcome_; }
  int64_t generation() const { return roster_.generation; }

 private:
  enum class State { gathering, running, stopping, finished };

  struct Node {
    std::string host;
    std::optional<NodeJob> job;  // to send on hello
    std::string machine;         // of its offer, as the next
    bool on_gpus = false;
    bool joined = false;
    int rank = -1;  // in the roster; -1 = not in this generation
    bool stopped = false;
    bool is_own = false;
    bool interrupted = false;
    bool unheard = false;  // it has not heard of us in time, and has killed its ranks
    int leaving = 0;       // the signal that it leaves with: it is in no further generation
    std::chrono::nanoseconds clock_ahead{0};
  };

  std::optional<Diagnostic> refusal(const HelloMessage& hello, const std::string& host) const;
  void on_hello(LinkId link, const HelloMessage& hello, Time now);
  void on_join(LinkId link, const NodeOffer& offer, Time now);
  void on_problems(LinkId link, const ProblemsMessage& problems, Time now);
  void on_ended(Node& node, WorkerEnd end, Time now);
  void on_stopped(LinkId link, const StoppedMessage& message, Time now);
  void urge(int signal, bool again, Time now);
  void on_interrupted(LinkId link, const InterruptedMessage& message, Time now);
  bool may_leave(LinkId link) const;
  void leave(LinkId link, const InterruptedMessage& message, Time now);
  void leave_for_trouble(LinkId link, const std::vector<Diagnostic>& errors, int exit_code,
                         Time now);
  void disturbed_at(std::chrono::system_clock::time_point when);
  void let_go(LinkId link, const std::vector<Diagnostic>& errors, int error_exit);
  void on_loss(const Node& node, LinkEvent::Loss loss, const std::string& reason, Time now);
  void refuse(LinkId link, const Diagnostic& why, Time now);
  void gather(Time now);
  std::optional<Diagnostic> shared_machines() const;
  void start();
  void stop(StopReason reason, const std::string& why, std::chrono::milliseconds grace, bool kill,
            Time now);
  void conclude(Time now);
  void restart(const std::string& why, Time now);
  void finish(JobOutcome outcome);
  std::vector<LinkId> active() const;
  bool all_stopped() const;
  void tell(const std::string& line);
  std::string node_text(const Node& node) const;
  std::string nodes_left() const;
  std::chrono::milliseconds failure_grace(StopReason reason) const;

  const ControllerOptions options_;
  ControllerPort& port_;
  Membership membership_;
  State state_ = State::gathering;
  std::map<LinkId, Node> nodes_;
  Roster roster_;

  Gathering gathering_;
  Restarts restarts_;

  // running, stopping
  GenerationEnd end_;
  int interrupt_ = 0;  // the signal
  bool interrupted_here_ = false;
  // How the job would have ended when it was to go on with fewer nodes: that counts if it cannot.
  std::optional<JobOutcome> without_;
  std::optional<Time> stop_deadline_;
  bool killed_ = false;

  std::optional<JobOutcome> outcome_;
};

}  // namespace mtl
