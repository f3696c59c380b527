// How a node's workers come to be asked to stop, and killed: on whose wish, how far that has gone,
// and until when it waits. Wishes are signals, a controller's orders, the failure of a rank, the
// end of a lease; what they mean together is what agent.h says of run_agent and AgentControl. It
// has no process in its hands: it gives the keeper commands, and is told what becomes of them.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "launcher/agent/agent.h"
#include "launcher/agent/keeper.h"

namespace mtl {

class WorkerStop {
 public:
  using Clock = std::chrono::steady_clock;
  struct Hands {
    std::function<void(const KeeperCommand&)> keeper;
    std::function<size_t()> running;  // ranks whose process has not ended
    std::function<void(std::string)> notice;
  };
  WorkerStop(const AgentOptions& options, Hands hands);

  // --- what somebody wants
  void on_signal(int signal);
  void on_command(const AgentControl::Command& command);
  void on_lease_over();
  void kill();  // at once

  // --- what happens
  void on_failure(const WorkerEnd& failed);  // of a rank, by itself
  void on_requeue();                         // a rank has ended with 75
  void on_all_ended();                       // no worker runs
  // When it is over, on_deadline(): false if what still runs does not even die of SIGKILL.
  std::optional<Clock::time_point> deadline() const { return deadline_; }
  bool on_deadline();

  bool asked() const { return signal_ != 0; }
  bool asked_with(int signal) const { return signal_ == signal; }
  // ... before this end. `reported`: its time is from the rank's own words, and who wrote down its
  // failure before it was asked has failed by itself.
  bool asked_before(const WorkerEnd& end, bool reported) const;
  // Whether a worker that was asked ends like this: no failure then.
  bool obeyed(const WorkerEnd& end) const;
  // The first to ask was the controller.
  bool by_control() const { return by_control_; }
  bool interrupted() const { return interrupted_; }
  // The signal that has arrived here; of USR2 and another, the other. 0 = none.
  int interrupt_signal() const { return interrupt_signal_; }

 private:
  void on_interrupt(int signal);
  void on_time_nearly_over();
  void ask(std::chrono::milliseconds grace, int signal = SIGTERM);
  size_t running() const { return hands_.running(); }
  void notice(std::string line) const { hands_.notice(std::move(line)); }

  const AgentOptions& options_;
  const Hands hands_;
  int signal_ = 0;  // what the workers were last asked with: 0, INT, TERM or KILL
  std::chrono::system_clock::time_point asked_at_;  // first
  bool by_control_ = false;
  std::optional<Clock::time_point> deadline_;
  bool interrupted_ = false;
  int interrupt_signal_ = 0;
  bool time_nearly_over_ = false;  // USR2 has come, and nothing stronger after it
  bool told_not_stopped_ = false;
};

}  // namespace mtl
