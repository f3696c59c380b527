#include "launcher/agent/agent.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <initializer_list>
#include <memory>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/agent_output.h"
#include "launcher/agent/end_notes.h"
#include "launcher/agent/keeper.h"
#include "launcher/agent/program.h"
#include "launcher/agent/signals.h"
#include "launcher/agent/stopped_watch.h"
#include "launcher/agent/worker_stop.h"
#include "launcher/system/core_file.h"
#include "launcher/system/oom.h"
#include "launcher/system/standard_descriptors.h"
#include "launcher/system/system_error.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRequeue = static_cast<int>(Exit::requeue);
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

std::optional<Clock::time_point> earliest(
    std::initializer_list<std::optional<Clock::time_point>> times) {
  std::optional<Clock::time_point> first;
  for (const auto& time : times) {
    if (time && (!first || *time < *first)) first = time;
  }
  return first;
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options),
        stopped_(options.stopped_after),
        stop_(options, {.keeper = [this](const KeeperCommand& it) { keeper_->send(it); },
                        .running = [this] { return running(); },
                        .notice = [this](const std::string& line) { output_->notice(line); }}) {}

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

  void turn(SignalPipe& signals) {
    std::vector<pollfd> polled = {
        {signals.fd(), POLLIN, 0}, {keeper_->fd(), POLLIN, 0}, {control_fd(), POLLIN, 0}};
    const size_t first_stream = polled.size();
    const std::optional<Clock::time_point> sample = next_sample();
    std::optional<Clock::time_point> until = earliest({stop_.deadline(), sample, extend_lease()});
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
      for (int signal : signals.take()) stop_.on_signal(signal);
    }
    output_->read_ready(polled, first_stream);
    // What the workers did of themselves comes before what somebody wants of them.
    if (polled[1].revents != 0) read_events();
    if (polled[2].revents != 0) read_control((polled[2].revents & POLLIN) != 0);
    if (sample && Clock::now() >= *sample) look_for_stopped();
    const std::optional<Clock::time_point> deadline = stop_.deadline();
    if (deadline && Clock::now() >= *deadline && !stop_.on_deadline()) give_up();
  }

  void read_events() {
    KeeperEvent event;
    Keeper::Receive received;
    while ((received = keeper_->receive(event)) == Keeper::Receive::event) on_event(event);
    if (received == Keeper::Receive::nothing || gone_) return;
    gone_ = true;  // the workers are dying with it, and ~Keeper ends their descendants
    if (start_error_) return;
    start_error_ = Error(Exit::environment,
                         Diagnostic{.code = "launch.keeper_died",
                                    .what = "the process that keeps the workers was killed; the "
                                            "workers were ended with it",
                                    .help = "look for an out-of-memory kill: dmesg"});
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
        return stop_.on_lease_over();
      case KeeperEvent::all_gone:
        gone_ = true;
        return;
    }
  }

  void on_start_error(const Error& error) {
    if (!start_error_) start_error_ = error;
    stop_.kill();
  }

  // --- ends

  WorkerEnd end_of(size_t index) const {
    WorkerEnd end;
    end.rank = options_.workers[index].rank;
    end.ranks = options_.workers[index].ranks;
    end.local_rank = options_.workers[index].local_rank;
    end.pid = workers_[index].pid;
    end.when = std::chrono::system_clock::now();
    end.last_lines = output_->last_lines(index);
    end.log = output_->log_path(index);
    end.shown = output_->is_shown(index);
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
    if (running() == 0) stop_.on_all_ended();
  }

  void on_own_end(size_t index, const KeeperEvent& event) {
    WorkerEnd end = end_of(index);
    end.signal = event.signal;
    end.exit_code = event.signal != 0 ? 128 + event.signal : event.status;
    end.when = std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(
            std::chrono::nanoseconds(event.when_ns)));
    const bool reported = read_own_words(end, options_.workers[index].error_file);
    end.stopped_by_us = stop_.asked_before(end, reported);
    if (end.stopped_by_us && stop_.asked_with(SIGINT) && died_of_interrupt(end)) {
      end.exit_code = 128 + SIGINT;
    }
    if (event.signal == SIGKILL && !stop_.asked_with(SIGKILL)) {
      if (std::string strike = oom_->strike(); !strike.empty()) end.notes.push_back(strike);
    }
    if (event.dumped_core != 0) {
      end.notes.push_back(core_note(launches_[index].program, end.pid));
    }
    record(end);
    if (end.exit_code == kRequeue) return stop_.on_requeue();
    if (end.exit_code == 0 || start_error_) return;
    // A controller knows why it asked, whatever comes of it.
    if (end.stopped_by_us && (stop_.obeyed(end) || stop_.by_control())) return;
    fail(end, reported);
  }

  // A rank failed by itself. The first to fail is the headline; `reported`: by its own account,
  // which is read only when it is dead and may be older than another's death.
  void fail(const WorkerEnd& end, bool reported) {
    const bool earlier = reported && result_.first_failure && !end.stopped_by_us &&
                         end.when < result_.first_failure->when;
    if (!result_.first_failure || earlier) result_.first_failure = end;
    stop_.on_failure(end);
  }

  // Not even SIGKILL helps (a dead network disk, a driver): report it and go on.
  void give_up() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].ended) continue;
      WorkerEnd end = end_of(i);
      result_.warnings.push_back(
          fmt::format("process {} of {} could not be killed", end.pid, ranks_name(end)));
      if (workers_[i].given_up) continue;
      end.signal = SIGKILL;
      end.exit_code = 128 + SIGKILL;
      end.stopped_by_us = true;
      end.notes.push_back(fmt::format(
          "it does not die of SIGKILL: uninterruptible sleep, see /proc/{}/stack", end.pid));
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

  // --- stopped workers

  // Who is being ended anyway needs no watch.
  std::optional<Clock::time_point> next_sample() const {
    return !stop_.asked() && running() > 0 ? stopped_.next() : std::nullopt;
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

  // --- somebody above

  int control_fd() const {
    return options_.control && !control_gone_ ? options_.control->fd() : -1;
  }

  void read_control(bool readable) {
    bool any = false;
    for (;;) {
      const AgentControl::Command command = options_.control->read();
      if (command.kind == AgentControl::Command::none) break;
      any = true;
      stop_.on_command(command);
    }
    // Closed at the other end and nothing more to say: poll would return at once for ever.
    if (!readable && !any) control_gone_ = true;
  }

  // Hands the keeper the lease as it is now. Gives when to look again: after a quarter of what is
  // left, so that an extension is not missed however late it comes, and about once per heartbeat
  // while they are answered in time.
  std::optional<Clock::time_point> extend_lease() {
    if (!options_.control || stop_.asked_with(SIGKILL)) return {};
    const auto end = options_.control->lease_end();
    if (end && end != lease_ && keeper_->extend(*end)) lease_ = end;
    if (!lease_) return {};
    const std::chrono::nanoseconds left = *lease_ - boot_time();
    if (left.count() <= 0) return {};  // the keeper's word comes
    return Clock::now() + std::max(left / 4, kLeaseLook);
  }

  // --- the result

  void conclude() {
    result_.interrupted = stop_.interrupted();
    result_.interrupt_signal = stop_.interrupt_signal();
    bool fine = true, requeue = false;
    for (const WorkerEnd& end : result_.ends) {
      fine = fine && (end.exit_code == 0 || end.exit_code == kRequeue);
      requeue = requeue || end.exit_code == kRequeue;
    }
    if (fine && requeue) {
      result_.exit_code = kRequeue;
    } else if (result_.first_failure) {
      result_.exit_code = result_.first_failure->exit_code;
    } else if (!fine && (result_.interrupt_signal != 0 || !stop_.by_control())) {
      result_.exit_code =
          128 + (result_.interrupt_signal != 0 ? result_.interrupt_signal : SIGTERM);
    }
  }

  const AgentOptions& options_;
  AgentResult result_;
  std::optional<OomWatch> oom_;
  std::optional<Error> start_error_;
  std::vector<Launch> launches_;
  std::vector<Worker> workers_;
  StoppedWatch stopped_;
  WorkerStop stop_;
  bool control_gone_ = false;
  std::optional<std::chrono::nanoseconds> lease_;  // as the keeper knows it
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
