#include "launcher/agent.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <unistd.h>

#include <sys/eventfd.h>

#include <fmt/format.h>

#include "common/files.h"
#include "launcher/keeper.h"
#include "launcher/oom.h"
#include "launcher/outlet.h"
#include "launcher/program.h"
#include "launcher/signals.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRequeue = static_cast<int>(Exit::requeue);
constexpr size_t kLastLines = 20;
constexpr size_t kLastLineBytes = 2'000;  // a headline shows the beginning of a longer one
constexpr size_t kQueueBytes = 64 << 20;
constexpr int kPipeBytes = 256 << 10;
// What a dead worker can have left in its pipe; more comes from somebody who still writes.
constexpr size_t kPipeRest = 1 << 20;
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
  std::filesystem::path log_path;
  Fd log;
  int log_error = 0;  // of the first write that failed; only the log outlet's thread touches it
  Consumer to_log;
  Consumer to_console[2];  // of stdout, stderr; only of a shown rank
  std::deque<std::string> last_lines;
};

// A descriptor that the agent reads: a worker's stdout or stderr, or a line source.
struct Stream {
  Fd owned;
  int fd = -1;
  int worker = -1;  // -1 = a line source
  bool is_stderr = false;
  bool open = true;
  LineCutter lines;
  Consumer on_block;  // of a line source
};

class Agent {
 public:
  explicit Agent(const AgentOptions& options) : options_(options) {}

  AgentResult run() {
    result_.started = std::chrono::system_clock::now();
    wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) throw system_error("cannot make an eventfd", errno);
    {
      SignalPipe signals;
      start();
      while (!gone_) turn(signals);
      finish_streams();
      keeper_.reset();
    }
    // From here a Ctrl-C ends this process as before: nothing is left to stop, and what is queued
    // may wait for a terminal that somebody has stopped.
    console_.reset();
    log_outlet_.reset();
    for (const Worker& worker : workers_) {
      if (worker.log_error != 0) {
        result_.warnings.push_back(fmt::format("{} is incomplete: {}", worker.log_path.string(),
                                               strerror(worker.log_error)));
      }
    }
    if (start_error_) throw Error(*start_error_);
    conclude();
    return std::move(result_);
  }

 private:
  // --- start
  // --------------------------------------------------------------------------------------

  void start() {
    const size_t count = options_.workers.size();
    for (const WorkerCommand& command : options_.workers) {
      launches_.push_back(prepare_launch(command));
    }
    if (!options_.log_dir.empty()) make_directories(options_.log_dir);
    workers_.resize(count);
    std::vector<Fd> write_ends;
    for (size_t i = 0; i < count; ++i) {
      open_log(i);
      for (bool is_stderr : {false, true}) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) throw system_error("cannot make a pipe", errno);
        Stream stream;
        stream.owned = Fd(ends[0]);
        stream.fd = ends[0];
        stream.worker = static_cast<int>(i);
        stream.is_stderr = is_stderr;
        streams_.push_back(std::move(stream));
        write_ends.emplace_back(ends[1]);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // a courtesy; the default serves too
        (is_stderr ? launches_[i].err : launches_[i].out) = ends[1];
      }
    }
    for (const LineSource& source : options_.line_sources) {
      Stream stream;
      stream.fd = source.fd;
      stream.on_block = [&source](std::string_view block) { each_line(block, source.on_line); };
      streams_.push_back(std::move(stream));
    }
    // Forked before there are threads of ours.
    keeper_ = std::make_unique<Keeper>(launches_);
    write_ends.clear();
    log_outlet_ = std::make_unique<Outlet>(kQueueBytes, wake_.get());
    console_ = std::make_unique<Outlet>(kQueueBytes, wake_.get());
    on_notice_ = [this](std::string_view block) {
      each_line(block, [this](std::string_view line) { options_.on_notice(line); });
    };
  }

  void open_log(size_t index) {
    Worker& worker = workers_[index];
    const int rank = options_.workers[index].rank;
    if (!options_.log_dir.empty()) {
      worker.log_path = options_.log_dir / fmt::format("rank-{:05}.log", rank);
      worker.log =
          Fd(open(worker.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
      if (!worker.log) {
        throw system_error("cannot open the log " + worker.log_path.string(), errno);
      }
      worker.to_log = [&worker](std::string_view block) {
        if (worker.log_error == 0 && !write_all(worker.log.get(), block)) worker.log_error = errno;
      };
    }
    if (rank != 0 || !options_.show_rank0) return;
    for (bool is_stderr : {false, true}) {
      if (options_.on_output) {
        worker.to_console[is_stderr] = [this, is_stderr](std::string_view block) {
          each_line(block, [&](std::string_view line) { options_.on_output(0, is_stderr, line); });
        };
      } else {
        worker.to_console[is_stderr] = [this, is_stderr](std::string_view block) {
          // Nobody reads any more (| head): the run goes on, its log has the rest.
          if (!reader_gone_[is_stderr]) {
            reader_gone_[is_stderr] = !write_all(is_stderr ? STDERR_FILENO : STDOUT_FILENO, block);
          }
        };
      }
    }
  }

  // --- the loop
  // -----------------------------------------------------------------------------------

  void turn(SignalPipe& signals) {
    std::vector<pollfd> polled = {
        {signals.fd(), POLLIN, 0}, {keeper_->fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    std::optional<Clock::time_point> until = deadline_;
    for (Stream& stream : streams_) {
      // -1 is skipped by poll: closed, or waiting until its output has somewhere to go.
      const bool ready = stream.open && accepts(stream, until);
      polled.push_back({ready ? stream.fd : -1, POLLIN, 0});
    }
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
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (polled[3 + i].revents != 0) read_stream(streams_[i], 1);
    }
    if (polled[1].revents != 0) read_events();
    if (polled[2].revents != 0) {
      eventfd_t ignored;
      eventfd_read(wake_.get(), &ignored);
    }
    if (deadline_ && Clock::now() >= *deadline_) on_deadline();
  }

  bool accepts(const Stream& stream, std::optional<Clock::time_point>& until) const {
    bool all = true;
    const auto ask = [&](const Outlet& outlet) {
      if (outlet.accepts()) return;
      all = false;
      const Clock::time_point stall = outlet.stall_time();
      if (!until || stall < *until) until = stall;
    };
    if (stream.worker < 0) {
      ask(*console_);
      return all;
    }
    const Worker& worker = workers_[static_cast<size_t>(stream.worker)];
    if (worker.to_log) ask(*log_outlet_);
    if (worker.to_console[stream.is_stderr]) ask(*console_);
    return all;
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
    for (Stream& stream : streams_) {
      if (stream.worker == event.index) read_stream(stream, kPipeRest / kChunk);
    }
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
    end.last_lines.assign(worker.last_lines.begin(), worker.last_lines.end());
    end.log = worker.log_path;
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
      end.last_lines.assign(workers_[i].last_lines.begin(), workers_[i].last_lines.end());
      end.log = workers_[i].log_path;
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

  void notice(std::string line) {
    if (options_.on_notice) console_->push(on_notice_, line + "\n");
  }

  // --- output
  // -------------------------------------------------------------------------------------

  static constexpr size_t kChunk = 64 << 10;

  // Reads at most `chunks` pieces. A line source may block, so that one is read only after poll.
  void read_stream(Stream& stream, size_t chunks) {
    for (size_t i = 0; i < chunks && stream.open; ++i) {
      const ssize_t got = read(stream.fd, buffer_.data(), kChunk);
      if (got > 0) {
        take(stream, {buffer_.data(), static_cast<size_t>(got)});
        if (stream.worker >= 0 && static_cast<size_t>(got) < kChunk) return;
      } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        close_stream(stream);
      } else if (errno == EAGAIN) {
        return;
      }
    }
  }

  void take(Stream& stream, std::string_view bytes) {
    std::string block = stream.lines.add(bytes);
    if (stream.worker >= 0 && !options_.on_output) {  // raw: progress bars, prompts, binary data
      const Consumer& raw =
          workers_[static_cast<size_t>(stream.worker)].to_console[stream.is_stderr];
      if (raw) console_->push(raw, std::string(bytes));
    }
    if (!block.empty()) take_lines(stream, std::move(block));
  }

  void take_lines(const Stream& stream, std::string block) {
    if (stream.worker < 0) return console_->push(stream.on_block, std::move(block));
    Worker& worker = workers_[static_cast<size_t>(stream.worker)];
    if (stream.is_stderr) {
      each_line(block, [&](std::string_view line) { remember(worker, line); });
    }
    if (options_.on_output && worker.to_console[stream.is_stderr]) {
      console_->push(worker.to_console[stream.is_stderr], block);
    }
    if (worker.to_log) log_outlet_->push(worker.to_log, std::move(block));
  }

  static void remember(Worker& worker, std::string_view line) {
    // Of a progress bar, what was last to be seen.
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const size_t bar = line.rfind('\r'); bar != std::string_view::npos) {
      line.remove_prefix(bar + 1);
    }
    std::string kept(line.substr(0, kLastLineBytes));
    if (line.size() > kLastLineBytes) kept += fmt::format("... ({} bytes)", line.size());
    worker.last_lines.push_back(std::move(kept));
    if (worker.last_lines.size() > kLastLines) worker.last_lines.pop_front();
  }

  void close_stream(Stream& stream) {
    if (!stream.open) return;
    stream.open = false;
    if (std::string rest = stream.lines.finish(); !rest.empty()) {
      take_lines(stream, std::move(rest));
    }
    stream.owned.reset();
  }

  void finish_streams() {
    for (Stream& stream : streams_) {
      for (size_t i = 0; i < kPipeRest / kChunk && stream.open; ++i) {
        pollfd ready{stream.fd, POLLIN, 0};
        if (poll(&ready, 1, 0) <= 0) break;
        read_stream(stream, 1);
      }
      close_stream(stream);
    }
    const int64_t lost[2] = {log_outlet_->dropped_bytes(), console_->dropped_bytes()};
    if (lost[0] > 0) {
      result_.warnings.push_back(
          fmt::format("{} bytes of output are missing in {}: the disk did not keep up", lost[0],
                      options_.log_dir.string()));
    }
    if (lost[1] > 0) {
      result_.warnings.push_back(fmt::format(
          "{} bytes of rank 0's output were not shown: its reader did not keep up", lost[1]));
    }
  }

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
  std::vector<Worker> workers_;  // never resized once started: consumers point into it
  std::vector<Stream> streams_;
  std::vector<char> buffer_ = std::vector<char>(kChunk);
  bool reader_gone_[2] = {false, false};
  Consumer on_notice_;
  Fd wake_;
  int stop_signal_ = 0;  // what the workers were last asked with: 0, SIGTERM or SIGKILL
  int interrupt_signal_ = 0;
  std::optional<Clock::time_point> deadline_;
  bool gone_ = false;
  // Last, so that they end first: they use what stands above.
  std::unique_ptr<Outlet> log_outlet_;
  std::unique_ptr<Outlet> console_;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace

AgentResult run_agent(const AgentOptions& options) {
  const StandardDescriptors standard;
  return Agent(options).run();
}

}  // namespace mtl
