// What a slow disk or terminal costs who writes: every write of 8 ranks timed, while whoever takes
// their output stands still for 5 s.
//   build/bench/logs [ranks=8] [lines_per_s=10000] [stall_s=5]
// A row is one way for the lines (100 bytes each, one write per line) to go. "direct" is a plain
// pipe to a reader, as `program | cat` gives it; "agent" is run_agent with the log files replaced
// by FIFOs, or its stdout by a pipe, of the same reader. A write of more than 1 ms counts as
// blocked if the kernel put the writer to sleep in it; else another process had the core.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common/error.h"
#include "launcher/agent/agent.h"
#include "support/temp_dir.h"

namespace {

using namespace mtl;
using Clock = std::chrono::steady_clock;

constexpr size_t kLineBytes = 100;

struct Load {
  int ranks = 8;
  int lines_per_s = 10'000;
  int stall_s = 5;
  int seconds() const { return stall_s + 3; }
};

long sleeps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// A worker: writes at its rate, and at the end what every write took (µs, and whether it slept).
int write_lines(const Load& load, const std::string& result) {
  std::vector<float> times;
  const int total = load.lines_per_s * load.seconds();
  times.reserve(static_cast<size_t>(total));
  std::string line(kLineBytes, '.');
  line.back() = '\n';
  const auto start = Clock::now();
  long slept = sleeps();
  int blocked = 0;
  while (static_cast<int>(times.size()) < total) {
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    const int due = std::min(total, static_cast<int>(elapsed * load.lines_per_s));
    while (static_cast<int>(times.size()) < due) {
      snprintf(line.data(), 11, "%010zu", times.size());
      line[10] = ' ';
      const auto before = Clock::now();
      for (std::string_view left = line; !left.empty();) {
        const ssize_t wrote = write(STDOUT_FILENO, left.data(), left.size());
        if (wrote > 0) left.remove_prefix(static_cast<size_t>(wrote));
        if (wrote < 0 && errno != EINTR) return 1;
      }
      const float us = std::chrono::duration<float, std::micro>(Clock::now() - before).count();
      times.push_back(us);
      if (us > 1'000) {
        const long now = sleeps();
        blocked += now > slept;
        slept = now;
      }
    }
    const timespec nap{0, 1'000'000};
    nanosleep(&nap, nullptr);
    slept = sleeps();
  }
  std::ofstream out(result, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&blocked), sizeof blocked);
  out.write(reinterpret_cast<const char*>(times.data()),
            static_cast<std::streamsize>(times.size() * sizeof times[0]));
  return 0;
}

// The reader of all: stands still from 1 s on. Writes down how many lines came, and how many gaps.
[[noreturn]] void read_lines(std::vector<int> fds, const Load& load, bool stalls,
                             const std::string& result) {
  int64_t lines = 0;
  int gaps = 0;
  const auto start = Clock::now();
  std::vector<char> buffer(1 << 20);
  std::vector<std::string> rest(fds.size());
  size_t open = fds.size();
  while (open > 0) {
    if (stalls && Clock::now() - start > std::chrono::seconds(1)) {
      sleep(static_cast<unsigned>(load.stall_s));
      stalls = false;
    }
    std::vector<pollfd> polled;
    for (int fd : fds) polled.push_back({fd, POLLIN, 0});
    poll(polled.data(), polled.size(), -1);
    for (size_t i = 0; i < fds.size(); ++i) {
      if (polled[i].revents == 0) continue;
      const ssize_t got = read(fds[i], buffer.data(), buffer.size());
      if (got <= 0) {
        fds[i] = -1;
        --open;
        continue;
      }
      for (ssize_t k = 0; k < got; ++k) {
        if (buffer[static_cast<size_t>(k)] != '\n') {
          rest[i] += buffer[static_cast<size_t>(k)];
          continue;
        }
        (rest[i].find("[mtl: ") == std::string::npos ? static_cast<void>(++lines)
                                                     : static_cast<void>(++gaps));
        rest[i].clear();
      }
    }
  }
  std::ofstream(result) << lines << " " << gaps << "\n";
  _exit(0);
}

void print_row(const char* name, const Load& load, const mtl::test::TempDir& folder) {
  std::vector<float> times;
  int blocked = 0;
  for (int rank = 0; rank < load.ranks; ++rank) {
    std::ifstream in(folder / ("times" + std::to_string(rank)), std::ios::binary);
    int count = 0;
    in.read(reinterpret_cast<char*>(&count), sizeof count);
    blocked += count;
    float us;
    while (in.read(reinterpret_cast<char*>(&us), sizeof us)) times.push_back(us);
  }
  std::sort(times.begin(), times.end());
  if (times.empty()) return;
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  const auto slow = times.end() - std::upper_bound(times.begin(), times.end(), 1'000.0f);
  std::string lost = "-", gaps = "-";
  if (std::ifstream in(folder / "read"); in) {
    int64_t lines = 0;
    in >> lines >> gaps;
    lost = std::to_string(static_cast<int64_t>(times.size()) - lines);
  }
  printf("%-34s %9zu %8.1f %8.1f %8.1f %11.1f %6td %8d %9s %5s\n", name, times.size(), at(0.5),
         at(0.99), at(0.9999), times.back(), slow, blocked, lost.c_str(), gaps.c_str());
  fflush(stdout);
}

std::vector<std::string> writer(const Load& load, const mtl::test::TempDir& folder, int rank) {
  return {"/proc/self/exe",
          "--write",
          std::to_string(load.ranks),
          std::to_string(load.lines_per_s),
          std::to_string(load.stall_s),
          folder / ("times" + std::to_string(rank))};
}

void direct(const char* name, const Load& load, bool stalls) {
  const mtl::test::TempDir folder;
  std::vector<int> read_ends;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < load.ranks; ++rank) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    read_ends.push_back(ends[0]);
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(ends[1], STDOUT_FILENO);
      const std::vector<std::string> words = writer(load, folder, rank);
      std::vector<char*> argv;
      for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    pids.push_back(pid);
    close(ends[1]);
  }
  const pid_t reader = fork();
  if (reader == 0) read_lines(read_ends, load, stalls, folder / "read");
  pids.push_back(reader);
  for (int fd : read_ends) close(fd);
  for (pid_t pid : pids) waitpid(pid, nullptr, 0);
  print_row(name, load, folder);
}

enum class Sink { files, fifos, console };

void agent(const char* name, const Load& load, Sink sink, bool stalls) {
  const mtl::test::TempDir folder;
  AgentOptions options;
  std::vector<int> read_ends;
  int console[2] = {-1, -1};
  for (int rank = 0; rank < load.ranks; ++rank) {
    WorkerCommand command;
    command.rank = command.local_rank = rank;
    command.argv = writer(load, folder, rank);
    options.workers.push_back(command);
    if (sink != Sink::fifos) continue;
    char log[32];
    snprintf(log, sizeof log, "rank-%05d.log", rank);
    if (mkfifo((folder / log).c_str(), 0600) != 0) std::abort();
    read_ends.push_back(open((folder / log).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    fcntl(read_ends.back(), F_SETFL, 0);
  }
  options.logs.console_default = sink == Sink::console ? 3 : 0;
  options.logs.prefix = true;
  if (sink != Sink::console) options.logs.dir = folder.path();
  if (sink == Sink::console) {
    if (pipe2(console, O_CLOEXEC) != 0) std::abort();
    read_ends.push_back(console[0]);
  }
  fflush(stdout);
  const pid_t supervisor = fork();
  if (supervisor == 0) {
    if (sink == Sink::console) dup2(console[1], STDOUT_FILENO);
    for (int fd : read_ends) close(fd);
    const AgentResult result = run_agent(options);
    for (const std::string& warning : result.warnings) fprintf(stderr, "  %s\n", warning.c_str());
    _exit(result.exit_code);
  }
  if (console[1] >= 0) close(console[1]);
  pid_t reader = -1;
  if (!read_ends.empty()) {
    // A FIFO without its writer yet would look closed.
    reader = fork();
    if (reader == 0) {
      for (int fd : read_ends) {
        pollfd polled{fd, POLLIN, 0};
        poll(&polled, 1, 10'000);
      }
      read_lines(read_ends, load, stalls, folder / "read");
    }
  }
  for (int fd : read_ends) close(fd);
  waitpid(supervisor, nullptr, 0);
  if (reader > 0) waitpid(reader, nullptr, 0);
  print_row(name, load, folder);
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_writer = argc == 6 && std::strcmp(argv[1], "--write") == 0;
  Load load;
  const int first = is_writer ? 2 : 1;
  if (argc > first) load.ranks = std::atoi(argv[first]);
  if (argc > first + 1) load.lines_per_s = std::atoi(argv[first + 1]);
  if (argc > first + 2) load.stall_s = std::atoi(argv[first + 2]);
  try {
    if (is_writer) return write_lines(load, argv[5]);
    printf("%d ranks, %d lines/s each, reader stands still for %d s; µs of one write\n\n",
           load.ranks, load.lines_per_s, load.stall_s);
    printf("%-34s %9s %8s %8s %8s %11s %6s %8s %9s %5s\n", "", "writes", "p50", "p99", "p99.99",
           "max", "> 1 ms", "blocked", "lost", "gaps");
    direct("direct pipe", load, false);
    direct("direct pipe, reader stalled", load, true);
    agent("agent, log files", load, Sink::files, false);
    agent("agent, log files stalled", load, Sink::fifos, true);
    agent("agent, console with prefix", load, Sink::console, false);
    agent("agent, console stalled", load, Sink::console, true);
  } catch (const Error& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
