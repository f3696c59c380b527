// A job on hosts that this process reaches itself: an agent on each, by ssh, or as a child where
// the host is this one. The protocol runs over the agents' stdin and stdout, so nothing but ssh has
// to be open between here and there, its keys are the proof of who is who, and the end of the
// channel is the end of the far side's processes.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "common/shell_word.h"
#include "launcher/agent/signals.h"
#include "launcher/controller/controller_loop.h"
#include "launcher/job/job.h"
#include "launcher/ssh/fleet.h"
#include "launcher/system/own_program.h"
#include "launcher/system/system_error.h"
#include "rendezvous/network.h"
#include "rendezvous/store.h"

namespace mtl {

namespace {

// For a program of this host to say its first line.
constexpr int kLocalStartMs = 20'000;

std::vector<std::string> agent_arguments(const LaunchRequest& request) {
  return {"agent", "--stdio", "--dead_after",
          fmt::format("{}", static_cast<double>(request.dead_after.count()) / 1000)};
}

// The agent of this very host: a child, so that no sshd has to run here.
class LocalAgent {
 public:
  LocalAgent(const LaunchRequest& request, Fd& stream) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw system_error("cannot make a socket pair", errno);
    }
    stream = Fd(ends[0]);
    const Fd theirs(ends[1]);
    std::vector<std::string> words = agent_arguments(request);
    std::vector<char*> argv = {const_cast<char*>("mtl")};
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string program =
        request.remote_program.empty() ? "/proc/self/exe" : request.remote_program;
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      setsid();  // a Ctrl-C at the terminal is the launcher's business
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent || dup2(theirs.get(), 0) < 0 || dup2(theirs.get(), 1) < 0) _exit(1);
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
      execvp(program.c_str(), argv.data());
      _exit(127);
    }
    if (pid_ < 0) throw system_error("cannot start a process", errno);
  }
  // It ends by itself when its stream does.
  ~LocalAgent() {
    for (int i = 0; i < 500; ++i) {
      if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
      usleep(10'000);
    }
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  LocalAgent(const LocalAgent&) = delete;
  LocalAgent& operator=(const LocalAgent&) = delete;

 private:
  pid_t pid_ = -1;
};

enum class Magic { came, did_not_come, interrupted };

// Bytes up to and with the magic line; the fleet does the same for its hosts. `interrupted` is
// asked when something can be read from `signals`.
Magic read_magic(int fd, int signals, const std::function<bool()>& interrupted) {
  const std::string line = std::string(kAgentMagic) + "\n";
  std::string got;
  char c = 0;
  while (got.size() < line.size()) {
    pollfd waiting[2] = {{fd, POLLIN, 0}, {signals, POLLIN, 0}};
    if (poll(waiting, 2, kLocalStartMs) == 0) return Magic::did_not_come;
    if (waiting[1].revents != 0 && interrupted()) return Magic::interrupted;
    if (waiting[0].revents == 0) continue;
    if (read(fd, &c, 1) != 1) return Magic::did_not_come;
    got += c;
  }
  return got == line ? Magic::came : Magic::did_not_come;
}

class HostsJob {
 public:
  explicit HostsJob(const JobOptions& options)
      : options_(options),
        request_(options.request),
        hub_(make_link_hub({.token = "-", .dead_after = request_.dead_after})),
        port_(*hub_, options.ears),
        heard_(port_, request_.grace, request_.warning_grace) {}

  JobOutcome run() {
    SignalPipe signals(true);
    ControllerOptions policy = controller_options(options_);
    for (const Host& host : request_.hosts) {
      policy.membership.expected.push_back(host.name);
      policy.listed_at.push_back(host.place);
    }
    Controller controller(std::move(policy), port_, std::chrono::steady_clock::now());
    controller_ = &controller;
    job_ = node_job(options_);
    if (job_.token.empty()) job_.token = make_token();

    if (start_here(signals)) start_there();
    std::vector<LoopSource> sources = {{signals.fd(), [&] { heard_.hear(signals, *controller_); }}};
    if (fleet_) {
      sources.push_back({fleet_->fd(), [&] { on_fleet(); }});
      for (const Diagnostic& warning : fleet_->warnings()) port_.notice(warning.what);
    }
    std::optional<JobOutcome> outcome =
        drive(controller, *hub_, sources, [&] { return heard_.urged() > 2; });
    // The agents' streams end here, and with them whatever of the job is still there.
    hub_.reset();
    fleet_.reset();
    agents_.clear();
    if (outcome) return std::move(*outcome);
    JobOutcome abandoned;
    abandoned.exit_code = 128 + SIGINT;
    abandoned.interrupted = true;
    return abandoned;
  }

 private:
  NodeJob job_of(size_t index) const {
    const Host& host = request_.hosts[index];
    NodeJob job = job_;
    job.position = static_cast<int>(index);
    job.host = host.name;
    job.logs.host = host.name;
    if (host.slots > 0) job.slots = host.slots;
    return job;
  }

  void adopt(size_t index, Fd stream) {
    const LinkId link = hub_->adopt(std::move(stream), Fd(), false);
    controller_->expect(link, request_.hosts[index].name, job_of(index));
  }

  // False if the job was asked to stop in the meantime: nothing more is to be started.
  bool start_here(SignalPipe& signals) {
    for (size_t i = 0; i < request_.hosts.size(); ++i) {
      if (!is_this_host(request_.hosts[i])) continue;
      Fd stream;
      agents_.push_back(std::make_unique<LocalAgent>(request_, stream));
      const Magic magic = read_magic(stream.get(), signals.fd(), [&] {
        heard_.hear(signals, *controller_);
        return heard_.urged() > 0;
      });
      if (magic == Magic::interrupted) return false;
      if (magic == Magic::did_not_come) {
        throw Error(Exit::environment, {.code = "launch.agent",
                                        .what = "the agent of this host did not start",
                                        .help = "see its message above"});
      }
      adopt(i, std::move(stream));
    }
    return true;
  }

  void start_there() {
    FleetOptions fleet;
    for (size_t i = 0; i < request_.hosts.size(); ++i) {
      if (is_this_host(request_.hosts[i])) continue;
      fleet.hosts.push_back(request_.hosts[i]);
      index_of_.push_back(i);
    }
    if (fleet.hosts.empty()) return;
    fleet.command = "exec " + shell_word(request_.remote_program.empty() ? own_program()
                                                                         : request_.remote_program);
    for (const std::string& word : agent_arguments(request_)) fleet.command += " " + word;
    fleet.magic = kAgentMagic;
    fleet.config_file = request_.ssh_config;
    fleet.ssh_command = request_.ssh_command;
    // Who expects long silences expects a slow start too: on a line that loses 30 % the exchange of
    // keys alone may take 20 s.
    fleet.connect_timeout = std::max(fleet.connect_timeout, 2 * request_.dead_after);
    fleet_ = start_fleet(fleet);
  }

  void on_fleet() {
    while (std::optional<FleetEvent> event = fleet_->next()) {
      const size_t index = index_of_[event->host];
      const std::string& name = request_.hosts[index].name;
      switch (event->kind) {
        case FleetEvent::started:
          adopt(index, std::move(event->stream));
          break;
        case FleetEvent::failed:
          controller_->host_failed(
              static_cast<int>(index),
              event->error.value_or(Diagnostic{.code = "ssh.connect", .what = name + " failed"}),
              std::chrono::steady_clock::now());
          break;
        case FleetEvent::ended:  // the link tells the rest
          if (!event->signal.empty()) {
            port_.notice(fmt::format("{}: mtl was killed there by SIG{}", name, event->signal));
          }
          if (!event->stderr_tail.empty() &&
              (event->exit_code.value_or(0) != 0 || !event->signal.empty())) {
            port_.notice(name + ": " + event->stderr_tail);
          }
          break;
      }
    }
  }

  const JobOptions& options_;
  const LaunchRequest& request_;
  std::unique_ptr<LinkHub> hub_;
  HubPort port_;
  JobSignals heard_;
  Controller* controller_ = nullptr;
  NodeJob job_;
  std::vector<std::unique_ptr<LocalAgent>> agents_;
  std::unique_ptr<SshFleet> fleet_;
  std::vector<size_t> index_of_;  // the fleet's hosts in request_.hosts
};

}  // namespace

JobOutcome run_hosts_job(const JobOptions& options) {
  return HostsJob(options).run();
}

}  // namespace mtl
