#include "launcher/controller/controller.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/signals.h"

namespace mtl {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What a node may take to say that its workers are gone, beyond their grace: a KILL, its 5 s for
// processes that do not die of it, and the way here.
constexpr seconds kStopSlack{7};
// Ranks of ours that outlive one of theirs: they have nothing left to finish, but words to say.
constexpr milliseconds kLastWords{2'000};

std::string count_text(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

JobOutcome stopped_early(int signal, const char* what) {
  JobOutcome outcome;
  // What has not begun can go on where it was: a scheduler whose time is over starts it again.
  outcome.exit_code = signal == SIGUSR2 ? static_cast<int>(Exit::requeue) : 128 + signal;
  outcome.interrupted = true;
  outcome.signal = signal;
  outcome.report = {
      {.code = "run.stopped", .what = what, .severity = Diagnostic::Severity::warning}};
  return outcome;
}

}  // namespace

Controller::Controller(ControllerOptions options, ControllerPort& port, Time now)
    : options_(std::move(options)),
      port_(port),
      membership_(options_.membership),
      gathering_(options_.membership, options_.join_timeout, now),
      restarts_({.most = options_.max_restarts,
                 .is_ours = options_.is_ours,
                 .waits = options_.grows,
                 .min_nodes = options_.membership.min_nodes,
                 .max_nodes = options_.membership.max_nodes}) {}

void Controller::received(LinkId link, const LinkMessage& message,
                          std::chrono::nanoseconds clock_ahead, Time now) {
  if (state_ == State::finished) return;
  const auto kind = static_cast<JobMessage>(message.kind);
  const auto found = nodes_.find(link);
  // Who is in has said who it is.
  const bool joined = found != nodes_.end() && found->second.joined;
  if (kind == JobMessage::hello) {
    const auto hello = decode_hello_message(message.body);
    if (hello && !joined) on_hello(link, *hello, now);
    return;
  }
  if (found == nodes_.end()) return;
  Node& node = found->second;
  node.clock_ahead = clock_ahead;
  switch (kind) {
    case JobMessage::join:
      if (joined) return;
      if (const auto offer = decode_offer(message.body)) on_join(link, *offer, now);
      return;
    case JobMessage::problems:
      if (joined) return;
      if (const auto problems = decode_problems(message.body)) on_problems(link, *problems, now);
      return;
    case JobMessage::interrupted:
      if (auto interrupted = decode_interrupted(message.body)) {
        interrupted->when -=
            std::chrono::duration_cast<std::chrono::system_clock::duration>(clock_ahead);
        on_interrupted(link, *interrupted, now);
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
    case JobMessage::unheard:
      node.unheard = true;
      return;
    case JobMessage::stopped:
      if (const auto stopped = decode_stopped(message.body)) on_stopped(link, *stopped, now);
      return;
    default:
      return;
  }
}

// --- gathering

void Controller::gather(Time now) {
  if (interrupt_ != 0) {
    return finish(
        stopped_early(interrupt_, "the job was stopped on request before it had started"));
  }
  Gathering::Step step = gathering_.look(membership_, now);
  if (step.kind == Gathering::Step::start) return start();
  if (step.kind == Gathering::Step::give_up) return finish(std::move(step.outcome));
  if (!step.word.empty()) tell(step.word);
}

void Controller::start() {
  if (const auto shared = membership_.generation() < 0 ? shared_machines() : std::nullopt) {
    if (shared->severity == Diagnostic::Severity::error) {
      JobOutcome outcome;
      outcome.exit_code = static_cast<int>(Exit::config);
      outcome.report = {*shared};
      return finish(std::move(outcome));
    }
    tell(fmt::format("warning: {}; {}", shared->what, shared->help));
  }
  // Those that will be missed are said now: the job goes on without them.
  for (const Diagnostic& error : gathering_.take_troubles()) {
    tell(fmt::format("without a host: {} [{}]", error.what, error.code));
  }

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
  if (refused && without_ && refused->exit() != Exit::done) {
    // A layout that fits no fewer ranks is not what ended the job.
    for (const Diagnostic& why : refused->diagnostics()) {
      without_->warnings.push_back("it cannot go on with fewer nodes: " + why.what);
    }
    return finish(std::move(*without_));
  }
  if (refused) {
    JobOutcome outcome;
    outcome.exit_code = static_cast<int>(refused->exit());
    outcome.report = refused->diagnostics();
    return finish(std::move(outcome));
  }
  without_.reset();
  for (auto& [link, node] : nodes_) {
    node.rank = -1;
    node.stopped = false;
  }
  end_ = {};
  end_.nodes = static_cast<int>(roster_.nodes.size());
  end_.started = std::chrono::system_clock::now();
  stop_deadline_.reset();
  killed_ = false;
  state_ = State::running;

  AssignMessage message;
  message.roster = roster_;
  message.restart_count = static_cast<int>(roster_.generation);
  message.failure_grace = failure_grace(StopReason::failure);
  message.program = program;
  message.token = options_.token;
  for (size_t rank = 0; rank < roster_.nodes.size(); ++rank) {
    const LinkId link = roster_.nodes[rank].link;
    nodes_.at(link).rank = static_cast<int>(rank);
    message.node_rank = static_cast<int>(rank);
    port_.send(link, JobMessage::assign, roster_.generation, encode(message));
  }
}

// --- running

void Controller::on_ended(Node& node, WorkerEnd end, Time now) {
  // All ends by one clock, so that the first can be told.
  end.when -= std::chrono::duration_cast<std::chrono::system_clock::duration>(node.clock_ahead);
  if (options_.membership.max_nodes > 1) end.host = node.host;
  if (node.stopped) return;
  end_.ends.push_back(end);
  if (!has_failed(end) || state_ != State::running) return;
  const std::string where = end.host.empty() ? "" : " on " + end.host;
  int others = roster_.world;
  for (const WorkerEnd& gone : end_.ends) others -= gone.ranks;
  std::string why = fmt::format("{}{} {}", ranks_name(end), where, how_it_ended(end));
  const milliseconds grace = failure_grace(StopReason::failure);
  if (others > 0) {
    why += fmt::format(": {} {}{}", grace.count() > 0 ? "asked" : "killed",
                       count_text(others, "rank"), grace.count() > 0 ? " to stop" : "");
  }
  stop(StopReason::failure, why, grace, false, now);
}

void Controller::on_stopped(LinkId link, const StoppedMessage& message, Time now) {
  Node& node = nodes_.at(link);
  if (node.stopped) return;
  node.stopped = true;
  for (const std::string& warning : message.warnings) {
    end_.warnings.push_back(node_text(node) + ": " + warning);
  }
  std::vector<Diagnostic> errors = message.errors;
  for (Diagnostic& error : errors) {
    if (options_.membership.max_nodes > 1) error.what = node.host + ": " + error.what;
  }
  // Of one that leaves they are nobody else's trouble.
  if (node.leaving != 0) {
    let_go(link, errors, message.exit_code);
  } else if (!errors.empty() && may_leave(link)) {
    return leave_for_trouble(link, errors, message.exit_code, now);
  } else if (!errors.empty()) {
    end_.errors.insert(end_.errors.end(), errors.begin(), errors.end());
    if (end_.error_exit == 0) end_.error_exit = message.exit_code;
    if (state_ == State::running) {
      const std::string why = node_text(node) + " could not run its part";
      return stop(StopReason::problem, why, milliseconds(0), false, now);
    }
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

milliseconds Controller::failure_grace(StopReason reason) const {
  if (!options_.is_ours) return options_.grace;
  // Started again at once, there is nothing to wait for.
  return restarts_.expected_after(reason) ? milliseconds(0) : std::min(options_.grace, kLastWords);
}

void Controller::pass_on(int signal) {
  for (const LinkId link : active()) {
    port_.send(link, JobMessage::signal, roster_.generation, encode_number(signal));
  }
}

void Controller::stop(StopReason reason, const std::string& why, milliseconds grace, bool kill,
                      Time now) {
  if (state_ == State::running) {
    state_ = State::stopping;
    end_.stop = reason;
  } else if (kill ? killed_ : reason != StopReason::request) {
    return;  // it is being stopped already
  }
  killed_ = killed_ || kill;
  const int asked_by = reason == StopReason::request ? interrupt_ : SIGTERM;
  const StopMessage message{
      .why = why, .grace = grace, .kill = kill, .signal = asking_signal(asked_by)};
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
      if (!killed_)
        return stop(end_.stop, "not stopped in time: killed", milliseconds(0), true, now);
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
  return gathering_.next_look(membership_, now);
}

// --- the end of a generation

void Controller::conclude(Time now) {
  end_.interrupt = interrupt_;
  end_.is_ours = options_.is_ours;
  Verdict verdict = judge(end_);
  if (interrupt_ == 0) {
    if (const auto why = restarts_.after(verdict, membership_)) {
      const bool fewer =
          verdict.reason == Verdict::Reason::leave || verdict.reason == Verdict::Reason::loss;
      if (fewer) without_ = std::move(verdict.outcome);
      return restart(*why, now);
    }
  }
  finish(std::move(verdict.outcome));
}

void Controller::restart(const std::string& why, Time now) {
  if (!why.empty()) tell(why);
  state_ = State::gathering;
  for (auto& [link, node] : nodes_) {
    node.rank = -1;
    node.stopped = false;
  }
  gathering_.begin(now);
  gather(now);
}

// One that leaves has nothing left to do here. It ends as the whole job would, had the signal been
// meant for all: with what became of its own ranks.
void Controller::let_go(LinkId link, const std::vector<Diagnostic>& errors, int error_exit) {
  const Node node = nodes_.at(link);
  JobOutcome outcome =
      stopped_early(node.leaving, "this node left on request before it had a part");
  if (node.rank >= 0) {
    const RosterNode& row = roster_.nodes[static_cast<size_t>(node.rank)];
    GenerationEnd own;
    own.nodes = 1;
    own.started = end_.started;
    own.errors = errors;
    own.error_exit = error_exit;
    own.interrupt = node.leaving;
    for (const WorkerEnd& end : end_.ends) {
      if (end.rank >= row.first_rank && end.rank < row.first_rank + row.slots) {
        own.ends.push_back(end);
      }
    }
    own.is_ours = options_.is_ours;
    outcome = judge(own).outcome;
  }
  const FinishMessage message{.exit_code = outcome.exit_code, .report = outcome.report};
  port_.send(link, JobMessage::finish, 0, encode(message));
  port_.close(link);
  nodes_.erase(link);
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

void Controller::tell(const std::string& line) {
  port_.notice(line);
  if (!options_.tell_nodes) return;
  for (const auto& [link, node] : nodes_) {
    if (node.joined) port_.send(link, JobMessage::notice, roster_.generation, line);
  }
}

std::string Controller::nodes_left() const {
  return count_text(std::min(membership_.present(), options_.membership.max_nodes), "node");
}

std::string Controller::node_text(const Node& node) const {
  return node.host.empty() ? "a node" : node.host;
}

}  // namespace mtl
