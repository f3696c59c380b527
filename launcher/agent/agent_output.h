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
#include "launcher/agent/agent.h"
#include "launcher/agent/keeper.h"
#include "launcher/output/console_lines.h"
#include "launcher/output/log_file.h"
#include "launcher/output/outlet.h"

namespace mtl {

class AgentOutput {
 public:
  using Clock = std::chrono::steady_clock;

  // Opens the logs and the pipes, and puts the pipes' write ends into `launches`. No threads yet:
  // the keeper is forked next. Throws Error.
  AgentOutput(const AgentOptions& options, std::vector<Launch>& launches);
  AgentOutput(const AgentOutput&) = delete;
  AgentOutput& operator=(const AgentOutput&) = delete;

  // After the fork: closes the write ends here, starts the threads.
  void start();
  void notice(const std::string& line);

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
  std::filesystem::path log_path(size_t worker) const;
  bool is_shown(size_t worker) const;  // any of its output, on the console

 private:
  // How a stream is shown on the console.
  enum class Show {
    nothing,
    raw,       // byte for byte, as it comes: the only one on the console
    lines,     // whole lines
    prefixed,  // whole lines, each with its rank in front
  };
  struct Worker {
    std::unique_ptr<LogFile> log;
    Consumer to_log;
    Consumer to_console[2];  // of stdout, stderr
    std::deque<std::string> last_lines;
  };
  // A descriptor that is read: a worker's stdout or stderr, or a line source.
  struct Stream {
    Fd owned;
    int fd = -1;
    int worker = -1;  // -1 = a line source
    bool is_stderr = false;
    bool open = true;
    Show show = Show::nothing;
    LineCutter lines;
    ConsoleLines console_lines;  // of a prefixed one
    Consumer on_block;           // of a line source
  };

  Show show_of(const WorkerCommand& command, bool is_stderr) const;
  void open_log(size_t index);
  void open_console(Stream& stream);
  void open_pipes(size_t index, Launch& launch);
  bool accepts(const Stream& stream, std::optional<Clock::time_point>& until) const;
  void read_stream(Stream& stream, size_t chunks);
  void take(Stream& stream, std::string_view bytes);
  void take_lines(Stream& stream, std::string block);
  void to_console(const Stream& stream, std::string block);
  void write_console(bool is_stderr, std::string_view block);
  void tell_of_loss();
  void close_stream(Stream& stream);

  const AgentOptions& options_;
  Fd wake_;
  std::vector<Worker> workers_;  // never resized once opened: consumers point into it
  std::vector<Stream> streams_;
  std::vector<Fd> write_ends_;
  std::vector<char> buffer_;
  // Of stdout and stderr, which only the console's thread writes: nobody reads any more, and why
  // not all could be written.
  bool reader_gone_[2] = {false, false};
  int console_error_[2] = {0, 0};
  bool loss_told_ = false;
  Consumer on_notice_;
  Outlet::Policy console_policy_ = Outlet::Policy::drop;
  // Last, so that they end first: they use what stands above.
  std::unique_ptr<Outlet> log_outlet_;
  std::unique_ptr<Outlet> console_;
};

}  // namespace mtl
