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
#include "runtime/worker.h"

namespace mtl::sweep {

namespace fs = std::filesystem;

namespace {

// Far more than any of these runs takes on a busy machine. Ranks that wait for each other give up
// earlier and say for what.
constexpr int kPatienceMs = 240'000;
constexpr const char* kRankPatienceS = "120";
constexpr int kCrash = 99;  // an exception that is none of ours

void say_errors(const Error& error) {
  for (const Diagnostic& diagnostic : error.diagnostics()) {
    fmt::print(stderr, "{}", render(diagnostic));
  }
}

// In the child. Its exit code; what there is to know beside it lies in files.
int run_here(const Settings& settings, const fs::path& folder, const std::string& name) {
  Settings all = settings;
  all.set("run.dir", folder.string());
  all.set("run.name", name);
  all.set("log.every", 1);
  try {
    const int world = settings.world();
    CheckedRun run =
        check_run({.sources = sources_of(all, (folder / "train.yaml").string()), .world = world});
    const RunDirectory opened = open_run(run, true);
    if (opened.complete) return 0;
    const int64_t fence = begin_generation(opened.dir, run);
    const std::string ranks = std::to_string(world);
    for (const auto& [variable, value] : {std::pair<const char*, std::string>{"RANK", "0"},
                                          {"LOCAL_RANK", "0"},
                                          {"WORLD_SIZE", ranks},
                                          {"LOCAL_WORLD_SIZE", ranks},
                                          {"MTL_RUN_FENCE", std::to_string(fence)},
                                          {"MTL_COMM_TIMEOUT_S", kRankPatienceS},
                                          {"MTL_DEVICE", "cpu"}}) {
      setenv(variable, value.c_str(), 1);
    }
    if (world > 1) setenv("MTL_RANK_THREADS", ranks.c_str(), 1);
    write_file_atomic(folder / (name + ".begun"), opened.dir.string());
    const WorkerStart start{.run_dir = opened.dir};
    return static_cast<int>(run_worker(start));
  } catch (const Error& error) {
    say_errors(error);
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    fmt::print(stderr, "an exception that is no error of ours: {}\n", error.what());
    return kCrash;
  }
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
  const int code = run_here(settings, folder, name);
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

}  // namespace

Outcome run_one(const Settings& settings, const fs::path& folder, const std::string& name) {
  const fs::path said = folder / (name + ".said"), begun = folder / (name + ".begun");
  fs::remove(begun);
  const pid_t pid = start_child(settings, folder, name, said);
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd ended{process, POLLIN, 0};
  Outcome outcome;
  const bool hung = poll(&ended, 1, kPatienceMs) == 0;
  if (hung) kill(pid, SIGKILL);
  close(process);
  int status = 0;
  waitpid(pid, &status, 0);
  outcome.text = fs::exists(said) ? read_file(said) : "";
  outcome.code = first_code(outcome.text);
  const bool began = fs::exists(begun);
  if (began) outcome.dir = read_file(begun);
  if (hung) {
    outcome.end = Outcome::End::hung;
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) == kCrash) {
    outcome.end = Outcome::End::crashed;
    if (WIFSIGNALED(status)) {
      outcome.text += fmt::format("ended by signal {}\n", WTERMSIG(status));
    }
  } else if (WEXITSTATUS(status) != 0) {
    outcome.end = began ? Outcome::End::failed : Outcome::End::refused;
  }
  if (outcome.end != Outcome::End::done || !began) return outcome;
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
