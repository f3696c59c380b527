#include "launcher/node.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/output_relay.h"
#include "launcher/placement.h"
#include "launcher/program.h"
#include "launcher/signals.h"
#include "launcher/voice.h"
#include "rendezvous/network.h"
#include "rendezvous/store.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Diagnostic launcher_lost(const LinkEvent& event) {
  return {.code = "launch.controller_lost",
          .what = fmt::format("the launcher of this job is gone ({}); the ranks of {} were ended",
                              event.reason, host_name()),
          .help =
              "its terminal or log says more; start the job again to go on from the last "
              "checkpoint"};
}

// The keeper has killed the ranks because the lease had ended; `reason`: what the link says of it.
Diagnostic lease_over(const std::string& reason) {
  return {.code = "launch.controller_lost",
          .what = fmt::format("the launcher of this job could not be reached in time{}, so the "
                              "ranks of {} were killed: the others may go on without them",
                              reason.empty() ? "" : " (" + reason + ")", host_name()),
          .help =
              "this process or its machine stood still (Ctrl-Z, SIGSTOP, sleep, out of memory) "
              "or the network did; --dead_after S allows longer gaps"};
}

Error cannot_join(const LinkEvent& event, const std::string& where) {
  switch (event.loss) {
    case LinkEvent::wrong_token:
      return Error(Exit::environment,
                   {.code = "rendezvous.auth",
                    .what = fmt::format("the rendezvous at {} has another token than we", where),
                    .help = "it belongs to another run: give every node of a job the same "
                            "--token_file and --rdzv_id, and every job its own port"});
    case LinkEvent::wrong_version:
      return Error(Exit::environment,
                   {.code = "launch.version",
                    .what = fmt::format(
                        "the rendezvous at {} speaks another version of the protocol", where),
                    .help = "install the same version of mtl on all nodes (see: mtl --version)"});
    default:
      return Error(
          event.loss == LinkEvent::closed ? Exit::run_failed : Exit::environment,
          {.code = "rendezvous.connect",
           .what = fmt::format("cannot join the rendezvous at {}: {}", where, event.reason),
           .help = "start the same command on node 0 (machine_rank 0), and check that this address "
                   "and port are reachable from here (firewall, main_process_ip)"});
  }
}

class Node;

// A signal that comes while nobody takes them, between this node's own ear and its agent's, waits
// until somebody does. One that comes when all is over has nothing left to ask for.
class SignalsHeld {
 public:
  SignalsHeld() : before_(hold()) {}
  ~SignalsHeld() {
    const sigset_t held = signals();
    const timespec at_once{};
    while (sigtimedwait(&held, nullptr, &at_once) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  static sigset_t hold() {
    const sigset_t held = signals();
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, &held, &before);
    return before;
  }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  static sigset_t signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
      sigaddset(&set, signal);
    return set;
  }
  const sigset_t before_;
};

// The controller's hand in run_agent.
class Control final : public AgentControl {
 public:
  explicit Control(Node& node) : node_(node) {}
  int fd() const override;
  Command read() override;
  void started(const WorkerCommand& worker, int pid) override;
  void ended(const WorkerEnd& end) override;
  void interrupted(int signal) override;
  std::optional<std::chrono::nanoseconds> lease_end() const override;
  void lease_over() override;

 private:
  Node& node_;
};

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
        wait();
      }
    }
    return std::move(*result_);
  }

  // --- within run_agent

  int fd() const { return hub_.fd(); }
  std::optional<std::chrono::nanoseconds> lease_end() const { return hub_.lease_end(link_); }
  void end_lease() {
    lease_over_ = true;
    // Where it hears us still, and it was the launcher that stood still.
    if (assign_) send(JobMessage::unheard, "");
  }

  AgentControl::Command next_command() {
    using Command = AgentControl::Command;
    while (const std::optional<LinkEvent> event = hub_.next()) {
      if (event->link != link_) continue;
      if (event->kind == LinkEvent::lost) {
        lost_ = *event;
        if (event->loss == LinkEvent::overflow) tell_of_overflow(*event);
        // At once: whoever counts us as lost may already go on without us.
        return {.kind = Command::kill, .why = "the launcher is gone (" + event->reason + ")"};
      }
      if (event->kind != LinkEvent::arrived) continue;
      const LinkMessage& message = event->message;
      switch (static_cast<JobMessage>(message.kind)) {
        case JobMessage::stop: {
          const auto stop = decode_stop(message.body);
          if (!stop || message.generation != generation()) break;
          hurry();
          if (stop->kill) return {.kind = Command::kill, .why = {}};
          return {.kind = Command::stop, .signal = stop->signal, .grace = stop->grace, .why = {}};
        }
        case JobMessage::signal: {
          const auto signal = decode_number(message.body);
          if (!signal || message.generation != generation()) break;
          return {.kind = Command::pass_on, .signal = static_cast<int>(*signal), .why = {}};
        }
        default:
          take(message);
      }
    }
    return {};
  }

  // The ranks are to end: who waits for that is not kept waiting by what they have printed.
  void hurry() {
    if (relay_) relay_->hurry();
  }
  void ended(const WorkerEnd& end) {
    send(JobMessage::ended, encode(end));
    unended_ -= end.ranks;
    if (unended_ <= 0 && relay_) relay_->ranks_ended();
  }

  void send(JobMessage kind, std::string body) {
    hub_.send(link_, {static_cast<uint16_t>(kind), generation(), std::move(body)});
  }

 private:
  // The link is gone, and the launcher sees only that: our stderr is what still gets there.
  void tell_of_overflow(const LinkEvent& event) const {
    if (options_.remote) fmt::print(stderr, "mtl agent: the launcher was lost: {}\n", event.reason);
  }

  int64_t generation() const { return assign_ ? assign_->roster.generation : 0; }

  // --- between generations

  void wait() {
    std::vector<int> unheard;
    listen(unheard);
    for (const int signal : unheard) raise(signal);  // for the agent
  }

  void listen(std::vector<int>& unheard) {
    SignalPipe signals(true);
    while (!result_ && !assign_) {
      pollfd polled[2] = {{signals.fd(), POLLIN, 0}, {hub_.fd(), POLLIN, 0}};
      poll(polled, 2, -1);
      for (const int signal : signals.take()) on_signal(signal);
      while (!result_ && !assign_) {
        const std::optional<LinkEvent> event = hub_.next();
        if (!event) break;
        if (event->link == link_) on_event(*event);
      }
    }
    SignalsHeld::hold();  // the pipe's end puts the mask back, and it holds them too
    unheard = signals.take();
  }

  // Whether it is worth another attempt: the rendezvous may start later than we, and its name be
  // known later still.
  bool dial_again(const LinkEvent& event) {
    const bool patient = event.loss == LinkEvent::refused || event.loss == LinkEvent::unreachable ||
                         event.loss == LinkEvent::unknown_name;
    const auto left = std::chrono::ceil<milliseconds>(give_up_ - Clock::now());
    if (!options_.redial || !patient || left.count() <= 0) return false;
    notice(fmt::format("waiting for the rendezvous at {}: {}", options_.controller, event.reason));
    link_ = options_.redial(std::min<milliseconds>(left, kNextWord));
    return true;
  }

  void on_signal(int signal) {
    if (signal == SIGTSTP) {
      if (!std::exchange(told_not_stopped_, true)) notice(kNotStopped);
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
        if (interrupted_) {
          result_ = {.exit_code = 128 + SIGTERM,
                     .report = {launcher_lost(event)},
                     .controller_lost = true};
        } else {
          result_ = {.exit_code = static_cast<int>(Exit::run_failed),
                     .report = {launcher_lost(event)},
                     .controller_lost = true};
        }
        return;
      case LinkEvent::arrived:
        return take(event.message);
      case LinkEvent::turned_away:
        return;
    }
  }

  void hello() {
    HelloMessage message{.version = options_.version,
                         .host = options_.host.empty() ? host_name() : options_.host,
                         .offer = {},
                         .dead_after = hub_.dead_after(),
                         .position = options_.position};
    if (options_.job) {
      job_ = *options_.job;
      prepare();
      message.offer = offer();
    }
    send(JobMessage::hello, encode(message));
  }

  void take(const LinkMessage& message) {
    switch (static_cast<JobMessage>(message.kind)) {
      case JobMessage::prepare: {
        const auto job = decode_node_job(message.body);
        if (!job) return;
        job_ = *job;
        try {
          prepare();
          send(JobMessage::join, encode(offer()));
        } catch (const Error& error) {
          send(JobMessage::problems, encode(error.diagnostics()));
        }
        return;
      }
      case JobMessage::refuse:
        if (auto why = decode_diagnostics(message.body)) {
          result_ = {.exit_code = static_cast<int>(Exit::environment),
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
        return notice(message.body);
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

  // False if the program itself is missing.
  static bool look_for_files(const JobProgram& program, Diagnostics& problems) {
    bool is_there = true;
    for (const std::string& file : program.needed_files) {
      // A program may be run without being readable.
      const bool is_program = !program.argv.empty() && file == program.argv.front();
      if (access(file.c_str(), is_program ? F_OK : R_OK) == 0) continue;
      is_there = is_there && !is_program;
      problems.add({.code = "launch.remote_files",
                    .what = "cannot read " + file,
                    .help = "it has to be on every host, at the same path (a shared file system, "
                            "or a copy); run.dir of a train.yaml has to be shared"});
    }
    return is_there;
  }

  // Whatever would keep the workers from starting is found before anything starts anywhere.
  void prepare() {
    Diagnostics problems;
    const std::string& folder = job_->program.working_directory;
    if (!folder.empty() && chdir(folder.c_str()) != 0) {
      problems.add({.code = "launch.remote_files",
                    .what = "there is no folder " + folder,
                    .help = "start from a folder that all hosts share, or copy it there"});
    } else {
      const std::vector<std::string>& argv = job_->program.argv;
      if (look_for_files(job_->program, problems) && !argv.empty()) {
        try {
          WorkerCommand command;
          command.argv = argv;
          command.env = job_->program.env;
          prepare_launch(command);
        } catch (const Error& error) {
          for (const Diagnostic& diagnostic : error.diagnostics()) problems.add(diagnostic);
        }
      }
    }
    try {
      job_->slots = node_slots(*job_);
      if (!job_->interface.empty()) addresses_of(job_->interface);
    } catch (const Error& error) {
      for (const Diagnostic& diagnostic : error.diagnostics()) problems.add(diagnostic);
    }
    problems.throw_if_errors(Exit::environment);
    port_.emplace(job_->master_port);
  }

  NodeOffer offer() const {
    NodeOffer offer;
    offer.host = job_->host.empty() ? host_name() : job_->host;
    offer.key = options_.rank >= 0    ? fmt::format("rank {}", options_.rank)
                : job_->position >= 0 ? fmt::format("host {}", job_->position)
                                      : make_token().substr(0, 16);
    offer.slots = job_->slots;
    offer.rank = options_.rank;
    offer.position = job_->position;
    offer.addresses = addresses();
    offer.port = port_->port();
    offer.machine = machine_identity();
    offer.on_gpus = !job_->config.use_cpu && !inspect_hardware(false).gpus.empty();
    return offer;
  }

  // Best first: what the user chose, the one that the controller reaches us by, all others.
  std::vector<std::string> addresses() const {
    std::vector<std::string> found;
    const auto add = [&](const std::string& address) {
      if (!address.empty() && std::find(found.begin(), found.end(), address) == found.end()) {
        found.push_back(address);
      }
    };
    if (!job_->interface.empty()) {
      for (const LocalAddress& local : addresses_of(job_->interface)) add(local.address);
    }
    // A host's own name often means 127.0.1.1 there, where nobody else finds it.
    if (options_.on_loopback || !is_loopback(local_address_)) add(local_address_);
    // sshd's "client port server port": the address that the launcher reached us by.
    if (const char* connection = std::getenv("SSH_CONNECTION"); connection && options_.remote) {
      const std::string text = connection;
      const size_t begin = text.find(' ', text.find(' ') + 1);
      if (begin != std::string::npos) {
        add(text.substr(begin + 1, text.find(' ', begin + 1) - begin - 1));
      }
    }
    for (const LocalAddress& local : local_addresses()) {
      if (!local.is_loopback) add(local.address);
    }
    add(local_address_);
    add("127.0.0.1");
    return found;
  }

  // --- a generation

  void run_assigned() {
    StoppedMessage stopped;
    // From the threads of the agent, while notices come here.
    JobEars ears;
    if (!options_.remote) {
      if (options_.ears.on_output) {
        ears.on_output = [this](int rank, bool is_stderr, std::string_view line) {
          voice_.output(rank, is_stderr, std::string(line) + "\n");
        };
      }
      ears.on_notice = [this](std::string_view line) { voice_.notice(line); };
      ears.on_line = [this](std::string_view line) { voice_.line(line); };
    } else {
      relay_.emplace(hub_, link_, generation());
      unended_ = assign_->roster.nodes[static_cast<size_t>(assign_->node_rank)].slots;
      ears.on_output = [this](int rank, bool is_stderr, std::string_view line) {
        relay_->line(rank, is_stderr, line);
      };
      ears.on_notice = [this](std::string_view line) {
        send(JobMessage::notice, std::string(line));
      };
      ears.on_line = [this](std::string_view line) { send(JobMessage::line, std::string(line)); };
    }
    try {
      if (assign_->program) {
        // Where each node was typed, this is the first that it hears of the run directory.
        Diagnostics problems;
        look_for_files(*assign_->program, problems);
        problems.throw_if_errors(Exit::environment);
      }
      Control control(*this);
      const AgentResult result = run_generation(*job_, *assign_, *port_, ears, &control);
      stopped.warnings = result.warnings;
    } catch (const Error& error) {
      stopped.errors = error.diagnostics();
      stopped.exit_code = static_cast<int>(error.exit());
    }
    relay_.reset();
    if (lease_over_) {
      // Not a word of having stopped: the ranks did not do their part. To the controller it is a
      // loss, also if it has not noticed any silence.
      hub_.close(link_);
      result_ = {.exit_code = static_cast<int>(Exit::run_failed),
                 .report = {lease_over(lost_ ? lost_->reason : "")},
                 .controller_lost = true};
      return;
    }
    send(JobMessage::stopped, encode(stopped));
    assign_.reset();
    if (lost_) {
      result_ = {.exit_code = static_cast<int>(Exit::run_failed),
                 .report = {launcher_lost(*lost_)},
                 .controller_lost = true};
    }
  }

  void notice(const std::string& line) { voice_.notice(line); }

  friend class Control;
  const NodeOptions& options_;
  LinkHub& hub_;
  LinkId link_;
  const Clock::time_point give_up_;
  Voice voice_;
  std::optional<NodeJob> job_;
  std::optional<ReservedPort> port_;
  std::optional<AssignMessage> assign_;
  std::optional<OutputRelay> relay_;  // of a generation, if its output is shown elsewhere
  int unended_ = 0;                   // ranks of a generation
  std::optional<NodeResult> result_;
  std::optional<LinkEvent> lost_;
  std::string local_address_;
  bool opened_ = false;
  bool interrupted_ = false;
  bool lease_over_ = false;
  bool told_not_stopped_ = false;
};

int Control::fd() const {
  return node_.fd();
}
AgentControl::Command Control::read() {
  return node_.next_command();
}
void Control::started(const WorkerCommand& worker, int pid) {
  node_.send(JobMessage::started, fmt::format("{} {}", worker.rank, pid));
}
void Control::ended(const WorkerEnd& end) {
  node_.ended(end);
}
void Control::interrupted(int signal) {
  node_.hurry();
  node_.send(JobMessage::interrupted,
             encode(InterruptedMessage{signal, std::chrono::system_clock::now()}));
}
std::optional<std::chrono::nanoseconds> Control::lease_end() const {
  return node_.lease_end();
}
void Control::lease_over() {
  node_.end_lease();
}

}  // namespace

NodeResult run_node(const NodeOptions& options) {
  return Node(options).run();
}

}  // namespace mtl
