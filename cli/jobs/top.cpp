// mtl top: the table of mtl ps, drawn again and again, on a screen of its own.
#include <cerrno>
#include <csignal>
#include <ctime>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/jobs/jobs_table.h"
#include "common/terminal.h"
#include "launcher/agent/signals.h"

namespace mtl {

namespace {

// Keys come one by one and unseen; put back when it goes, whatever the end.
class Screen {
 public:
  Screen() {
    keys_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    if (keys_) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      raw.c_cc[VMIN] = 0;
      raw.c_cc[VTIME] = 0;
      tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    put("\x1b[?1049h\x1b[?25l");
  }
  ~Screen() {
    put("\x1b[?25h\x1b[?1049l");
    // In the background it is not ours, and would stop this process until it is.
    if (keys_ && tcgetpgrp(STDIN_FILENO) == getpgrp()) {
      tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    }
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const std::string& text) { put("\x1b[H" + text + "\x1b[J"); }
  // The key, 0 = none.
  char key() const {
    char c = 0;
    return keys_ && read(STDIN_FILENO, &c, 1) == 1 ? c : '\0';
  }
  bool has_keys() const { return keys_; }

 private:
  static void put(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  termios before_{};
  bool keys_ = false;
};

std::string drawn(const std::string& warning, const std::vector<JobView>& jobs,
                  const Terminal& terminal) {
  const std::time_t now = std::time(nullptr);
  char clock[16];
  std::tm local{};
  localtime_r(&now, &local);
  std::strftime(clock, sizeof clock, "%H:%M:%S", &local);
  std::string text = fmt::format("mtl top  {}  (q leaves)\n\n", clock);
  if (!warning.empty()) text += fmt::format("SLURM's queue cannot be read: {}\n", warning);
  text += jobs.empty() ? "nothing of yours runs\n"
                       : jobs_table(jobs, terminal.columns, terminal.utf8, true);
  // What an earlier, longer line left behind goes.
  std::string lines;
  for (const char c : text) lines += c == '\n' ? std::string("\x1b[K\r\n") : std::string(1, c);
  return lines;
}

}  // namespace

int command_top(const Arguments& args) {
  double every = 2;
  bool all = false;
  CommandLine line({"top [options]"},
                   "The table of mtl ps with speed and time left, drawn again and again; q or "
                   "Ctrl-C leaves. Without a terminal it is printed once.");
  line.option("every", "SECONDS", every, 0.1, "time between two drawings", "2");
  line.flag("all,a", all, "also runs that have ended");
  if (!line.parse(args)) return 0;
  std::string warning;
  if (!inspect_terminal(STDOUT_FILENO).redraw) {
    const std::vector<JobView> jobs = newest_starts(job_views(all, &warning));
    if (!warning.empty()) fmt::print(stderr, "SLURM's queue cannot be read: {}\n", warning);
    fmt::print("{}", jobs_table(jobs, 0, true, true));
    return 0;
  }
  SignalPipe signals;
  Screen screen;
  for (;;) {
    warning.clear();
    const std::vector<JobView> jobs = newest_starts(job_views(all, &warning));
    screen.show(drawn(warning, jobs, inspect_terminal(STDOUT_FILENO)));
    pollfd ears[2] = {{signals.fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    poll(ears, screen.has_keys() ? 2 : 1, static_cast<int>(every * 1000));
    for (const int signal : signals.take()) {
      if (signal == SIGINT) return 0;
      if (signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) return 128 + signal;
    }
    const bool closed = (ears[1].revents & (POLLHUP | POLLERR)) != 0;
    const char key = screen.key();
    if (key == 'q' || key == 'Q' || key == 3 || key == 4 || closed) return 0;
  }
}

}  // namespace mtl
