#include "launcher/agent_output.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <sys/eventfd.h>

#include <fmt/format.h>

namespace mtl {

namespace {

constexpr size_t kLastLines = 20;
constexpr size_t kLastLineBytes = 2'000;  // a headline shows the beginning of a longer one
constexpr size_t kQueueBytes = 64 << 20;
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
  if (!options_.log_dir.empty()) make_directories(options_.log_dir);
  workers_.resize(launches.size());
  for (size_t i = 0; i < launches.size(); ++i) {
    open_log(i);
    open_pipes(i, launches[i]);
  }
  for (const LineSource& source : options_.line_sources) {
    Stream stream;
    stream.fd = source.fd;
    stream.on_block = [&source](std::string_view block) { each_line(block, source.on_line); };
    streams_.push_back(std::move(stream));
  }
  on_notice_ = [this](std::string_view block) {
    each_line(block, [this](std::string_view line) { options_.on_notice(line); });
  };
}

void AgentOutput::open_log(size_t index) {
  Worker& worker = workers_[index];
  const int rank = options_.workers[index].rank;
  if (!options_.log_dir.empty()) {
    worker.log_path = options_.log_dir / fmt::format("rank-{:05}.log", rank);
    worker.log = Fd(open(worker.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
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

void AgentOutput::open_pipes(size_t index, Launch& launch) {
  for (bool is_stderr : {false, true}) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw system_error("cannot make a pipe", errno);
    Stream stream;
    stream.owned = Fd(ends[0]);
    stream.fd = ends[0];
    stream.worker = static_cast<int>(index);
    stream.is_stderr = is_stderr;
    streams_.push_back(std::move(stream));
    write_ends_.emplace_back(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // a courtesy; the default serves too
    (is_stderr ? launch.err : launch.out) = ends[1];
  }
}

void AgentOutput::start() {
  write_ends_.clear();
  log_outlet_ = std::make_unique<Outlet>(kQueueBytes, wake_.get());
  console_ = std::make_unique<Outlet>(kQueueBytes, wake_.get());
}

void AgentOutput::notice(std::string line) {
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
  if (stream.worker >= 0 && !options_.on_output) {  // raw: progress bars, prompts, binary data
    const Consumer& raw = workers_[static_cast<size_t>(stream.worker)].to_console[stream.is_stderr];
    if (raw) console_->push(raw, std::string(bytes));
  }
  if (!block.empty()) take_lines(stream, std::move(block));
}

void AgentOutput::take_lines(const Stream& stream, std::string block) {
  if (stream.worker < 0) return console_->push(stream.on_block, std::move(block));
  Worker& worker = workers_[static_cast<size_t>(stream.worker)];
  if (stream.is_stderr) {
    each_line(block, [&](std::string_view line) { remember(worker.last_lines, line); });
  }
  if (options_.on_output && worker.to_console[stream.is_stderr]) {
    console_->push(worker.to_console[stream.is_stderr], block);
  }
  if (worker.to_log) log_outlet_->push(worker.to_log, std::move(block));
}

void AgentOutput::close_stream(Stream& stream) {
  if (!stream.open) return;
  stream.open = false;
  if (std::string rest = stream.lines.finish(); !rest.empty()) {
    take_lines(stream, std::move(rest));
  }
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
  const int64_t lost[2] = {log_outlet_->dropped_bytes(), console_->dropped_bytes()};
  if (lost[0] > 0) {
    warnings.push_back(
        fmt::format("{} bytes of output are missing in {}: the disk did not keep up", lost[0],
                    options_.log_dir.string()));
  }
  if (lost[1] > 0) {
    warnings.push_back(fmt::format(
        "{} bytes of rank 0's output were not shown: its reader did not keep up", lost[1]));
  }
  console_.reset();
  log_outlet_.reset();
  for (const Worker& worker : workers_) {
    if (worker.log_error != 0) {
      warnings.push_back(fmt::format("{} is incomplete: {}", worker.log_path.string(),
                                     strerror(worker.log_error)));
    }
  }
}

std::vector<std::string> AgentOutput::last_lines(size_t worker) const {
  const auto& lines = workers_[worker].last_lines;
  return {lines.begin(), lines.end()};
}

}  // namespace mtl
