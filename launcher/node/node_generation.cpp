#include "launcher/node/node_generation.h"

#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "launcher/node/node_offer.h"

namespace mtl {

NodeGeneration::NodeGeneration(LinkHub& hub, LinkId link, const AssignMessage& assign,
                               std::function<void(const LinkMessage&)> on_other)
    : hub_(hub),
      link_(link),
      assign_(assign),
      on_other_(std::move(on_other)),
      unended_(assign.roster.nodes[static_cast<size_t>(assign.node_rank)].slots) {}

void NodeGeneration::run(const NodeJob& job, const ReservedPort& port, const JobEars* ears) {
  if (ears == nullptr) relay_.emplace(hub_, link_, assign_.roster.generation);
  const StoppedMessage stopped = run_ranks(job, port, ears != nullptr ? *ears : ears_over_link());
  relay_.reset();
  if (lease_ended_) {
    // Not a word of having stopped. To the controller it is a loss, also if it has not noticed any
    // silence.
    hub_.close(link_);
  } else {
    send(JobMessage::stopped, encode(stopped));
  }
}

StoppedMessage NodeGeneration::run_ranks(const NodeJob& job, const ReservedPort& port,
                                         const JobEars& ears) {
  StoppedMessage stopped;
  try {
    // Where each node was typed, this is the first that it hears of the run directory.
    if (assign_.program) look_for_files(*assign_.program);
    stopped.warnings = run_generation(job, assign_, port, ears, this).warnings;
  } catch (const Error& error) {
    stopped.errors = error.diagnostics();
    stopped.exit_code = static_cast<int>(error.exit());
  }
  return stopped;
}

// Called from the threads of the agent.
JobEars NodeGeneration::ears_over_link() {
  JobEars ears;
  ears.on_output = [this](int rank, bool is_stderr, std::string_view line) {
    relay_->line(rank, is_stderr, line);
  };
  ears.on_notice = [this](std::string_view line) { send(JobMessage::notice, std::string(line)); };
  ears.on_line = [this](std::string_view line) { send(JobMessage::line, std::string(line)); };
  return ears;
}

AgentControl::Command NodeGeneration::read() {
  while (const std::optional<LinkEvent> event = hub_.next()) {
    if (event->link != link_) continue;
    if (event->kind == LinkEvent::lost) return on_lost(*event);
    if (event->kind != LinkEvent::arrived) continue;
    if (const std::optional<Command> command = order(event->message)) return *command;
  }
  return {};
}

std::optional<AgentControl::Command> NodeGeneration::order(const LinkMessage& message) {
  const auto kind = static_cast<JobMessage>(message.kind);
  if (kind != JobMessage::stop && kind != JobMessage::signal) {
    on_other_(message);
    return {};
  }
  if (message.generation != assign_.roster.generation) return {};
  if (kind == JobMessage::signal) {
    const auto signal = decode_number(message.body);
    if (!signal) return {};
    return Command{.kind = Command::pass_on, .signal = static_cast<int>(*signal)};
  }
  const auto stop = decode_stop(message.body);
  if (!stop) return {};
  hurry();
  if (stop->kill) return Command{.kind = Command::kill};
  return Command{.kind = Command::stop, .signal = stop->signal, .grace = stop->grace};
}

AgentControl::Command NodeGeneration::on_lost(const LinkEvent& event) {
  lost_ = event;
  if (event.loss == LinkEvent::overflow && relay_) {
    // The link is gone, and the launcher sees only that: our stderr is what still gets there.
    fmt::print(stderr, "mtl agent: the launcher was lost: {}\n", event.reason);
  }
  // At once: whoever counts us as lost may already go on without us.
  return {.kind = Command::kill, .why = "the launcher is gone (" + event.reason + ")"};
}

void NodeGeneration::started(const WorkerCommand& worker, int pid) {
  send(JobMessage::started, fmt::format("{} {}", worker.rank, pid));
}

void NodeGeneration::ended(const WorkerEnd& end) {
  send(JobMessage::ended, encode(end));
  unended_ -= end.ranks;
  if (unended_ <= 0 && relay_) relay_->ranks_ended();
}

void NodeGeneration::interrupted(int signal) {
  hurry();
  send(JobMessage::interrupted,
       encode(InterruptedMessage{signal, std::chrono::system_clock::now()}));
}

void NodeGeneration::lease_over() {
  lease_ended_ = true;
  // Where it hears us still, and it was the launcher that stood still.
  send(JobMessage::unheard, "");
}

// The ranks are to end: who waits for that is not kept waiting by what they have printed.
void NodeGeneration::hurry() {
  if (relay_) relay_->hurry();
}

void NodeGeneration::send(JobMessage kind, std::string body) {
  hub_.send(link_, {static_cast<uint16_t>(kind), assign_.roster.generation, std::move(body)});
}

}  // namespace mtl
