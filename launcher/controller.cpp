#include "launcher/controller.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "launcher/restart.h"
#include "launcher/signals.h"

namespace mtl {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// When a person begins to wonder, and how often after that.
constexpr seconds kFirstWord{5};
constexpr seconds kNextWord{30};
// What a node may take to say that its workers are gone, beyond their grace: a KILL, its 5 s for
// processes that do not die of it, and the way here.
constexpr seconds kStopSlack{7};
// When the job cannot be any more, how long to wait for what the other hosts have to say: a person
// mends all that is wrong at once.
constexpr milliseconds kOtherReasons{1'500};
// Survivors of a lost machine fail in the same instant that its connection is reset. A loss that is
// noticed this much after the first failure is still its reason.
constexpr milliseconds kSameMoment{300};
// Ranks of ours that outlive one of theirs: they have nothing left to finish, but words to say.
constexpr milliseconds kLastWords{2'000};
// Of those with the same trouble.
constexpr size_t kNamedHosts = 8;

constexpr int kRequeue = static_cast<int>(Exit::requeue);

bool obeyed(const WorkerEnd& end) {
  return end.stopped_by_us && (end.exit_code == 0 || end.exit_code == kRequeue ||
                               end.exit_code == 128 + SIGTERM || end.exit_code == 128 + SIGKILL);
}

bool failed(const WorkerEnd& end) {
  return end.exit_code != 0 && end.exit_code != kRequeue && !obeyed(end);
}

std::string count_text(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string loss_text(LinkEvent::Loss loss, const std::string& reason) {
  return loss == LinkEvent::silent ? reason : "its agent is gone (" + reason + ")";
}

}  // namespace

Controller::Controller(ControllerOptions options, ControllerPort& port, Time now)
    : options_(std::move(options)),
      port_(port),
      membership_(options_.membership),
      since_(now),
      next_word_(now + kFirstWord) {}

// --- who is there
// ---------------------------------------------------------------------------------

void Controller::expect(LinkId link, const std::string& host, const NodeJob& job) {
  Node& node = nodes_[link];
  node.host = host;
  node.job = job;
}

void Controller::host_failed(const std::string& host, const Diagnostic& why, Time now) {
  if (state_ == State::finished) return;
  will_not_come(host, now);
  host_errors_.push_back({.hosts = {}, .error = why});
  if (state_ == State::gathering) gather(now);
}

void Controller::will_not_come(const std::string& host, Time now) {
  ++gone_hosts_;
  membership_.will_not_come(host, now);
}

void Controller::received(LinkId link, const LinkMessage& message,
                          std::chrono::nanoseconds clock_ahead, Time now) {
  if (state_ == State::finished) return;
  const auto kind = static_cast<JobMessage>(message.kind);
  if (kind == JobMessage::hello) {
    const auto hello = decode_hello_message(message.body);
    if (hello) on_hello(link, *hello, now);
    return;
  }
  const auto found = nodes_.find(link);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  node.clock_ahead = clock_ahead;
  switch (kind) {
    case JobMessage::join:
      if (const auto offer = decode_offer(message.body)) on_join(link, *offer, now);
      return;
    case JobMessage::problems:
      if (auto problems = decode_diagnostics(message.body)) {
        on_problems(link, std::move(*problems), now);
      }
      return;
    case JobMessage::interrupted:
      if (const auto signal = decode_number(message.body)) {
        if (options_.membership.max_nodes > 1) {
          tell(fmt::format("{}: {} arrived there, so the job is stopped", node_text(node),
                           signal_name(static_cast<int>(*signal))));
        }
        interrupt(static_cast<int>(*signal), now);
      }
      return;
    default:
      break;
  }
  // The rest is about workers: those of another generation are nobody's any more.
  if (node.rank < 0 || message.generation != roster_.generation) return;
  switch (kind) {
    case JobMessage::output:
      if (const auto output = decode_output(message.body)) port_.output(*output);
      return;
    case JobMessage::line:
      port_.line(message.body);
      return;
    case JobMessage::notice:
      tell(node_text(node) + ": " + message.body);
      return;
    case JobMessage::ended:
      if (auto end = decode_end(message.body)) on_ended(node, std::move(*end), now);
      return;
    case JobMessage::stopped:
      if (const auto stopped = decode_stopped(message.body)) on_stopped(node, *stopped, now);
      return;
    default:
      return;
  }
}

void Controller::on_hello(LinkId link, const HelloMessage& hello, Time now) {
  Node& node = nodes_[link];
  if (node.host.empty()) node.host = hello.host;
  if (hello.version != options_.version) {
    return refuse(link,
                  {.code = "launch.version",
                   .what = fmt::format("{} has mtl {}, and this is mtl {}", node.host,
                                       hello.version, options_.version),
                   .help = "install the same version on all nodes"},
                  now);
  }
  if (hello.dead_after != options_.dead_after) {
    const auto in_seconds = [](milliseconds time) {
      return fmt::format("{:g}", std::chrono::duration<double>(time).count());
    };
    return refuse(
        link,
        {.code = "launch.join",
         .what = fmt::format("{} was started with --dead_after {} and this job with {}", node.host,
                             in_seconds(hello.dead_after), in_seconds(options_.dead_after)),
         .help = "give every node the same --dead_after"},
        now);
  }
  if (hello.offer) return on_join(link, *hello.offer, now);
  if (node.job) port_.send(link, JobMessage::prepare, 0, encode(*node.job));
}

void Controller::on_join(LinkId link, const NodeOffer& offer, Time now) {
  Node& node = nodes_[link];
  node.host = offer.host;
  if (const auto refusal = membership_.join(link, offer, now)) {
    return refuse(link,
                  {.code = "launch.join",
                   .what = fmt::format("{} cannot take part: {}", offer.host, *refusal),
                   .help = "give every node its own machine_rank, from 0 to num_machines - 1, "
                           "and every job its own port or --rdzv_id"},
                  now);
  }
  node.joined = true;
  if (state_ == State::gathering) return gather(now);
  if (state_ == State::running && options_.grows &&
      static_cast<int>(roster_.nodes.size()) < options_.membership.max_nodes) {
    stop(Stop::growth, fmt::format("{} has come: the job goes on with it", offer.host),
         options_.grace, false, now);
  }
}

void Controller::refuse(LinkId link, const Diagnostic& why, Time now) {
  const Node node = nodes_[link];
  nodes_.erase(link);
  port_.send(link, JobMessage::refuse, 0, encode(std::vector<Diagnostic>{why}));
  port_.close(link);
  if (!node.job) return tell("refused: " + why.what);
  host_errors_.push_back({.hosts = {}, .error = why});
  will_not_come(node.host, now);
}

void Controller::on_problems(LinkId link, std::vector<Diagnostic> problems, Time now) {
  const std::string host = nodes_[link].host;
  for (Diagnostic& problem : problems) {
    const auto same = [&](const HostError& one) {
      return !one.hosts.empty() && one.error.code == problem.code &&
             one.error.what == problem.what && one.error.notes == problem.notes;
    };
    const auto known = std::find_if(host_errors_.begin(), host_errors_.end(), same);
    if (known != host_errors_.end()) {
      known->hosts.push_back(host);
    } else {
      host_errors_.push_back({.hosts = {host}, .error = std::move(problem)});
    }
  }
  port_.close(link);
  nodes_.erase(link);
  will_not_come(host, now);
  if (state_ == State::gathering) gather(now);
}

std::vector<Diagnostic> Controller::host_reports() const {
  std::vector<Diagnostic> reports;
  const std::vector<std::string>& listed = options_.membership.expected;
  const auto position = [&](const std::string& host) {
    return std::find(listed.begin(), listed.end(), host);
  };
  for (const HostError& one : host_errors_) {
    std::vector<std::string> names = one.hosts;
    std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      return position(a) < position(b);
    });
    std::string hosts;
    for (size_t i = 0; i < names.size() && i < kNamedHosts; ++i) {
      hosts += (i > 0 ? ", " : "") + names[i];
    }
    if (names.size() > kNamedHosts)
      hosts += fmt::format(" and {} more", names.size() - kNamedHosts);
    reports.push_back(one.error);
    if (!hosts.empty()) reports.back().what = hosts + ": " + one.error.what;
  }
  return reports;
}

void Controller::lost(LinkId link, LinkEvent::Loss loss, const std::string& reason, Time now) {
  const auto found = nodes_.find(link);
  if (found == nodes_.end() || state_ == State::finished) return;
  const Node node = found->second;
  nodes_.erase(found);
  membership_.leave(link, now);
  if (node.job) will_not_come(node.host, now);
  if (node.stopped) return;  // it had done its part
  if (node.rank >= 0 && state_ != State::gathering) {
    // Of a silent one the end came when it was last heard.
    const auto silence = loss == LinkEvent::silent ? options_.dead_after : milliseconds(0);
    losses_.push_back({.host = node.host,
                       .node_rank = node.rank,
                       .loss = loss,
                       .reason = reason,
                       .when = std::chrono::system_clock::now() - silence});
    if (state_ == State::running) {
      stop(Stop::loss, fmt::format("{} was lost: {}", node.host, loss_text(loss, reason)),
           failure_grace(Stop::loss), false, now);
    } else if (all_stopped()) {
      conclude(now);
    }
    return;
  }
  if (state_ != State::gathering) return;
  if (node.job) {
    host_errors_.push_back({.hosts = {},
                            .error = {.code = "launch.node_lost",
                                      .what = fmt::format("{} was lost before the start: {}",
                                                          node.host, loss_text(loss, reason)),
                                      .help = "try on that host: mtl env"}});
  } else if (node.joined) {
    tell(fmt::format("{} has left: {}", node_text(node), reason));
  }
  gather(now);
}

// --- gathering
// ---------------------------------------------------------------------------------

void Controller::gather(Time now) {
  if (interrupt_ != 0) {
    JobOutcome outcome;
    outcome.exit_code = 128 + interrupt_;
    outcome.interrupted = true;
    outcome.report = {{.code = "run.stopped",
                       .what = "the job was stopped on request before it had started",
                       .severity = Diagnostic::Severity::warning}};
    return finish(std::move(outcome));
  }
  if (membership_.ready(now)) return start(now);
  const bool late = now >= since_ + options_.join_timeout;
  if (!membership_.possible() && !impossible_since_) impossible_since_ = now;
  const bool heard_all =
      gone_hosts_ + membership_.present() >= static_cast<int>(options_.membership.expected.size());
  if (late || (impossible_since_ && (heard_all || now >= *impossible_since_ + kOtherReasons))) {
    JobOutcome outcome;
    outcome.exit_code = static_cast<int>(late ? Exit::timeout : Exit::environment);
    outcome.report = host_reports();
    outcome.report.push_back(
        {.code = "launch.nodes",
         .what = fmt::format(
             "{} of the {} nodes that the job needs {} there{}", membership_.present(),
             options_.membership.min_nodes, membership_.present() == 1 ? "is" : "are",
             late ? fmt::format(" after {} s", options_.join_timeout.count() / 1000) : ""),
         .notes = {"missing: " + membership_.missing()},
         .help = "mend what is said above, leave the host out, or allow fewer nodes: "
                 "--nnodes MIN:MAX"});
    return finish(std::move(outcome));
  }
  if (now >= next_word_) {
    next_word_ = now + kNextWord;
    tell(fmt::format("waiting for {}: {} of {} here after {} s", membership_.missing(),
                     count_text(membership_.present(), "node"), options_.membership.max_nodes,
                     std::chrono::duration_cast<seconds>(now - since_).count()));
  }
}

void Controller::start(Time now) {
  // Those that will be missed are said now: the job goes on without them.
  for (const Diagnostic& error : host_reports()) {
    tell(fmt::format("without a host: {} [{}]", error.what, error.code));
  }
  host_errors_.clear();
  impossible_since_.reset();

  std::optional<JobProgram> program;
  std::optional<Error> refused;
  roster_ = membership_.assign([&](int world) {
    try {
      program = options_.prepare(world, membership_.generation() + 1);
      refused.reset();
    } catch (const Error& error) {
      refused = error;
    } catch (const std::exception& error) {
      refused = Error(Exit::run_failed,
                      {.code = "internal",
                       .what = std::string("unexpected failure: ") + error.what(),
                       .help = "this is a bug in mtl: please report it with the command"});
    }
    return !refused || refused->exit() == Exit::done;
  });
  if (refused) {
    JobOutcome outcome;
    outcome.exit_code = static_cast<int>(refused->exit());
    outcome.report = refused->diagnostics();
    return finish(std::move(outcome));
  }
  for (auto& [link, node] : nodes_) {
    node.rank = -1;
    node.stopped = false;
  }
  ends_.clear();
  losses_.clear();
  errors_.clear();
  warnings_.clear();
  stop_ = Stop::none;
  stop_deadline_.reset();
  killed_ = false;
  started_ = std::chrono::system_clock::now();
  state_ = State::running;

  AssignMessage message;
  message.roster = roster_;
  message.restart_count = static_cast<int>(roster_.generation);
  message.failure_grace = failure_grace(Stop::failure);
  message.program = program;
  message.token = options_.token;
  for (size_t rank = 0; rank < roster_.nodes.size(); ++rank) {
    const LinkId link = roster_.nodes[rank].link;
    nodes_[link].rank = static_cast<int>(rank);
    message.node_rank = static_cast<int>(rank);
    port_.send(link, JobMessage::assign, roster_.generation, encode(message));
  }
  (void)now;
}

// --- running
// ---------------------------------------------------------------------------------

void Controller::on_ended(Node& node, WorkerEnd end, Time now) {
  // All ends by one clock, so that the first can be told.
  end.when -= std::chrono::duration_cast<std::chrono::system_clock::duration>(node.clock_ahead);
  if (options_.membership.max_nodes > 1) end.host = node.host;
  ends_.push_back(end);
  if (!failed(end) || state_ != State::running) return;
  const std::string where = end.host.empty() ? "" : " on " + end.host;
  int others = roster_.world;
  for (const WorkerEnd& gone : ends_) others -= gone.ranks;
  std::string why = fmt::format("{}{} {}", ranks_name(end), where, how_it_ended(end));
  const milliseconds grace = failure_grace(Stop::failure);
  if (others > 0) {
    why += fmt::format(": {} {}{}", grace.count() > 0 ? "asked" : "killed",
                       count_text(others, "rank"), grace.count() > 0 ? " to stop" : "");
  }
  stop(Stop::failure, why, grace, false, now);
}

void Controller::on_stopped(Node& node, const StoppedMessage& message, Time now) {
  node.stopped = true;
  for (const std::string& warning : message.warnings) {
    warnings_.push_back(node_text(node) + ": " + warning);
  }
  for (Diagnostic error : message.errors) {
    if (options_.membership.max_nodes > 1) error.what = node.host + ": " + error.what;
    errors_.push_back(std::move(error));
    if (error_exit_ == 0) error_exit_ = message.exit_code;
  }
  if (!message.errors.empty() && state_ == State::running) {
    stop(Stop::problem, node_text(node) + " could not run its part", milliseconds(0), false, now);
  }
  if (all_stopped()) conclude(now);
}

std::vector<LinkId> Controller::active() const {
  std::vector<LinkId> links;
  for (const auto& [link, node] : nodes_) {
    if (node.rank >= 0 && !node.stopped) links.push_back(link);
  }
  return links;
}

bool Controller::all_stopped() const {
  return active().empty();
}

milliseconds Controller::failure_grace(Stop reason) const {
  if (!options_.is_ours) return options_.grace;
  // Started again at once, there is nothing to wait for.
  const bool shrinks = options_.membership.min_nodes < options_.membership.max_nodes;
  const bool again = restarts_ < options_.max_restarts || (reason == Stop::loss && shrinks);
  return again ? milliseconds(0) : std::min(options_.grace, kLastWords);
}

void Controller::interrupt(int signal, Time now) {
  if (state_ == State::finished) return;
  const bool again = interrupt_ != 0;
  if (!again) interrupt_ = signal;
  if (state_ == State::gathering) return gather(now);
  if (again) return stop(Stop::request, "killed at once, on request", milliseconds(0), true, now);
  stop(Stop::request, "", options_.grace, false, now);
}

void Controller::pass_on(int signal) {
  for (const LinkId link : active()) {
    port_.send(link, JobMessage::signal, roster_.generation, encode_number(signal));
  }
}

void Controller::stop(Stop reason, const std::string& why, milliseconds grace, bool kill,
                      Time now) {
  if (state_ == State::running) {
    state_ = State::stopping;
    stop_ = reason;
  } else if (kill ? killed_ : reason != Stop::request) {
    return;  // it is being stopped already
  }
  killed_ = killed_ || kill;
  const StopMessage message{.why = why, .grace = grace, .kill = kill};
  for (const LinkId link : active()) {
    port_.send(link, JobMessage::stop, roster_.generation, encode(message));
  }
  if (!why.empty()) tell(why);
  stop_deadline_ = now + grace + kStopSlack;
  if (all_stopped()) conclude(now);
}

void Controller::tick(Time now) {
  switch (state_) {
    case State::gathering:
      return gather(now);
    case State::stopping: {
      if (!stop_deadline_ || now < *stop_deadline_) return;
      if (!killed_) return stop(stop_, "not stopped in time: killed", milliseconds(0), true, now);
      // An agent that neither dies nor kills: its part is given up.
      for (const LinkId link : active()) {
        port_.close(link);
        lost(link, LinkEvent::silent, "it did not end its ranks", now);
      }
      return;
    }
    default:
      return;
  }
}

std::optional<Controller::Time> Controller::next_tick(Time now) const {
  if (state_ == State::stopping) return stop_deadline_;
  if (state_ != State::gathering) return {};
  Time next = std::min(next_word_, since_ + options_.join_timeout);
  if (const auto change = membership_.next_change(now)) next = std::min(next, *change);
  if (impossible_since_) next = std::min(next, *impossible_since_ + kOtherReasons);
  return next;
}

// --- the end of a generation
// ---------------------------------------------------------------------------------

std::optional<WorkerEnd> Controller::first_failure() const {
  // Asked to stop because a node was lost or has come: however they say so (a handler that exits
  // with 1, a collective that lost its peer), that is no failure of theirs.
  const bool for_others = stop_ == Stop::growth || stop_ == Stop::loss;
  const WorkerEnd* first = nullptr;
  for (const WorkerEnd& end : ends_) {
    if (for_others && end.stopped_by_us) continue;
    if (failed(end) && (first == nullptr || end.when < first->when)) first = &end;
  }
  return first != nullptr ? std::optional(*first) : std::nullopt;
}

const Controller::Loss* Controller::first_loss() const {
  const Loss* first = nullptr;
  for (const Loss& loss : losses_) {
    if (first == nullptr || loss.when < first->when) first = &loss;
  }
  return first;
}

void Controller::conclude(Time now) {
  std::optional<WorkerEnd> failure = first_failure();
  const Loss* loss = first_loss();
  if (loss != nullptr && failure && failure->when + kSameMoment < loss->when) loss = nullptr;
  if (loss != nullptr) failure.reset();

  AgentResult result;
  result.first_failure = failure;
  result.ends = ends_;
  result.interrupted = interrupt_ != 0;
  result.started = started_;
  result.warnings = warnings_;

  const auto fine = [](const WorkerEnd& end) {
    return end.exit_code == 0 || end.exit_code == kRequeue;
  };
  const bool all_fine = std::all_of(ends_.begin(), ends_.end(), fine);
  // By themselves, whatever came in the meantime.
  const bool done = std::all_of(ends_.begin(), ends_.end(), [](const WorkerEnd& end) {
    return end.exit_code == 0 && !end.stopped_by_us;
  });
  const bool requeue = std::any_of(ends_.begin(), ends_.end(),
                                   [](const WorkerEnd& end) { return end.exit_code == kRequeue; });

  JobOutcome outcome;
  outcome.interrupted = interrupt_ != 0;
  outcome.warnings = warnings_;
  if (!errors_.empty()) {
    outcome.exit_code = error_exit_;
    outcome.report = errors_;
    return finish(std::move(outcome));
  }
  const MembershipOptions& members = options_.membership;
  if (interrupt_ == 0) {
    if (loss != nullptr) {
      const bool enough = membership_.present() >= members.min_nodes;
      // A spare that waits for a place was typed in for this.
      const bool free =
          members.min_nodes < members.max_nodes || membership_.present() >= members.max_nodes;
      const bool may = free || restarts_ < options_.max_restarts;
      if (may && (enough || options_.grows)) {
        if (!free) ++restarts_;
        return restart(fmt::format("going on without {}", loss->host), now);
      }
    } else if (failure) {
      if (restarts_ < options_.max_restarts && may_restart(failure->exit_code, options_.is_ours)) {
        ++restarts_;
        return restart(
            fmt::format("restart {} of {}: {}{} {}", restarts_, options_.max_restarts,
                        ranks_name(*failure), failure->host.empty() ? "" : " on " + failure->host,
                        how_it_ended(*failure)),
            now);
      }
    } else if (stop_ == Stop::growth && !done) {
      return restart("", now);
    }
  }

  if (loss != nullptr) {
    outcome.exit_code = interrupt_ != 0                   ? 128 + interrupt_
                        : loss->loss == LinkEvent::silent ? static_cast<int>(Exit::timeout)
                                                          : static_cast<int>(Exit::run_failed);
    outcome.report = {
        {.code = "launch.node_lost",
         .what = fmt::format("node {} ({}) was lost: {}", loss->node_rank, loss->host,
                             loss_text(loss->loss, loss->reason)),
         .notes = {fmt::format("{} other nodes were stopped because of it",
                               roster_.nodes.size() - 1)},
         .help = "look at that machine: is it up, reachable, out of memory? Jobs that go on "
                 "without a lost node: --nnodes MIN:MAX"}};
  } else if (all_fine) {
    outcome.exit_code = requeue ? kRequeue : 0;
  } else if (failure) {
    outcome.exit_code = failure->exit_code;
    outcome.first_failure = failure;
    outcome.report = {failure_report(result)};
  } else {
    outcome.exit_code = 128 + (interrupt_ != 0 ? interrupt_ : SIGTERM);
    outcome.report = {failure_report(result)};
  }
  finish(std::move(outcome));
}

void Controller::restart(const std::string& why, Time now) {
  if (!why.empty()) tell(why);
  state_ = State::gathering;
  for (auto& [link, node] : nodes_) {
    node.rank = -1;
    node.stopped = false;
  }
  since_ = now;
  next_word_ = now + kFirstWord;
  gather(now);
}

void Controller::finish(JobOutcome outcome) {
  state_ = State::finished;
  const FinishMessage message{.exit_code = outcome.exit_code, .report = outcome.report};
  for (const auto& [link, node] : nodes_) {
    port_.send(link, JobMessage::finish, 0, encode(message));
    port_.close(link);
  }
  outcome_ = std::move(outcome);
}

// --- words
// ---------------------------------------------------------------------------------

void Controller::tell(const std::string& line) {
  port_.notice(line);
  if (!options_.tell_nodes) return;
  for (const auto& [link, node] : nodes_) {
    if (node.joined) port_.send(link, JobMessage::notice, roster_.generation, line);
  }
}

std::string Controller::node_text(const Node& node) const {
  return node.host.empty() ? "a node" : node.host;
}

}  // namespace mtl
