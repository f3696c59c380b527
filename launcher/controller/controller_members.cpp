// The controller's nodes: who says hello, joins, is refused, does not come or is lost.
#include <map>
#include <utility>

#include <fmt/format.h>

#include "common/text.h"
#include "launcher/controller/controller.h"

namespace mtl {

namespace {

using std::chrono::milliseconds;

}  // namespace

void Controller::expect(LinkId link, const std::string& host, const NodeJob& job) {
  Node& node = nodes_[link];
  node.host = host;
  node.job = job;
}

void Controller::host_failed(int position, const Diagnostic& why, Time now) {
  if (state_ == State::finished) return;
  membership_.will_not_come(position);
  gathering_.trouble(why);
  if (state_ == State::gathering) gather(now);
}

void Controller::hosts_failed(const std::vector<int>& positions, const Diagnostic& why, Time now) {
  if (state_ == State::finished) return;
  for (const int position : positions) {
    membership_.will_not_come(position);
    gathering_.troubles_of(position, options_.membership.expected[static_cast<size_t>(position)],
                           {why}, static_cast<int>(Exit::environment));
  }
  if (state_ == State::gathering) gather(now);
}

std::optional<Diagnostic> Controller::refusal(const HelloMessage& hello,
                                              const std::string& host) const {
  if (hello.version != options_.version) {
    return Diagnostic{.code = "launch.version",
                      .what = fmt::format("{} has mtl {}, and this is mtl {}", host, hello.version,
                                          options_.version),
                      .help = "install the same version on all nodes"};
  }
  const auto started_otherwise = [&](const std::string& with, const std::string& ours,
                                     const std::string& option) {
    return Diagnostic{.code = "launch.join",
                      .what = fmt::format("{} was started {} and this job {}", host, with, ours),
                      .help = "give every node the same " + option};
  };
  if (hello.dead_after != options_.dead_after) {
    const auto in_seconds = [](milliseconds time) {
      return fmt::format("{:g}", std::chrono::duration<double>(time).count());
    };
    return started_otherwise("with --dead_after " + in_seconds(hello.dead_after),
                             "with " + in_seconds(options_.dead_after), "--dead_after");
  }
  const int nodes = options_.membership.max_nodes;
  if (hello.nodes != 0 && hello.nodes != nodes) {
    return started_otherwise(fmt::format("for {} machines", hello.nodes),
                             fmt::format("for {}", nodes), "--num_machines");
  }
  // Whoever says how many ranks there are in all has them shared out evenly. Who only says how many
  // its own node has leaves the others theirs.
  if (options_.ranks == 0 || !hello.offer || (hello.ranks == 0 && !options_.total_said)) return {};
  const int ranks = hello.ranks != 0 ? hello.ranks : hello.offer->slots * nodes;
  if (ranks == options_.ranks) return {};
  return started_otherwise(fmt::format("for {} ranks in all", ranks),
                           fmt::format("for {}", options_.ranks), "--num_processes");
}

void Controller::on_hello(LinkId link, const HelloMessage& hello, Time now) {
  Node& node = nodes_[link];
  if (node.host.empty()) node.host = hello.host;
  if (const auto why = refusal(hello, node.host)) {
    // In a job of fixed machines no other can come in its place.
    const bool fixed = options_.membership.by_rank && state_ == State::gathering;
    if (fixed && why->code == "launch.version") gathering_.hopeless(*why);
    refuse(link, *why, now);
    if (state_ == State::gathering) gather(now);
    return;
  }
  if (hello.offer) return on_join(link, *hello.offer, now);
  if (!node.job && options_.job_of) {
    node.job = options_.job_of(hello.host, hello.position);
    if (node.job) node.host = node.job->host;
  }
  if (node.job) port_.send(link, JobMessage::prepare, 0, encode(*node.job));
}

void Controller::on_join(LinkId link, const NodeOffer& offer, Time now) {
  Node& node = nodes_[link];
  node.host = offer.host;
  // The same command typed twice on a machine must not cost the first one its place.
  const auto holder = state_ == State::running ? membership_.link_of(offer.key) : std::nullopt;
  if (holder && *holder != link && nodes_.at(*holder).rank >= 0 && !nodes_.at(*holder).stopped) {
    return refuse(link,
                  {.code = "launch.join",
                   .what = fmt::format("{} cannot take part: '{}' is in the job already and runs",
                                       offer.host, offer.key),
                   .help = "was the same command typed twice? After a crash of that machine, try "
                           "again when the job has noticed it"},
                  now);
  }
  if (const auto refusal = membership_.join(link, offer, now)) {
    return refuse(link,
                  {.code = "launch.join",
                   .what = fmt::format("{} cannot take part: {}", offer.host, *refusal),
                   .help = "give every node its own machine_rank, from 0 to num_machines - 1, "
                           "and every job its own port or --rdzv_id"},
                  now);
  }
  node.joined = true;
  node.machine = offer.machine;
  node.on_gpus = offer.on_gpus;
  node.is_own = offer.position >= 0 && offer.position == options_.own_position;
  if (state_ == State::gathering) return gather(now);
  if (state_ == State::running && options_.grows &&
      static_cast<int>(roster_.nodes.size()) < options_.membership.max_nodes) {
    disturbed_at(std::chrono::system_clock::now());
    stop(StopReason::growth, fmt::format("{} has come: the job goes on with it", offer.host),
         options_.grace, false, now);
  }
}

void Controller::refuse(LinkId link, const Diagnostic& why, Time now) {
  const Node node = nodes_[link];
  nodes_.erase(link);
  port_.send(link, JobMessage::refuse, 0, encode(std::vector<Diagnostic>{why}));
  port_.close(link);
  if (!node.job) return tell("refused: " + why.what);
  gathering_.trouble(why);
  membership_.will_not_come(node.job->position);
  if (state_ == State::gathering) gather(now);
}

void Controller::on_problems(LinkId link, const ProblemsMessage& problems, Time now) {
  const Node node = nodes_[link];
  const int position = node.job ? node.job->position : -1;
  port_.send(link, JobMessage::refuse, 0, encode(problems.errors));
  port_.close(link);
  nodes_.erase(link);
  gathering_.troubles_of(position, node.host, problems.errors, problems.exit_code);
  membership_.will_not_come(position);
  if (state_ == State::gathering) gather(now);
}

void Controller::turned_away(const std::string& reason) {
  if (state_ != State::finished) tell("refused: " + reason);
}

void Controller::lost(LinkId link, LinkEvent::Loss loss, const std::string& reason, Time now) {
  const auto found = nodes_.find(link);
  if (found == nodes_.end() || state_ == State::finished) return;
  const Node node = found->second;
  nodes_.erase(found);
  membership_.leave(link, now);
  if (node.job) membership_.will_not_come(node.job->position);
  if (node.rank >= 0 && !node.stopped) return on_loss(node, loss, reason, now);
  // It has no part in what runs now, but it could have had one in the next generation.
  if (node.job) {
    gathering_.trouble({.code = "launch.node_lost",
                        .what = fmt::format("{} was lost {}: {}", node.host,
                                            node.stopped ? "after its ranks had ended"
                                                         : "before its ranks had started",
                                            loss_text(loss, reason)),
                        .help = "try on that host: mtl env"});
  } else if (node.joined) {
    tell(fmt::format("{} has left: {}", node_text(node), reason));
  }
  if (state_ == State::gathering) gather(now);
}

void Controller::on_loss(const Node& node, LinkEvent::Loss loss, const std::string& reason,
                         Time now) {
  // Of a silent one the end came when it was last heard.
  const auto silence =
      loss == LinkEvent::silent || node.unheard ? options_.dead_after : milliseconds(0);
  end_.losses.push_back({.host = node.host,
                         .node_rank = node.rank,
                         .loss = loss,
                         .reason = reason,
                         .unheard = node.unheard,
                         .when = std::chrono::system_clock::now() - silence});
  if (state_ == State::running) {
    stop(StopReason::loss,
         node.unheard ? fmt::format("{} did not hear from this launcher in time", node.host)
                      : fmt::format("{} was lost: {}", node.host, loss_text(loss, reason)),
         failure_grace(StopReason::loss), false, now);
  } else if (all_stopped()) {
    conclude(now);
  }
}

// Names of a list that lead to one machine: the ranks of each would take the same cores, which is
// slow, and the same GPUs, which does not work.
std::optional<Diagnostic> Controller::shared_machines() const {
  if (options_.listed_at.empty()) return {};
  std::map<std::string, std::map<int, const Node*>> machines;  // by the place in the list
  for (const auto& [link, node] : nodes_) {
    if (node.joined && node.job && !node.machine.empty()) {
      machines[node.machine][node.job->position] = &node;
    }
  }
  Diagnostic found{.code = "hosts.duplicate", .what = {}};
  found.severity = Diagnostic::Severity::warning;
  for (const auto& [machine, nodes] : machines) {
    if (nodes.size() < 2) continue;
    std::vector<std::string> names;
    for (const auto& [position, node] : nodes) {
      const Place& place = options_.listed_at[static_cast<size_t>(position)];
      names.push_back(place.file.empty() ? node->host
                                         : fmt::format("{} (line {})", node->host, place.line));
      if (node->on_gpus) found.severity = Diagnostic::Severity::error;
    }
    const std::string words = some_of(names) + " are one machine";
    if (!found.what.empty()) {
      found.notes.push_back(words);
      continue;
    }
    const Node& first = *nodes.begin()->second;
    found.what = words + ", whose cores and GPUs each of them would use";
    const Place& again = options_.listed_at[static_cast<size_t>(std::next(nodes.begin())->first)];
    if (!again.file.empty()) found.place = again;
    found.help = fmt::format("give it once, with all its ranks: {}{}N", first.host,
                             again.file.empty() ? ":" : " slots=");
  }
  if (found.what.empty()) return {};
  return found;
}

}  // namespace mtl
