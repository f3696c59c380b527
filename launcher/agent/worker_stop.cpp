#include "launcher/agent/worker_stop.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/signals.h"

namespace mtl {

namespace {

// Helpers that outlive their finished workers get TERM and this long.
constexpr std::chrono::milliseconds kLeftoverGrace{2'000};
// From KILL to giving up on a process in uninterruptible sleep.
constexpr std::chrono::milliseconds kKillWait{5'000};

std::string ranks(size_t count) {
  return count == 1 ? "1 rank" : fmt::format("{} ranks", count);
}

double in_seconds(std::chrono::milliseconds grace) {
  return std::chrono::duration<double>(grace).count();
}

}  // namespace

WorkerStop::WorkerStop(const AgentOptions& options, Hands hands)
    : options_(options), hands_(std::move(hands)) {}

void WorkerStop::on_signal(int signal) {
  switch (signal) {
    case SIGTSTP:
      if (!std::exchange(told_not_stopped_, true)) notice(kNotStopped);
      return;
    case SIGUSR1:
    case SIGQUIT:
      return hands_.keeper({KeeperCommand::signal_workers, signal});
    case SIGUSR2:
      return on_time_nearly_over();
    default:
      return on_interrupt(signal);
  }
}

void WorkerStop::on_interrupt(int signal) {
  const bool time_over = std::exchange(time_nearly_over_, false);
  const bool again = std::exchange(interrupted_, true) && !time_over;
  if (!again) interrupt_signal_ = signal;
  if (options_.control) options_.control->interrupted(signal);
  if (running() == 0) return kill();  // only helpers of finished workers are left
  if (signal_ == SIGKILL) return;
  if (signal_ == 0) {
    notice(fmt::format("{}: asked {} to stop (up to {:.3g} s; once more = kill at once)",
                       signal_name(signal), ranks(running()), in_seconds(options_.grace)));
    ask(options_.grace, asking_signal(signal));
  } else if ((by_control_ || time_over) && !again) {
    // A scheduler signals every node, and the node that was first has told us already. Or it has
    // sent USR2 before: what comes at the end of the time is no second wish.
    notice(fmt::format("{}: {} {} already asked to stop (once more = kill at once)",
                       signal_name(signal), ranks(running()), running() == 1 ? "is" : "are"));
  } else {
    notice(fmt::format("{}: killed {}", signal_name(signal), ranks(running())));
    kill();
  }
}

// A scheduler's warning. It may come to every process of the job, and more than once: that is one
// request, and above us they tell all nodes of it.
void WorkerStop::on_time_nearly_over() {
  if (options_.control) return options_.control->interrupted(SIGUSR2);
  if (std::exchange(interrupted_, true)) return;
  time_nearly_over_ = true;
  interrupt_signal_ = SIGUSR2;
  if (running() == 0 || asked()) return;
  notice(fmt::format("SIGUSR2: asked {} to stop (up to {:.3g} s): the job's time is nearly over",
                     ranks(running()), in_seconds(options_.warning_grace)));
  ask(options_.warning_grace);
}

void WorkerStop::on_command(const AgentControl::Command& command) {
  using Command = AgentControl::Command;
  const auto tell = [&](const std::string& what, const char* rest) {
    if (command.why.empty() || running() == 0) return;
    notice(fmt::format("{}: {} {}{}", command.why, what, ranks(running()), rest));
  };
  if (command.kind == Command::pass_on) {
    tell(fmt::format("sent {} to", signal_name(command.signal)), "");
    hands_.keeper({KeeperCommand::signal_workers, command.signal});
    return;
  }
  const bool first = !asked() && running() > 0;
  if (first) by_control_ = true;
  if (command.kind == Command::kill || command.grace.count() <= 0) {
    if (signal_ != SIGKILL) tell("killed", "");
    kill();
  } else if (first) {
    tell("asked", " to stop");
    ask(command.grace, command.signal);
  } else if (signal_ != SIGKILL && deadline_) {  // being stopped, or all done
    deadline_ = std::min(*deadline_, Clock::now() + command.grace);
  }
}

void WorkerStop::on_lease_over() {
  if (running() > 0) {
    if (!asked()) by_control_ = true;
    notice(fmt::format("the launcher could not be reached in time: killed {}", ranks(running())));
    options_.control->lease_over();
  }
  kill();
}

void WorkerStop::on_failure(const WorkerEnd& failed) {
  if (asked()) return;
  const bool at_once = options_.failure_grace.count() == 0;
  // With somebody above us, it is theirs to say, once for all nodes.
  if (const size_t others = running(); others > 0 && options_.control == nullptr) {
    notice(fmt::format("{} {}: {} {}{}", ranks_name(failed), how_it_ended(failed),
                       at_once ? "killed" : "asked", ranks(others), at_once ? "" : " to stop"));
  }
  if (at_once) return kill();
  // Nobody is left who would use the time: what they left behind goes (on_all_ended).
  if (running() == 0) return;
  ask(options_.failure_grace.count() < 0 ? options_.grace : options_.failure_grace);
}

// Where nobody here has asked, somebody else has (a scheduler that signals every process). The
// others were asked too: a TERM from here would be their second. They get the grace to follow.
void WorkerStop::on_requeue() {
  if (!asked() && !deadline_) deadline_ = Clock::now() + options_.grace;
}

// What they left behind goes too.
void WorkerStop::on_all_ended() {
  if (asked()) return;
  hands_.keeper({KeeperCommand::sweep, SIGTERM});
  deadline_ = Clock::now() + std::min(options_.grace, kLeftoverGrace);
}

bool WorkerStop::on_deadline() {
  if (signal_ == SIGKILL) return false;
  if (!asked() && running() > 0) {  // ranks that did not follow one that said 75
    notice(fmt::format("{} did not stop with the others: asked to", ranks(running())));
    ask(options_.grace);
    return true;
  }
  if (running() > 0) notice(fmt::format("{} did not stop in time: killed", ranks(running())));
  kill();
  return true;
}

void WorkerStop::ask(std::chrono::milliseconds grace, int signal) {
  signal_ = signal;
  asked_at_ = std::chrono::system_clock::now();
  // The workers themselves, not their helpers: a data loader must live until the checkpoint is
  // written. What a dead worker leaves behind gets its TERM then. But for INT, as at a terminal.
  hands_.keeper({KeeperCommand::signal_workers, signal});
  hands_.keeper({KeeperCommand::sweep, SIGTERM});
  deadline_ = Clock::now() + grace;
}

void WorkerStop::kill() {
  if (signal_ == SIGKILL) return;
  if (!asked()) asked_at_ = std::chrono::system_clock::now();
  signal_ = SIGKILL;
  hands_.keeper({KeeperCommand::sweep, SIGKILL});
  deadline_ = Clock::now() + kKillWait;
}

bool WorkerStop::asked_before(const WorkerEnd& end, bool reported) const {
  return asked() && !(reported && end.when < asked_at_);
}

bool WorkerStop::obeyed(const WorkerEnd& end) const {
  return end.exit_code == 128 + SIGTERM || end.exit_code == 128 + SIGINT ||
         (signal_ == SIGKILL && end.exit_code == 128 + SIGKILL);
}

}  // namespace mtl
