#include "launcher/agent.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/agent_output.h"
#include "launcher/keeper.h"
#include "launcher/oom.h"
#include "launcher/program.h"
#include "launcher/signals.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRequeue = static_cast<int>(Exit::requeue);
// Helpers that outlive their finished workers get TERM and this long.
constexpr std::chrono::milliseconds kLeftoverGrace{2'000};
// From KILL to giving up on a process in uninterruptible sleep.
constexpr std::chrono::milliseconds kKillWait{5'000};

// With 0, 1 or 2 closed the next pipe would sit there and be taken for the terminal.
class StandardDescriptors {
 public:
  StandardDescriptors() {
    for (int fd = 0; fd <= 2; ++fd) {
      if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) == fd) filled_.push_back(fd);
    }
  }
  ~StandardDescriptors() {
    for (int fd : filled_) close(fd);
  }
  StandardDescriptors(const StandardDescriptors&) = delete;
  StandardDescriptors& operator=(const StandardDescriptors&) = delete;

 private:
  std::vector<int> filled_;
};

struct Worker {
  int pid = 0;
  bool ended = false;
};

class Agent {
 public:
  explicit Agent(const AgentOptions& options) : options_(options) {}

  AgentResult run() {
    result_.started = std::chrono::system_clock::now();
    {
      SignalPipe signals;
      start();
      while (!gone_) turn(signals);
      output_->finish();
      keeper_.reset();
    }
    // From here a Ctrl-C ends this process as before: nothing is left to stop, and what is queued
    // may wait for a terminal that somebody has stopped.
    output_->close(result_.warnings);
    if (start_error_) throw Error(*start_error_);
    conclude();
    return std::move(result_);
  }

 private:
  // --- start
  // --------------------------------------------------------------------------------------

  void start() {
    for (const WorkerCommand& command : options_.workers) {
      launches_.push_back(prepare_launch(command));
    }
    workers_.resize(launches_.size());
    output_ = std::make_unique<AgentOutput>(options_, launches_);
    keeper_ = std::make_unique<Keeper>(launches_);  // forked before there are threads of ours
    output_->start();
  }

  // --- the loop
  // -----------------------------------------------------------------------------------

  void turn(SignalPipe& signals) {
    std::vector<pollfd> polled = {{signals.fd(), POLLIN, 0}, {keeper_->fd(), POLLIN, 0}};
    const size_t first_stream = polled.size();
    std::optional<Clock::time_point> until = deadline_;
    output_->add_to(polled, until);
    int timeout = -1;
    if (until) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now());
      timeout = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
    }
    if (poll(polled.data(), polled.size(), timeout) < 0) {
      if (errno != EINTR) throw system_error("cannot wait for the workers", errno);
      return;
    }
    if (polled[0].revents != 0) {
      for (int signal : signals.take()) on_signal(signal);
    }
    output_->read_ready(polled, first_stream);
    if (polled[1].revents != 0) read_events();
    if (deadline_ && Clock::now() >= *deadline_) on_deadline();
  }

  void read_events() {
    KeeperEvent event;
    for (;;) {
      switch (keeper_->receive(event)) {
        case Keeper::Receive::nothing:
          return;
        case Keeper::Receive::event:
          on_event(event);
          continue;
        case Keeper::Receive::closed:
          break;
      }
      if (!gone_) {
        gone_ = true;  // the workers are dying with it, and ~Keeper ends their descendants
        if (!start_error_) {
          start_error_ = Error(Exit::environment,
                               Diagnostic{.code = "launch.keeper_died",
                                          .what = "the process that keeps the workers was killed; "
                                                  "the workers were ended with it",
                                          .help = "look for an out-of-memory kill: dmesg"});
        }
      }
      return;
    }
  }

  void on_event(const KeeperEvent& event) {
    const auto index = static_cast<size_t>(event.index);
    switch (event.kind) {
      case KeeperEvent::spawned:
        workers_[index].pid = event.pid;
        return;
      case KeeperEvent::not_spawned:
        if (!start_error_) start_error_ = system_error("cannot start a process", event.status);
        workers_[index].ended = true;
        kill_all();
        return;
      case KeeperEvent::not_executed:
        if (!start_error_) start_error_ = exec_error(launches_[index], event.status);
        kill_all();
        return;
      case KeeperEvent::ended:
        return on_end(index, event);
      case KeeperEvent::all_gone:
        gone_ = true;
        return;
    }
  }

  void on_end(size_t index, const KeeperEvent& event) {
    Worker& worker = workers_[index];
    worker.ended = true;
    output_->drain(index);
    WorkerEnd end;
    end.rank = options_.workers[index].rank;
    end.ranks = options_.workers[index].ranks;
    end.pid = worker.pid;
    end.signal = event.signal;
    end.exit_code = event.signal != 0 ? 128 + event.signal : event.status;
    end.stopped_by_us = stop_signal_ != 0;
    using Nanoseconds = std::chrono::nanoseconds;
    end.when = std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(
            Nanoseconds(event.when_ns)));
    end.last_lines = output_->last_lines(index);
    end.log = output_->log_path(index);
    if (event.signal == SIGKILL && stop_signal_ != SIGKILL) {
      if (std::string strike = oom_.strike(); !strike.empty()) end.notes.push_back(strike);
    }
    // After a stop, these are how a program obeys.
    const bool obeyed =
        stop_signal_ != 0 &&
        (end.exit_code == 0 || end.exit_code == kRequeue || end.exit_code == 128 + SIGTERM ||
         (stop_signal_ == SIGKILL && end.exit_code == 128 + SIGKILL));
    const bool requeue = end.exit_code == kRequeue;
    result_.ends.push_back(end);
    if (requeue && stop_signal_ == 0 && !deadline_) {
      // Somebody else asked it (a scheduler that signals every process). The others were asked
      // too: a TERM from here would be their second. They get the grace to follow.
      deadline_ = Clock::now() + options_.grace;
    }
    if (end.exit_code != 0 && !requeue && !obeyed && !start_error_) {
      if (!result_.first_failure) result_.first_failure = end;
      if (stop_signal_ == 0) {
        if (const size_t others = running(); others > 0) {
          notice(fmt::format("{} {}: asked {} to stop", ranks_name(end),
                             end.signal != 0 ? "was killed by " + signal_name(end.signal)
                                             : fmt::format("exited with code {}", end.exit_code),
                             ranks(others)));
        }
        stop();
      }
    }
    if (running() == 0 && stop_signal_ == 0) {  // all done: what they left behind goes too
      keeper_->send({KeeperCommand::sweep, SIGTERM});
      deadline_ = Clock::now() + std::min(options_.grace, kLeftoverGrace);
    }
  }

  // --- stopping
  // -----------------------------------------------------------------------------------

  void on_signal(int signal) {
    if (signal == SIGUSR1 || signal == SIGQUIT) {
      keeper_->send({KeeperCommand::signal_workers, signal});
      return;
    }
    result_.interrupted = true;
    if (interrupt_signal_ == 0) interrupt_signal_ = signal;
    if (running() == 0) {
      kill_all();  // only helpers of finished workers are left
    } else if (stop_signal_ == 0) {
      notice(fmt::format("{}: asked {} to stop (up to {:.3g} s; once more = kill at once)",
                         signal_name(signal), ranks(running()),
                         std::chrono::duration<double>(options_.grace).count()));
      stop();
    } else if (stop_signal_ != SIGKILL) {
      notice(fmt::format("{}: killed {}", signal_name(signal), ranks(running())));
      kill_all();
    }
  }

  void stop() {
    stop_signal_ = SIGTERM;
    // The workers themselves, not their helpers: a data loader must live until the checkpoint is
    // written. What a dead worker leaves behind gets its TERM then.
    keeper_->send({KeeperCommand::signal_workers, SIGTERM});
    keeper_->send({KeeperCommand::sweep, SIGTERM});
    deadline_ = Clock::now() + options_.grace;
  }

  void kill_all() {
    if (stop_signal_ == SIGKILL) return;
    stop_signal_ = SIGKILL;
    keeper_->send({KeeperCommand::sweep, SIGKILL});
    deadline_ = Clock::now() + kKillWait;
  }

  void on_deadline() {
    if (stop_signal_ == 0 && running() > 0) {  // ranks that did not follow one that said 75
      notice(fmt::format("{} did not stop with the others: asked to", ranks(running())));
      return stop();
    }
    if (stop_signal_ != SIGKILL) {
      if (running() > 0) notice(fmt::format("{} did not stop in time: killed", ranks(running())));
      return kill_all();
    }
    // Not even SIGKILL helps (a dead network disk, a driver): report it and go on.
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].ended) continue;
      WorkerEnd end;
      end.rank = options_.workers[i].rank;
      end.ranks = options_.workers[i].ranks;
      end.pid = workers_[i].pid;
      end.signal = SIGKILL;
      end.exit_code = 128 + SIGKILL;
      end.stopped_by_us = true;
      end.when = std::chrono::system_clock::now();
      end.last_lines = output_->last_lines(i);
      end.log = output_->log_path(i);
      end.notes.push_back("it does not die of SIGKILL: uninterruptible sleep, see /proc/" +
                          std::to_string(end.pid) + "/stack");
      result_.ends.push_back(end);
      result_.warnings.push_back(
          fmt::format("process {} of {} could not be killed", end.pid, ranks_name(end)));
    }
    gone_ = true;
  }

  // Ranks whose process has not ended.
  size_t running() const {
    size_t count = 0;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!workers_[i].ended) count += static_cast<size_t>(options_.workers[i].ranks);
    }
    return count;
  }

  static std::string ranks(size_t count) {
    return count == 1 ? "1 rank" : fmt::format("{} ranks", count);
  }

  void notice(std::string line) { output_->notice(std::move(line)); }

  // --- the result
  // ---------------------------------------------------------------------------------

  void conclude() {
    const auto& ends = result_.ends;
    const auto all = [&](auto predicate) {
      return std::all_of(ends.begin(), ends.end(), predicate);
    };
    const auto any = [&](auto predicate) {
      return std::any_of(ends.begin(), ends.end(), predicate);
    };
    const auto said_requeue = [](const WorkerEnd& end) { return end.exit_code == kRequeue; };
    const auto fine = [](const WorkerEnd& end) {
      return end.exit_code == 0 || end.exit_code == kRequeue;
    };
    if (all(fine) && any(said_requeue)) {
      result_.exit_code = kRequeue;
    } else if (result_.first_failure) {
      result_.exit_code = result_.first_failure->exit_code;
    } else if (!all(fine)) {
      result_.exit_code = 128 + (interrupt_signal_ != 0 ? interrupt_signal_ : SIGTERM);
    }
  }

  const AgentOptions& options_;
  AgentResult result_;
  OomWatch oom_;
  std::optional<Error> start_error_;
  std::vector<Launch> launches_;
  std::vector<Worker> workers_;
  int stop_signal_ = 0;  // what the workers were last asked with: 0, SIGTERM or SIGKILL
  int interrupt_signal_ = 0;
  std::optional<Clock::time_point> deadline_;
  bool gone_ = false;
  // The keeper ends before the output: its workers write there.
  std::unique_ptr<AgentOutput> output_;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace

AgentResult run_agent(const AgentOptions& options) {
  const StandardDescriptors standard;
  return Agent(options).run();
}

}  // namespace mtl
