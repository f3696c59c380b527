#include "sweep/run_ranks.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/worker.h"

namespace mtl::sweep {

namespace fs = std::filesystem;

namespace {

// Ranks that wait for each other give up before the run is taken for hung, and say for what.
constexpr const char* kRankPatienceS = "120";
constexpr auto kUntilHeard = std::chrono::milliseconds(50);  // of a rank that was killed

void set_environment(const Ranks& ranks, int rank) {
  const std::string world = std::to_string(ranks.world);
  for (const auto& [variable, value] :
       {std::pair<const char*, std::string>{"RANK", std::to_string(rank)},
        {"LOCAL_RANK", std::to_string(rank)},
        {"WORLD_SIZE", world},
        {"LOCAL_WORLD_SIZE", world},
        {"MTL_RUN_FENCE", std::to_string(ranks.fence)},
        {"MTL_COMM_TIMEOUT_S", kRankPatienceS},
        {"MTL_DEVICE", "cpu"}}) {
    setenv(variable, value.c_str(), 1);
  }
  if (ranks.world > 1 && !ranks.processes) setenv("MTL_RANK_THREADS", world.c_str(), 1);
}

fs::path said_file(const fs::path& notes, int rank) {
  return fmt::format("{}.{}.said", notes.string(), rank);
}

// One rank, or all as threads.
int work(const Ranks& ranks, int rank) {
  set_environment(ranks, rank);
  WorkerStart start{.run_dir = ranks.run_dir};
  if (ranks.processes) {
    start.folder = ranks.run_dir.parent_path();
    start.open = [&](int, int) { return OpenedRun{ranks.run_dir, ranks.fence}; };
  }
  return static_cast<int>(run_worker(start));
}

pid_t start_rank(const Ranks& ranks, int rank) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) raise(SIGKILL);
  const int out = open(said_file(ranks.notes, rank).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(out, 2);
  const int code = saying_errors([&] { return work(ranks, rank); });
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

fs::path id_file(const fs::path& notes, int rank) {
  return fmt::format("{}.{}.pid", notes.string(), rank);
}

int saying_errors(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    for (const Diagnostic& diagnostic : error.diagnostics()) {
      fmt::print(stderr, "{}", render(diagnostic));
    }
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    fmt::print(stderr, "an exception that is no error of ours: {}\n", error.what());
    return kCrash;
  }
}

int run_ranks(const Ranks& ranks) {
  if (!ranks.processes) return work(ranks, 0);
  std::vector<pid_t> alive;
  for (int rank = 0; rank < ranks.world; ++rank) alive.push_back(start_rank(ranks, rank));
  for (int rank = 0; rank < ranks.world; ++rank) {
    write_file_atomic(id_file(ranks.notes, rank), std::to_string(alive[static_cast<size_t>(rank)]));
  }
  int first = 0;
  for (int left = ranks.world; left > 0; --left) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    for (int rank = 0; rank < ranks.world; ++rank) {
      if (alive[static_cast<size_t>(rank)] != ended) continue;
      alive[static_cast<size_t>(rank)] = 0;
      if (first != 0 || status == 0) continue;
      first = WIFEXITED(status) ? WEXITSTATUS(status) : kCrash;
      fmt::print(stderr, "{}", read_file(said_file(ranks.notes, rank)));
      if (WIFSIGNALED(status)) fmt::print(stderr, "rank {} was killed\n", rank);
    }
    if (!WIFSIGNALED(status)) continue;
    if (WTERMSIG(status) != SIGKILL) return kCrash;  // the others go with this process
    std::this_thread::sleep_for(kUntilHeard);
    raise(SIGKILL);
  }
  return first;
}

}  // namespace mtl::sweep
