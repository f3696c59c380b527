#include "sweep/run_one.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <poll.h>
#include <sstream>
#include <unistd.h>

#include <sys/syscall.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "common/files.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/run.h"
#include "runtime/run_directory.h"
#include "sweep/run_ranks.h"

namespace mtl::sweep {

namespace fs = std::filesystem;

namespace {

// Far more than any of these runs takes on a busy machine.
constexpr int kPatienceMs = 240'000;

// In the child. Its exit code; what there is to know beside it lies in files.
int run_here(const Settings& settings, const fs::path& folder, const std::string& name) {
  Settings all = settings;
  all.set("run.dir", folder.string());
  all.set("run.name", name);
  all.set("log.every", 1);
  Ranks ranks;
  ranks.world = settings.world();
  ranks.processes = settings.text("launch.spawn") == "processes";
  ranks.notes = folder / name;
  CheckedRun run = check_run(
      {.sources = sources_of(all, (folder / "train.yaml").string()), .world = ranks.world});
  const RunDirectory opened = open_run(run, true);
  write_file_atomic(folder / (name + ".begun"), opened.dir.string());
  if (opened.complete) return 0;
  ranks.run_dir = opened.dir;
  ranks.fence = begin_generation(opened.dir, run);
  return run_ranks(ranks);
}

pid_t start_child(const Settings& settings, const fs::path& folder, const std::string& name,
                  const fs::path& said) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int nothing = open("/dev/null", O_RDWR);
  const int out = open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(nothing, 0);
  dup2(nothing, 1);
  dup2(out, 2);
  // Reports go where nobody reads them, and no page is made of the run.
  setenv("MTL_PROGRESS_FD", std::to_string(nothing).c_str(), 1);
  const int code = saying_errors([&] { return run_here(settings, folder, name); });
  std::fflush(nullptr);
  _exit(code);
}

std::string first_code(const std::string& text) {
  const size_t begin = text.find("error[");
  if (begin == std::string::npos) return {};
  const size_t end = text.find(']', begin);
  return text.substr(begin + 6, end - begin - 6);
}

std::vector<nlohmann::json> lines_of(const fs::path& path) {
  std::vector<nlohmann::json> lines;
  if (!fs::exists(path)) return lines;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// Threads get the signal with their process. Of processes one is killed, or all are asked.
void interrupt(pid_t pid, const Settings& settings, const fs::path& notes,
               const Interruption& interruption) {
  const int world = settings.world();
  int got_it = 0;
  for (int rank = 0; rank < world; ++rank) {
    const fs::path id = id_file(notes, rank);
    const bool chosen = interruption.signal == SIGTERM || rank == interruption.rank % world;
    if (!chosen || !fs::exists(id)) continue;
    kill(std::stoi(read_file(id)), interruption.signal);
    ++got_it;
  }
  if (got_it == 0) kill(pid, interruption.signal);
}

// Until the run has logged so much; whether it has not ended before.
bool wait_for(const Interruption& interruption, pollfd& ended, const fs::path& begun) {
  const auto logged = [&] {
    if (!fs::exists(begun)) return false;
    const fs::path metrics = fs::path(read_file(begun)) / "metrics.jsonl";
    if (!fs::exists(metrics)) return false;
    const std::string text = read_file(metrics);
    return std::count(text.begin(), text.end(), '\n') >= interruption.lines;
  };
  while (interruption.lines > 0 && !logged()) {
    if (poll(&ended, 1, 1) != 0) return false;
  }
  return poll(&ended, 1, interruption.after_ms) == 0;
}

// Whether it ended as the signal asks: by it, or with a checkpoint.
bool was_asked(int status, int signal) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == signal;
  return WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(Exit::requeue);
}

}  // namespace

Outcome run_one(const Settings& settings, const fs::path& folder, const std::string& name,
                const std::optional<Interruption>& interruption) {
  const fs::path said = folder / (name + ".said"), begun = folder / (name + ".begun");
  fs::remove(begun);
  for (int rank = 0; rank < settings.world(); ++rank) fs::remove(id_file(folder / name, rank));
  const auto start = std::chrono::steady_clock::now();
  const pid_t pid = start_child(settings, folder, name, said);
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd ended{process, POLLIN, 0};
  Outcome outcome;
  if (interruption && wait_for(*interruption, ended, begun)) {
    interrupt(pid, settings, folder / name, *interruption);
  }
  const bool hung = poll(&ended, 1, kPatienceMs) == 0;
  if (hung) kill(pid, SIGKILL);
  close(process);
  int status = 0;
  waitpid(pid, &status, 0);
  outcome.took_ms = static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                         std::chrono::steady_clock::now() - start)
                                         .count());
  outcome.text = fs::exists(said) ? read_file(said) : "";
  outcome.code = first_code(outcome.text);
  const bool began = fs::exists(begun);
  if (began) outcome.dir = read_file(begun);
  if (hung) {
    outcome.end = Outcome::End::hung;
  } else if (interruption && was_asked(status, interruption->signal)) {
    outcome.end = Outcome::End::stopped;
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) == kCrash) {
    outcome.end = Outcome::End::crashed;
    if (WIFSIGNALED(status)) {
      outcome.text += fmt::format("ended by signal {}\n", WTERMSIG(status));
    }
  } else if (WEXITSTATUS(status) != 0) {
    outcome.end = began ? Outcome::End::failed : Outcome::End::refused;
  }
  const bool readable = outcome.end == Outcome::End::done || outcome.end == Outcome::End::failed;
  if (!readable || !began) return outcome;
  outcome.steps = lines_of(outcome.dir / "metrics.jsonl");
  outcome.texts = lines_of(outcome.dir / "generated.jsonl");
  for (nlohmann::json& text : outcome.texts) {
    text.erase("seconds");
    text.erase("time");
  }
  return outcome;
}

std::vector<int64_t> checkpoint_steps(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
    const auto name = parse_step_name(entry.path().filename().string());
    if (name) steps.push_back(name->step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void copy_run_until(const Outcome& run, int64_t step, const fs::path& folder,
                    const std::string& name) {
  const fs::path copy = folder / name / run.dir.filename();
  fs::create_directories(copy.parent_path());
  fs::copy(run.dir, copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  for (const auto& entry : fs::directory_iterator(copy / "checkpoints")) {
    const auto found = parse_step_name(entry.path().filename().string());
    if (found && found->step > step) fs::remove_all(entry.path());
  }
  for (const char* link : {"latest", "best"}) fs::remove(copy / link);
}

}  // namespace mtl::sweep
