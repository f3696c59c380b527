#include "launcher/controller/restart.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl {

bool may_restart(int exit_code, bool is_ours) {
  if (exit_code == 126 || exit_code == 127) return false;
  if (!is_ours) return true;
  switch (static_cast<Exit>(exit_code)) {
    case Exit::usage:
    case Exit::config:
    case Exit::environment:
    case Exit::out_of_memory:
    case Exit::data:
      return false;
    default:
      return true;
  }
}

std::optional<std::string> Restarts::after(const Verdict& verdict, const Membership& members) {
  switch (verdict.reason) {
    case Verdict::Reason::over:
    case Verdict::Reason::problem:
      return {};
    case Verdict::Reason::loss:
      return after_loss(verdict.loss->host, members);
    case Verdict::Reason::failure: {
      const WorkerEnd& failure = *verdict.failure;
      if (!any_left() || !may_restart(failure.exit_code, options_.is_ours)) return {};
      ++used_;
      return fmt::format("restart {} of {}: {}{} {}", used_, options_.most, ranks_name(failure),
                         failure.host.empty() ? "" : " on " + failure.host, how_it_ended(failure));
    }
    case Verdict::Reason::leave: {
      if (members.present() < options_.min_nodes && !options_.waits) return {};
      const int nodes = std::min(members.present(), options_.max_nodes);
      return fmt::format("going on with {} node{}", nodes, nodes == 1 ? "" : "s");
    }
    case Verdict::Reason::growth:
      return "";  // it was said when the node came
  }
  return {};
}

std::optional<std::string> Restarts::after_loss(const std::string& host,
                                                const Membership& members) {
  const bool enough = members.present() >= options_.min_nodes;
  // A spare that waits for a place was typed in for this.
  const bool free =
      options_.min_nodes < options_.max_nodes || members.present() >= options_.max_nodes;
  if (!(free || any_left()) || !(enough || options_.waits)) return {};
  if (!free) ++used_;
  std::string why = free ? fmt::format("going on without {}", host)
                         : fmt::format("restart {} of {}: {} was lost", used_, options_.most, host);
  if (!enough) why += fmt::format("; waiting for {}", members.missing());
  return why;
}

bool Restarts::expected_after(StopReason reason) const {
  const bool shrinks = options_.min_nodes < options_.max_nodes;
  return any_left() || (reason == StopReason::loss && shrinks);
}

}  // namespace mtl
