#include "launcher/agent/agent_output.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <sys/eventfd.h>

#include <fmt/format.h>

#include "common/terminal.h"
#include "launcher/system/system_error.h"

namespace mtl {

namespace {

constexpr size_t kLastLines = 20;
constexpr size_t kLastLineBytes = 2'000;  // a headline shows the beginning of a longer one
// Of 8 ranks that write 10,000 lines of 100 bytes a second each, the logs of 16 s.
constexpr size_t kLogQueueBytes = 128 << 20;
constexpr size_t kConsoleQueueBytes = 64 << 20;
constexpr int kPipeBytes = 256 << 10;
constexpr size_t kChunk = 64 << 10;
// What a dead worker can have left in its pipe; more comes from somebody who still writes.
constexpr size_t kPipeRest = 1 << 20;

void remember(std::deque<std::string>& lines, std::string_view line) {
  // Of a progress bar, what was last to be seen.
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (const size_t bar = line.rfind('\r'); bar != std::string_view::npos) {
    line.remove_prefix(bar + 1);
  }
  std::string kept(line.substr(0, kLastLineBytes));
  if (line.size() > kLastLineBytes) kept += fmt::format("... ({} bytes)", line.size());
  lines.push_back(std::move(kept));
  if (lines.size() > kLastLines) lines.pop_front();
}

}  // namespace

AgentOutput::AgentOutput(const AgentOptions& options, std::vector<Launch>& launches)
    : options_(options), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), buffer_(kChunk) {
  if (!wake_) throw system_error("cannot make an eventfd", errno);
  if (!options_.logs.dir.empty()) make_directories(options_.logs.dir);
  workers_.resize(launches.size());
  for (size_t i = 0; i < launches.size(); ++i) {
    open_log(i);
    open_pipes(i, launches[i]);
  }
  const auto shown = [](const Stream& stream) { return stream.show != Show::nothing; };
  const auto is_raw = [](const Stream& stream) { return stream.show == Show::raw; };
  const bool alone = [&] {
    int worker = -1;
    for (const Stream& stream : streams_) {
      if (!shown(stream)) continue;
      if (worker >= 0 && worker != stream.worker) return false;
      worker = stream.worker;
    }
    return true;
  }();
  for (Stream& stream : streams_) {
    if (is_raw(stream) && (!alone || options_.on_output)) stream.show = Show::lines;
    if (shown(stream)) open_console(stream);
    if (is_raw(stream) && !isatty(stream.is_stderr ? STDERR_FILENO : STDOUT_FILENO)) {
      console_policy_ = Outlet::Policy::wait;
    }
  }
  for (const LineSource& source : options_.line_sources) {
    Stream stream;
    stream.fd = source.fd;
    stream.on_block.write = [&source](std::string_view block) { each_line(block, source.on_line); };
    streams_.push_back(std::move(stream));
  }
  on_notice_.write = [this](std::string_view block) {
    each_line(block, [this](std::string_view line) { options_.on_notice(line); });
  };
}

// torchrun's order: the filter, then what was asked to be shown (tee), then what was asked to be
// only in the file, then the default.
AgentOutput::Show AgentOutput::show_of(const WorkerCommand& command, bool is_stderr) const {
  const LogOptions& logs = options_.logs;
  const int bit = is_stderr ? 2 : 1;
  const auto& only = logs.only_local_ranks;
  const bool listed = std::find(only.begin(), only.end(), command.local_rank) != only.end();
  if (!only.empty() && !listed) return Show::nothing;
  const Show plain = logs.prefix ? Show::prefixed : Show::raw;
  const auto has = [&](const std::map<int, int>& bits) {
    const auto found = bits.find(command.local_rank);
    return found != bits.end() && (found->second & bit) != 0;
  };
  if (has(logs.console)) return Show::prefixed;
  if (has(logs.redirected)) return Show::nothing;
  if (logs.console_default >= 0) return (logs.console_default & bit) != 0 ? plain : Show::nothing;
  return command.rank == 0 || listed ? plain : Show::nothing;
}

void AgentOutput::open_log(size_t index) {
  if (options_.logs.dir.empty()) return;
  Worker& worker = workers_[index];
  worker.log = std::make_unique<LogFile>(
      options_.logs.dir / fmt::format("rank-{:05}.log", options_.workers[index].rank),
      options_.logs.rotate_bytes, options_.logs.rotate_keep);
  worker.to_log.write = [&worker](std::string_view block) { worker.log->write(block); };
  worker.to_log.gap = [](int64_t bytes) {
    return fmt::format("[mtl: {} bytes of output are missing here: the disk did not keep up]\n",
                       bytes);
  };
}

void AgentOutput::open_console(Stream& stream) {
  const auto index = static_cast<size_t>(stream.worker);
  const bool is_stderr = stream.is_stderr;
  const WorkerCommand& command = options_.workers[index];
  Consumer& consumer = workers_[index].to_console[is_stderr];
  const bool raw = stream.show == Show::raw;
  if (stream.show == Show::prefixed) {
    WorkerEnd named;
    named.rank = command.rank;
    named.ranks = command.ranks;
    std::string prefix = ranks_name(named);
    if (!options_.logs.host.empty()) {
      prefix = options_.logs.host + ":" + prefix.substr(prefix.find(' ') + 1);
    }
    prefix += "| ";
    const int fd = is_stderr || options_.on_output ? STDERR_FILENO : STDOUT_FILENO;
    if (inspect_terminal(fd).color) {
      prefix = fmt::format("\x1b[3{}m{}\x1b[0m", 1 + command.rank % 6, prefix);
    }
    stream.console_lines = ConsoleLines(prefix);
  }
  if (options_.on_output) {
    consumer.write = [this, is_stderr, rank = command.rank](std::string_view block) {
      each_line(block, [&](std::string_view line) { options_.on_output(rank, is_stderr, line); });
    };
  } else {
    consumer.write = [this, is_stderr](std::string_view block) { write_console(is_stderr, block); };
  }
  consumer.gap = [raw](int64_t bytes) {
    return fmt::format(
        "{}[mtl: {} bytes of output are not shown here: the reader did not keep up]\n",
        raw ? "\n" : "", bytes);
  };
}

void AgentOutput::write_console(bool is_stderr, std::string_view block) {
  if (reader_gone_[is_stderr]) return;
  if (write_all(is_stderr ? STDERR_FILENO : STDOUT_FILENO, block)) return;
  // Nobody reads any more (| head), or it was closed from the start: the run goes on, its log has
  // the rest. Anything else, a full disk, is worth a word.
  reader_gone_[is_stderr] = true;
  if (errno != EPIPE && errno != EBADF) console_error_[is_stderr] = errno;
}

void AgentOutput::open_pipes(size_t index, Launch& launch) {
  for (bool is_stderr : {false, true}) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw system_error("cannot make a pipe", errno);
    Stream stream;
    stream.owned = Fd(ends[0]);
    stream.fd = ends[0];
    stream.worker = static_cast<int>(index);
    stream.is_stderr = is_stderr;
    stream.show = show_of(options_.workers[index], is_stderr);
    streams_.push_back(std::move(stream));
    write_ends_.emplace_back(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // a courtesy; the default serves too
    (is_stderr ? launch.err : launch.out) = ends[1];
  }
}

void AgentOutput::start() {
  write_ends_.clear();
  log_outlet_ = std::make_unique<Outlet>(kLogQueueBytes, wake_.get(), Outlet::Policy::drop);
  console_ = std::make_unique<Outlet>(kConsoleQueueBytes, wake_.get(), console_policy_);
}

void AgentOutput::notice(const std::string& line) {
  if (options_.on_notice) console_->push(on_notice_, line + "\n");
}

void AgentOutput::add_to(std::vector<pollfd>& polled, std::optional<Clock::time_point>& until) {
  polled.push_back({wake_.get(), POLLIN, 0});
  for (Stream& stream : streams_) {
    // -1 is skipped by poll: closed, or waiting until its output has somewhere to go.
    const bool ready = stream.open && accepts(stream, until);
    polled.push_back({ready ? stream.fd : -1, POLLIN, 0});
  }
}

void AgentOutput::read_ready(const std::vector<pollfd>& polled, size_t first) {
  if (polled[first].revents != 0) {
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (polled[first + 1 + i].revents != 0) read_stream(streams_[i], 1);
  }
}

bool AgentOutput::accepts(const Stream& stream, std::optional<Clock::time_point>& until) const {
  if (stream.worker >= 0 && stream.show == Show::nothing) return true;
  if (console_->accepts()) return true;
  const Clock::time_point stall = console_->stall_time();
  if (!until || stall < *until) until = stall;
  return false;
}

void AgentOutput::drain(size_t worker) {
  for (Stream& stream : streams_) {
    if (stream.worker == static_cast<int>(worker)) read_stream(stream, kPipeRest / kChunk);
  }
}

// Reads at most `chunks` pieces. A line source may block, so that one is read only after poll.
void AgentOutput::read_stream(Stream& stream, size_t chunks) {
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

void AgentOutput::take(Stream& stream, std::string_view bytes) {
  std::string block = stream.lines.add(bytes);
  if (stream.show == Show::raw) {  // progress bars, prompts, binary data
    to_console(stream, std::string(bytes));
  } else if (stream.show == Show::prefixed) {
    to_console(stream, stream.console_lines.add(bytes, Clock::now()));
  }
  if (!block.empty()) take_lines(stream, std::move(block));
}

void AgentOutput::take_lines(Stream& stream, std::string block) {
  if (stream.worker < 0) return console_->push(stream.on_block, std::move(block));
  Worker& worker = workers_[static_cast<size_t>(stream.worker)];
  if (stream.is_stderr) {
    each_line(block, [&](std::string_view line) { remember(worker.last_lines, line); });
  }
  if (stream.show == Show::lines) to_console(stream, block);
  if (worker.log) {
    log_outlet_->push(worker.to_log, std::move(block));
    tell_of_loss();
  }
}

void AgentOutput::to_console(const Stream& stream, std::string block) {
  Worker& worker = workers_[static_cast<size_t>(stream.worker)];
  console_->push(worker.to_console[stream.is_stderr], std::move(block));
}

void AgentOutput::tell_of_loss() {
  if (loss_told_ || log_outlet_->dropped_bytes() == 0) return;
  loss_told_ = true;
  notice(
      fmt::format("the disk of {} does not keep up with the ranks' output: from now on some of "
                  "it is missing in their logs",
                  options_.logs.dir.string()));
}

void AgentOutput::close_stream(Stream& stream) {
  if (!stream.open) return;
  stream.open = false;
  if (std::string rest = stream.lines.finish(); !rest.empty()) {
    take_lines(stream, std::move(rest));
  }
  if (stream.show == Show::prefixed) to_console(stream, stream.console_lines.finish());
  stream.owned.reset();
}

void AgentOutput::finish() {
  for (Stream& stream : streams_) {
    for (size_t i = 0; i < kPipeRest / kChunk && stream.open; ++i) {
      pollfd ready{stream.fd, POLLIN, 0};
      if (poll(&ready, 1, 0) <= 0) break;
      read_stream(stream, 1);
    }
    close_stream(stream);
  }
}

void AgentOutput::close(std::vector<std::string>& warnings) {
  const auto warn_of_loss = [&](int64_t bytes, const std::string& of, const std::string& what) {
    if (bytes > 0) warnings.push_back(fmt::format("{} bytes of {}'s output {}", bytes, of, what));
  };
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    const std::string rank = fmt::format("rank {}", options_.workers[i].rank);
    if (worker.log) log_outlet_->close_gap(worker.to_log);
    for (Consumer& console : worker.to_console) console_->close_gap(console);
    warn_of_loss(worker.to_log.lost_in_all, rank,
                 fmt::format("are missing in {}: the disk did not keep up",
                             log_path(i).filename().string()));
    warn_of_loss(worker.to_console[0].lost_in_all + worker.to_console[1].lost_in_all, rank,
                 "were not shown: their reader did not keep up");
  }
  console_.reset();
  log_outlet_.reset();
  for (const bool is_stderr : {false, true}) {
    if (console_error_[is_stderr] == 0) continue;
    warnings.push_back(fmt::format("what was written to {} is incomplete: {}",
                                   is_stderr ? "stderr" : "stdout",
                                   strerror(console_error_[is_stderr])));
  }
  for (const Worker& worker : workers_) {
    if (!worker.log) continue;
    const std::string path = worker.log->path().string();
    if (const int error = worker.log->error(); error != 0) {
      warnings.push_back(fmt::format("{} is incomplete: {}", path, strerror(error)));
    } else if (const int move_error = worker.log->rotate_error(); move_error != 0) {
      warnings.push_back(fmt::format("{} grew beyond its limit: it could not be moved aside: {}",
                                     path, strerror(move_error)));
    }
  }
}

std::filesystem::path AgentOutput::log_path(size_t worker) const {
  return workers_[worker].log ? workers_[worker].log->path() : std::filesystem::path();
}

bool AgentOutput::is_shown(size_t worker) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
    return stream.worker == static_cast<int>(worker) && stream.show != Show::nothing;
  });
}

std::vector<std::string> AgentOutput::last_lines(size_t worker) const {
  const auto& lines = workers_[worker].last_lines;
  return {lines.begin(), lines.end()};
}

}  // namespace mtl
