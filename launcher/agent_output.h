// The output side of the agent: a pipe for each worker's stdout and stderr, what is read from them
// cut into lines, kept as last words, and handed to the threads that write logs and the console.
// The agent's own thread only ever reads here; a slow disk or a stopped terminal is the outlets'.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <vector>

#include "common/files.h"
#include "launcher/agent.h"
#include "launcher/keeper.h"
#include "launcher/outlet.h"

namespace mtl {

class AgentOutput {
 public:
  using Clock = std::chrono::steady_clock;

  // Opens the logs and the pipes, and puts their write ends into `launches`. No threads yet: the
  // keeper is forked next. Throws Error.
  AgentOutput(const AgentOptions& options, std::vector<Launch>& launches);
  AgentOutput(const AgentOutput&) = delete;
  AgentOutput& operator=(const AgentOutput&) = delete;

  // After the fork: closes the write ends here, starts the threads.
  void start();
  void notice(std::string line);

  // Adds one entry per descriptor to read (and moves `until` nearer when one has to be looked at
  // again without an event); read_ready() takes them from `first` on.
  void add_to(std::vector<pollfd>& polled, std::optional<Clock::time_point>& until);
  void read_ready(const std::vector<pollfd>& polled, size_t first);
  // What a dead worker has left in its pipes.
  void drain(size_t worker);
  // All is read that there is; what others still hold open is closed.
  void finish();
  // Waits until everything is written, and says what was not.
  void close(std::vector<std::string>& warnings);

  std::vector<std::string> last_lines(size_t worker) const;
  const std::filesystem::path& log_path(size_t worker) const { return workers_[worker].log_path; }

 private:
  struct Worker {
    std::filesystem::path log_path;
    Fd log;
    int log_error = 0;  // of the first write that failed; only the log outlet's thread touches it
    Consumer to_log;
    Consumer to_console[2];  // of stdout, stderr; only of a shown rank
    std::deque<std::string> last_lines;
  };
  // A descriptor that is read: a worker's stdout or stderr, or a line source.
  struct Stream {
    Fd owned;
    int fd = -1;
    int worker = -1;  // -1 = a line source
    bool is_stderr = false;
    bool open = true;
    LineCutter lines;
    Consumer on_block;  // of a line source
  };

  void open_log(size_t index);
  void open_pipes(size_t index, Launch& launch);
  bool accepts(const Stream& stream, std::optional<Clock::time_point>& until) const;
  void read_stream(Stream& stream, size_t chunks);
  void take(Stream& stream, std::string_view bytes);
  void take_lines(const Stream& stream, std::string block);
  void close_stream(Stream& stream);

  const AgentOptions& options_;
  Fd wake_;
  std::vector<Worker> workers_;  // never resized once opened: consumers point into it
  std::vector<Stream> streams_;
  std::vector<Fd> write_ends_;
  std::vector<char> buffer_;
  bool reader_gone_[2] = {false, false};
  Consumer on_notice_;
  // Last, so that they end first: they use what stands above.
  std::unique_ptr<Outlet> log_outlet_;
  std::unique_ptr<Outlet> console_;
};

}  // namespace mtl
