#include "launcher/agent.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent_output.h"
#include "launcher/core_file.h"
#include "launcher/end_notes.h"
#include "launcher/keeper.h"
#include "launcher/oom.h"
#include "launcher/program.h"
#include "launcher/signals.h"
#include "launcher/standard_descriptors.h"
#include "launcher/stopped_watch.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRequeue = static_cast<int>(Exit::requeue);
// Helpers that outlive their finished workers get TERM and this long.
constexpr std::chrono::milliseconds kLeftoverGrace{2'000};
// From KILL to giving up on a process in uninterruptible sleep.
constexpr std::chrono::milliseconds kKillWait{5'000};
// Between two looks at a lease that is about to end.
constexpr std::chrono::nanoseconds kLeaseLook{5'000'000};

struct Worker {
  int pid = 0;
  bool ended = false;
  bool given_up = false;  // stopped by somebody: has failed and is being killed
  bool running() const { return !ended && !given_up; }
};

std::chrono::nanoseconds boot_time() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Python dies of an INT by that signal, but not while it still starts: then it says so, and exits
// with 1 ("Fatal Python error: init_import_site ...").
bool died_of_interrupt(const WorkerEnd& end) {
  return end.exit_code == 1 && !end.last_lines.empty() &&
         end.last_lines.back().starts_with("KeyboardInterrupt");
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options), stopped_(options.stopped_after) {}

  AgentResult run() {
    result_.started = std::chrono::system_clock::now();
    {
      SignalPipe signals(options_.control != nullptr);
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
      launches_.push_back(prepare_launch(command, launches_));
    }
    workers_.resize(launches_.size());
    output_ = std::make_unique<AgentOutput>(options_, launches_);
    if (options_.control) lease_ = options_.control->lease_end();
    keeper_ = std::make_unique<Keeper>(launches_, lease_);  // forked before our threads are there
    output_->start();
    oom_.emplace();  // reads some files: while the workers start
  }

  // --- the loop
  // -----------------------------------------------------------------------------------

  void turn(SignalPipe& signals) {
    std::vector<pollfd> polled = {
        {signals.fd(), POLLIN, 0}, {keeper_->fd(), POLLIN, 0}, {control_fd(), POLLIN, 0}};
    const size_t first_stream = polled.size();
    std::optional<Clock::time_point> until = deadline_;
    const std::optional<Clock::time_point> sample = next_sample();
    if (sample && (!until || *sample < *until)) until = sample;
    const std::optional<Clock::time_point> look = extend_lease();
    if (look && (!until || *look < *until)) until = look;
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
    // What the workers did of themselves comes before what somebody wants of them.
    if (polled[1].revents != 0) read_events();
    if (polled[2].revents != 0) read_control((polled[2].revents & POLLIN) != 0);
    if (sample && Clock::now() >= *sample) look_for_stopped();
    if (deadline_ && Clock::now() >= *deadline_) on_deadline();
  }

  // Hands the keeper the lease as it is now. Gives when to look again: after a quarter of what is
  // left, so that an extension is not missed however late it comes, and about once per heartbeat
  // while they are answered in time.
  std::optional<Clock::time_point> extend_lease() {
    if (!options_.control || stop_signal_ == SIGKILL) return {};
    const auto end = options_.control->lease_end();
    if (end && end != lease_ && keeper_->extend(*end)) lease_ = end;
    if (!lease_) return {};
    const std::chrono::nanoseconds left = *lease_ - boot_time();
    if (left.count() <= 0) return {};  // the keeper's word comes
    return Clock::now() + std::max(left / 4, kLeaseLook);
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
        if (options_.control) options_.control->started(options_.workers[index], event.pid);
        return;
      case KeeperEvent::not_spawned:
        workers_[index].ended = true;
        return on_start_error(system_error("cannot start a process", event.status));
      case KeeperEvent::not_executed:
        return on_start_error(exec_error(launches_[index], event.status));
      case KeeperEvent::not_bound:
        return on_start_error(bind_error(options_.workers[index], event.status));
      case KeeperEvent::ended:
        return on_end(index, event);
      case KeeperEvent::lease_over:
        return on_lease_over();
      case KeeperEvent::all_gone:
        gone_ = true;
        return;
    }
  }

  void on_start_error(const Error& error) {
    if (!start_error_) start_error_ = error;
    kill_all();
  }

  // --- ends
  // ---------------------------------------------------------------------------------------

  WorkerEnd end_of(size_t index) const {
    WorkerEnd end;
    end.rank = options_.workers[index].rank;
    end.ranks = options_.workers[index].ranks;
    end.local_rank = options_.workers[index].local_rank;
    end.pid = workers_[index].pid;
    end.when = std::chrono::system_clock::now();
    end.last_lines = output_->last_lines(index);
    end.log = output_->log_path(index);
    return end;
  }

  void record(const WorkerEnd& end) {
    result_.ends.push_back(end);
    if (options_.control) options_.control->ended(end);
  }

  void on_end(size_t index, const KeeperEvent& event) {
    Worker& worker = workers_[index];
    worker.ended = true;
    output_->drain(index);
    if (!worker.given_up) on_own_end(index, event);
    if (running() == 0 && stop_signal_ == 0) {  // all done: what they left behind goes too
      keeper_->send({KeeperCommand::sweep, SIGTERM});
      deadline_ = Clock::now() + std::min(options_.grace, kLeftoverGrace);
    }
  }

  void on_own_end(size_t index, const KeeperEvent& event) {
    WorkerEnd end = end_of(index);
    end.signal = event.signal;
    end.exit_code = event.signal != 0 ? 128 + event.signal : event.status;
    end.when = std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(
            std::chrono::nanoseconds(event.when_ns)));
    const bool reported = read_own_words(end, options_.workers[index].error_file);
    // Who wrote down its failure before it was asked to stop has failed by itself.
    const bool asked = stop_signal_ != 0 && !(reported && end.when < stop_time_);
    end.stopped_by_us = asked;
    if (asked && stop_signal_ == SIGINT && died_of_interrupt(end)) end.exit_code = 128 + SIGINT;
    if (event.signal == SIGKILL && stop_signal_ != SIGKILL) {
      if (std::string strike = oom_->strike(); !strike.empty()) end.notes.push_back(strike);
    }
    if (event.dumped_core != 0) {
      end.notes.push_back(core_note(launches_[index].program, end.pid));
    }
    const bool requeue = end.exit_code == kRequeue;
    record(end);
    if (requeue && stop_signal_ == 0 && !deadline_) {
      // Somebody else asked it (a scheduler that signals every process). The others were asked
      // too: a TERM from here would be their second. They get the grace to follow.
      deadline_ = Clock::now() + options_.grace;
    }
    if (end.exit_code == 0 || requeue || start_error_) return;
    if (!asked) return fail(end, reported);
    // After a stop, these are how a program obeys; and above us they know why they asked.
    const bool obeyed = end.exit_code == 128 + SIGTERM || end.exit_code == 128 + SIGINT ||
                        (stop_signal_ == SIGKILL && end.exit_code == 128 + SIGKILL);
    if (!obeyed && !stopped_by_control_) fail(end, reported);
  }

  // A rank failed by itself. The first to fail is the headline; `reported`: by its own account,
  // which is read only when it is dead and may be older than another's death.
  void fail(const WorkerEnd& end, bool reported) {
    const bool earlier = reported && result_.first_failure && !end.stopped_by_us &&
                         end.when < result_.first_failure->when;
    if (!result_.first_failure || earlier) result_.first_failure = end;
    if (stop_signal_ != 0) return;
    const bool at_once = options_.failure_grace.count() == 0;
    // With somebody above us, it is theirs to say, once for all nodes.
    if (const size_t others = running(); others > 0 && options_.control == nullptr) {
      notice(fmt::format("{} {}: {} {}{}", ranks_name(end), how_it_ended(end),
                         at_once ? "killed" : "asked", ranks(others), at_once ? "" : " to stop"));
    }
    if (at_once) return kill_all();
    stop(options_.failure_grace.count() < 0 ? options_.grace : options_.failure_grace);
  }

  // --- stopped workers
  // ----------------------------------------------------------------------------

  // Who is being ended anyway needs no watch.
  std::optional<Clock::time_point> next_sample() const {
    return stop_signal_ == 0 && running() > 0 ? stopped_.next() : std::nullopt;
  }

  void look_for_stopped() {
    std::vector<pid_t> pids;
    for (const Worker& worker : workers_) pids.push_back(worker.running() ? worker.pid : 0);
    std::vector<WorkerEnd> ends;
    for (const auto& [index, since] : stopped_.sample(pids, Clock::now())) {
      workers_[index].given_up = true;
      keeper_->send({KeeperCommand::signal_workers, SIGKILL, static_cast<int32_t>(index)});
      WorkerEnd end = end_of(index);
      end_as_stopped(end, since);
      record(end);
      ends.push_back(std::move(end));
    }
    for (const WorkerEnd& end : ends) fail(end, false);
  }

  // --- stopping
  // -----------------------------------------------------------------------------------

  void on_signal(int signal) {
    if (signal == SIGTSTP) {
      if (!std::exchange(told_not_stopped_, true)) notice(kNotStopped);
      return;
    }
    if (signal == SIGUSR1 || signal == SIGQUIT) {
      keeper_->send({KeeperCommand::signal_workers, signal});
      return;
    }
    if (signal == SIGUSR2) return on_time_nearly_over();
    const bool time_over = std::exchange(time_nearly_over_, false);
    const bool again = result_.interrupted && !time_over;
    result_.interrupted = true;
    if (!again) interrupt_signal_ = signal;
    if (options_.control) options_.control->interrupted(signal);
    if (running() == 0) {
      kill_all();  // only helpers of finished workers are left
    } else if (stop_signal_ == 0) {
      notice(fmt::format("{}: asked {} to stop (up to {:.3g} s; once more = kill at once)",
                         signal_name(signal), ranks(running()),
                         std::chrono::duration<double>(options_.grace).count()));
      stop(options_.grace, asking_signal(signal));
    } else if (stop_signal_ == SIGKILL) {
      return;
    } else if ((stopped_by_control_ || time_over) && !again) {
      // A scheduler signals every node, and the node that was first has told us already. Or it has
      // sent USR2 before: what comes at the end of the time is no second wish.
      notice(fmt::format("{}: {} already asked to stop (once more = kill at once)",
                         signal_name(signal), ranks_are(running())));
    } else {
      notice(fmt::format("{}: killed {}", signal_name(signal), ranks(running())));
      kill_all();
    }
  }

  // A scheduler's warning. It may come to every process of the job, and more than once: that is one
  // request, and above us they tell all nodes of it.
  void on_time_nearly_over() {
    if (options_.control) return options_.control->interrupted(SIGUSR2);
    if (std::exchange(result_.interrupted, true)) return;
    time_nearly_over_ = true;
    interrupt_signal_ = SIGUSR2;
    if (running() == 0 || stop_signal_ != 0) return;
    notice(fmt::format("SIGUSR2: asked {} to stop (up to {:.3g} s): the job's time is nearly over",
                       ranks(running()),
                       std::chrono::duration<double>(options_.warning_grace).count()));
    stop(options_.warning_grace);
  }

  int control_fd() const {
    return options_.control && !control_gone_ ? options_.control->fd() : -1;
  }

  void read_control(bool readable) {
    bool any = false;
    for (;;) {
      const AgentControl::Command command = options_.control->read();
      if (command.kind == AgentControl::Command::none) break;
      any = true;
      on_command(command);
    }
    // Closed at the other end and nothing more to say: poll would return at once for ever.
    if (!readable && !any) control_gone_ = true;
  }

  void on_command(const AgentControl::Command& command) {
    using Command = AgentControl::Command;
    const auto tell = [&](const char* what, const char* rest) {
      if (command.why.empty() || running() == 0) return;
      notice(fmt::format("{}: {} {}{}", command.why, what, ranks(running()), rest));
    };
    if (command.kind == Command::pass_on) {
      tell(("sent " + signal_name(command.signal) + " to").c_str(), "");
      keeper_->send({KeeperCommand::signal_workers, command.signal});
      return;
    }
    if (stop_signal_ == 0 && running() > 0) stopped_by_control_ = true;
    if (command.kind == Command::kill || command.grace.count() <= 0) {
      if (stop_signal_ != SIGKILL) tell("killed", "");
      kill_all();
    } else if (stop_signal_ == 0 && running() > 0) {
      tell("asked", " to stop");
      stop(command.grace, command.signal);
    } else if (stop_signal_ != SIGKILL && deadline_) {  // being stopped, or all done
      deadline_ = std::min(*deadline_, Clock::now() + command.grace);
    }
  }

  void on_lease_over() {
    if (running() > 0) {
      if (stop_signal_ == 0) stopped_by_control_ = true;
      notice(fmt::format("the launcher could not be reached in time: killed {}", ranks(running())));
      options_.control->lease_over();
    }
    kill_all();
  }

  void stop(std::chrono::milliseconds grace, int signal = SIGTERM) {
    stop_signal_ = signal;
    stop_time_ = std::chrono::system_clock::now();
    // The workers themselves, not their helpers: a data loader must live until the checkpoint is
    // written. What a dead worker leaves behind gets its TERM then. But for INT, as at a terminal.
    keeper_->send({KeeperCommand::signal_workers, signal});
    keeper_->send({KeeperCommand::sweep, SIGTERM});
    deadline_ = Clock::now() + grace;
  }

  void kill_all() {
    if (stop_signal_ == SIGKILL) return;
    if (stop_signal_ == 0) stop_time_ = std::chrono::system_clock::now();
    stop_signal_ = SIGKILL;
    keeper_->send({KeeperCommand::sweep, SIGKILL});
    deadline_ = Clock::now() + kKillWait;
  }

  void on_deadline() {
    if (stop_signal_ == 0 && running() > 0) {  // ranks that did not follow one that said 75
      notice(fmt::format("{} did not stop with the others: asked to", ranks(running())));
      return stop(options_.grace);
    }
    if (stop_signal_ != SIGKILL) {
      if (running() > 0) notice(fmt::format("{} did not stop in time: killed", ranks(running())));
      return kill_all();
    }
    // Not even SIGKILL helps (a dead network disk, a driver): report it and go on.
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].ended) continue;
      WorkerEnd end = end_of(i);
      result_.warnings.push_back(
          fmt::format("process {} of {} could not be killed", end.pid, ranks_name(end)));
      if (workers_[i].given_up) continue;
      end.signal = SIGKILL;
      end.exit_code = 128 + SIGKILL;
      end.stopped_by_us = true;
      end.notes.push_back("it does not die of SIGKILL: uninterruptible sleep, see /proc/" +
                          std::to_string(end.pid) + "/stack");
      record(end);
    }
    gone_ = true;
  }

  // Ranks whose process has not ended.
  size_t running() const {
    size_t count = 0;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].running()) count += static_cast<size_t>(options_.workers[i].ranks);
    }
    return count;
  }

  static std::string ranks(size_t count) {
    return count == 1 ? "1 rank" : fmt::format("{} ranks", count);
  }
  static std::string ranks_are(size_t count) {
    return ranks(count) + (count == 1 ? " is" : " are");
  }

  void notice(std::string line) { output_->notice(std::move(line)); }

  // --- the result
  // ---------------------------------------------------------------------------------

  void conclude() {
    result_.interrupt_signal = interrupt_signal_;
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
    } else if (!all(fine) && (interrupt_signal_ != 0 || !stopped_by_control_)) {
      result_.exit_code = 128 + (interrupt_signal_ != 0 ? interrupt_signal_ : SIGTERM);
    }
  }

  const AgentOptions& options_;
  AgentResult result_;
  std::optional<OomWatch> oom_;
  std::optional<Error> start_error_;
  std::vector<Launch> launches_;
  std::vector<Worker> workers_;
  StoppedWatch stopped_;
  int stop_signal_ = 0;  // what the workers were last asked with: 0, INT, TERM or KILL
  int interrupt_signal_ = 0;
  std::chrono::system_clock::time_point stop_time_;  // when they were first asked
  bool stopped_by_control_ = false;                  // ... and that was not our own idea
  bool control_gone_ = false;
  bool told_not_stopped_ = false;
  bool time_nearly_over_ = false;                  // USR2 has come, and nothing stronger after it
  std::optional<std::chrono::nanoseconds> lease_;  // as the keeper knows it
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
