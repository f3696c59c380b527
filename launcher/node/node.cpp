#include "launcher/node/node.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/signals.h"
#include "launcher/node/node_generation.h"
#include "launcher/node/node_losses.h"
#include "launcher/node/node_offer.h"
#include "launcher/node/voice.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Node {
 public:
  explicit Node(const NodeOptions& options)
      : options_(options),
        hub_(*options.hub),
        link_(options.link),
        give_up_(Clock::now() + options.join_timeout),
        voice_(options.ears) {}

  NodeResult run() {
    const SignalsHeld held;
    if (options_.opened) on_event(*options_.opened);
    while (!result_) {
      if (assign_) {
        run_assigned();
      } else {
        for (const int signal : wait()) raise(signal);  // for the agent
      }
    }
    return std::move(*result_);
  }

 private:
  // --- between generations

  // Until there is a generation to run, or nothing more to wait for. Gives the signals that came
  // too late for this.
  std::vector<int> wait() {
    SignalPipe signals(true);
    while (waiting()) {
      pollfd polled[2] = {{signals.fd(), POLLIN, 0}, {hub_.fd(), POLLIN, 0}};
      poll(polled, 2, -1);
      for (const int signal : signals.take()) on_signal(signal);
      while (waiting()) {
        const std::optional<LinkEvent> event = hub_.next();
        if (!event) break;
        if (event->link == link_) on_event(*event);
      }
    }
    SignalsHeld::hold();
    return signals.take();
  }

  bool waiting() const { return !result_ && !assign_; }

  void on_signal(int signal) {
    if (signal == SIGTSTP) {
      if (!std::exchange(told_not_stopped_, true)) voice_.notice(kNotStopped);
      return;
    }
    if (signal == SIGUSR1 || signal == SIGQUIT) return;
    send(JobMessage::interrupted,
         encode(InterruptedMessage{signal, std::chrono::system_clock::now()}));
    if (!opened_ || interrupted_) {
      result_ = {.exit_code = 128 + signal,
                 .report = {{.code = "run.stopped",
                             .what = "stopped on request before the job had started",
                             .severity = Diagnostic::Severity::warning}},
                 .controller_lost = false};
    }
    interrupted_ = true;  // the controller says when it is over; once more = at once
  }

  void on_event(const LinkEvent& event) {
    switch (event.kind) {
      case LinkEvent::opened:
        opened_ = true;
        local_address_ = event.local_address;
        return hello();
      case LinkEvent::lost:
        if (!opened_ && dial_again(event)) return;
        if (!opened_) throw cannot_join(event, options_.controller);
        return end_without_controller(
            launcher_lost(event),
            interrupted_ ? 128 + SIGTERM : static_cast<int>(Exit::run_failed));
      case LinkEvent::arrived:
        return take(event.message);
      case LinkEvent::turned_away:
        return;
    }
  }

  // Whether it is worth another attempt: the rendezvous may start later than we, and its name be
  // known later still.
  bool dial_again(const LinkEvent& event) {
    const bool patient = event.loss == LinkEvent::refused || event.loss == LinkEvent::unreachable ||
                         event.loss == LinkEvent::unknown_name;
    const auto left = std::chrono::ceil<milliseconds>(give_up_ - Clock::now());
    if (!options_.redial || !patient || left.count() <= 0) return false;
    voice_.notice(
        fmt::format("waiting for the rendezvous at {}: {}", options_.controller, event.reason));
    link_ = options_.redial(std::min<milliseconds>(left, kNextWord));
    return true;
  }

  void end_without_controller(Diagnostic why, int exit_code = static_cast<int>(Exit::run_failed)) {
    result_ = {.exit_code = exit_code, .report = {std::move(why)}, .controller_lost = true};
  }

  // --- joining

  void hello() {
    HelloMessage message{.version = options_.version,
                         .host = options_.host.empty() ? host_name() : options_.host,
                         .offer = {},
                         .dead_after = hub_.dead_after(),
                         .position = options_.position,
                         .nodes = options_.said_nodes,
                         .ranks = options_.said_ranks};
    if (options_.job) message.offer = offer(*options_.job);
    send(JobMessage::hello, encode(message));
  }

  NodeOffer offer(const NodeJob& job) {
    job_ = job;
    prepare_node(*job_);
    port_.emplace(job_->master_port);
    return offer_of(*job_, options_.rank, port_->port(),
                    {.link_address = local_address_,
                     .on_loopback = options_.on_loopback,
                     .by_ssh = options_.remote});
  }

  void take(const LinkMessage& message) {
    switch (static_cast<JobMessage>(message.kind)) {
      case JobMessage::prepare:
        if (const auto job = decode_node_job(message.body)) join(*job);
        return;
      case JobMessage::refuse:
        if (auto why = decode_diagnostics(message.body)) {
          // The launcher knows, and srun would end the others for it, who have not said yet what is
          // wrong with them.
          result_ = {.exit_code = options_.remote ? 0 : static_cast<int>(Exit::environment),
                     .report = std::move(*why),
                     .controller_lost = false};
        }
        return;
      case JobMessage::assign:
        if (auto assign = decode_assign(message.body)) {
          if (assign->node_rank >= 0 &&
              assign->node_rank < static_cast<int>(assign->roster.nodes.size())) {
            assign_ = std::move(*assign);
          }
        }
        return;
      case JobMessage::notice:
        return voice_.notice(message.body);
      case JobMessage::finish:
        if (auto finish = decode_finish(message.body)) {
          result_ = {.exit_code = finish->exit_code,
                     .report = std::move(finish->report),
                     .controller_lost = false};
        }
        return;
      default:
        return;
    }
  }

  void join(const NodeJob& job) {
    try {
      send(JobMessage::join, encode(offer(job)));
    } catch (const Error& error) {
      send(JobMessage::problems, encode(ProblemsMessage{.exit_code = static_cast<int>(error.exit()),
                                                        .errors = error.diagnostics()}));
    }
  }

  // --- a generation

  void run_assigned() {
    const AssignMessage assign = *std::exchange(assign_, std::nullopt);
    NodeGeneration generation(hub_, link_, assign,
                              [this](const LinkMessage& message) { take(message); });
    const JobEars here = ears_here();
    generation.run(*job_, *port_, options_.remote ? nullptr : &here);
    const std::optional<LinkEvent>& lost = generation.lost();
    if (generation.lease_ended()) {
      end_without_controller(lease_is_over(lost ? lost->reason : ""));
    } else if (lost) {
      end_without_controller(launcher_lost(*lost));
    }
  }

  // By the voice, which notices come to as well: these are called from the threads of the agent.
  JobEars ears_here() {
    JobEars ears;
    if (options_.ears.on_output) {
      ears.on_output = [this](int rank, bool is_stderr, std::string_view line) {
        voice_.output(rank, is_stderr, std::string(line) + "\n");
      };
    }
    ears.on_notice = [this](std::string_view line) { voice_.notice(line); };
    ears.on_line = [this](std::string_view line) { voice_.line(line); };
    return ears;
  }

  // Of no generation.
  void send(JobMessage kind, std::string body) {
    hub_.send(link_, {static_cast<uint16_t>(kind), 0, std::move(body)});
  }

  const NodeOptions& options_;
  LinkHub& hub_;
  LinkId link_;
  const Clock::time_point give_up_;
  Voice voice_;
  std::optional<NodeJob> job_;
  std::optional<ReservedPort> port_;
  std::optional<AssignMessage> assign_;  // a generation that has not begun
  std::optional<NodeResult> result_;
  std::string local_address_;
  bool opened_ = false;
  bool interrupted_ = false;
  bool told_not_stopped_ = false;
};

}  // namespace

NodeResult run_node(const NodeOptions& options) {
  return Node(options).run();
}

}  // namespace mtl
