// What the controller makes of wishes to stop: of the whole job, or of one node that leaves it.
#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/signals.h"
#include "launcher/controller/controller.h"

namespace mtl {

using std::chrono::milliseconds;

void Controller::interrupt(int signal, Time now) {
  const bool again = signal != SIGUSR2 && std::exchange(interrupted_here_, true);
  urge(signal, again, now);
}

// `again`: who asks has asked before.
void Controller::urge(int signal, bool again, Time now) {
  if (state_ == State::finished) return;
  const bool first = interrupt_ == 0;
  if (first || interrupt_ == SIGUSR2) interrupt_ = signal;
  if (state_ == State::gathering) return gather(now);
  if (first) {
    const auto grace = signal == SIGUSR2 ? options_.warning_grace : options_.grace;
    return stop(StopReason::request, "", grace, false, now);
  }
  if (again) {
    stop(StopReason::request, "killed at once, on request", milliseconds(0), true, now);
  }
}

void Controller::on_interrupted(LinkId link, const InterruptedMessage& message, Time now) {
  Node& node = nodes_.at(link);
  const int signal = message.signal;
  if (node.leaving != 0) return;  // its agent knows what a second signal means
  // USR2 is about the time of the whole job, and says nothing new when it comes again.
  if (signal == SIGUSR2 && interrupt_ != 0) return;
  if (signal == SIGUSR2) {
    tell(fmt::format("SIGUSR2 arrived at {}: the job is stopped, its time is nearly over",
                     node_text(node)));
    return urge(signal, false, now);
  }
  const bool again = std::exchange(node.interrupted, true);
  if (!again && may_leave(link)) return leave(link, message, now);
  // A scheduler signals every node: that is one request.
  if (!again && interrupt_ == SIGUSR2) return urge(signal, false, now);
  if (!again && interrupt_ != 0) return;
  if (!again && options_.membership.max_nodes > 1) {
    tell(fmt::format("{}: {} arrived there, so the job is stopped", node_text(node),
                     signal_name(signal)));
  }
  urge(signal, again, now);
}

// Whether the job can do without this node, so that a signal there need not be the end of all.
bool Controller::may_leave(LinkId link) const {
  const Node& node = nodes_.at(link);
  if (node.is_own || interrupt_ != 0) return false;
  const MembershipOptions& members = options_.membership;
  const bool spare = state_ != State::gathering && node.rank < 0;
  // Unless it is about to be let in, nobody misses it.
  if (spare && state_ == State::running) return true;
  if (!spare && members.min_nodes >= members.max_nodes) return false;
  int others = membership_.present() - (membership_.is_present(link) ? 1 : 0);
  if (state_ == State::gathering) {
    others += membership_.awaited() - (node.job && !node.joined ? 1 : 0);
  }
  return others >= members.min_nodes;
}

// A cloud takes a machine back, or a person needs it: the others end in order, so that ours save
// where they are, and go on without it. Nobody has failed, so no restart is used up.
void Controller::leave(LinkId link, const InterruptedMessage& message, Time now) {
  Node& node = nodes_.at(link);
  node.leaving = message.signal;
  membership_.leave(link, now);
  if (node.job) membership_.will_not_come(node.job->position);
  std::string why =
      fmt::format("{}: {} arrived there: it leaves", node_text(node), signal_name(message.signal));
  if (node.rank < 0 || node.stopped) {
    tell(why);
    let_go(link, {}, 0);
    if (state_ == State::gathering) gather(now);
    return;
  }
  end_.left = true;
  disturbed_at(message.when);
  if (end_.stop != StopReason::failure && end_.stop != StopReason::problem) {
    why += ", and the job goes on with " + nodes_left();
  }
  if (state_ == State::running) return stop(StopReason::leave, why, options_.grace, false, now);
  tell(why);
}

// A node that cannot run its part (a machine that came late, without the run's directory) is no
// reason to end the others' job, where they are enough.
void Controller::leave_for_trouble(LinkId link, const std::vector<Diagnostic>& errors,
                                   int exit_code, Time now) {
  Node& node = nodes_.at(link);
  node.leaving = SIGTERM;
  membership_.leave(link, now);
  if (node.job) membership_.will_not_come(node.job->position);
  const std::string why = fmt::format("{} [{}]: the job goes on with {}", errors.front().what,
                                      errors.front().code, nodes_left());
  let_go(link, errors, exit_code);
  end_.left = true;
  disturbed_at(std::chrono::system_clock::now());
  if (state_ == State::running) {
    return stop(StopReason::leave, why, failure_grace(StopReason::loss), false, now);
  }
  tell(why);
  if (all_stopped()) conclude(now);
}

// The word of it may have been on its way for longer than the ranks needed to notice.
void Controller::disturbed_at(std::chrono::system_clock::time_point when) {
  when = std::min(when, std::chrono::system_clock::now());
  if (!end_.disturbed || when < *end_.disturbed) end_.disturbed = when;
}

}  // namespace mtl
