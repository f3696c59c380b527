#include "launcher/slurm/srun.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "launcher/agent/program.h"
#include "launcher/slurm/step.h"
#include "launcher/system/system_error.h"

namespace mtl {

namespace {

// After the agents have been told that the job is over. srun waits longer for a node that is gone,
// until SLURM notices.
constexpr int kEndPatienceMs = 2'000;
constexpr int kTermPatienceMs = 1'000;

Launch prepared(const std::vector<std::string>& argv) {
  WorkerCommand command;
  command.argv = argv;
  command.unset = srun_variables();
  // srun takes those of the component that it is to start for.
  const char* size = std::getenv("SLURM_HET_SIZE");
  for (int i = 0; size != nullptr && i < std::min(std::atoi(size), kMostComponents); ++i) {
    for (const std::string& name : srun_variables()) {
      for (const char* group : {"HET", "PACK"}) {  // of today, and of SLURM before 20.02
        command.unset.push_back(fmt::format("{}_{}_GROUP_{}", name, group, i));
      }
    }
  }
  try {
    return prepare_launch(command);
  } catch (const Error&) {
    throw Error(Exit::environment,
                {.code = "slurm.srun",
                 .what = "this is a SLURM job, and there is no srun in PATH to start agents with",
                 .help = "inside a container, start mtl launch outside of it (slurm.container runs "
                         "the ranks in one); --standalone uses this machine only, --hosts ssh"});
  }
}

}  // namespace

Srun::Srun(const std::vector<std::string>& argv, std::string_view line) {
  const Launch launch = prepared(argv);
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0) throw system_error("cannot make a pipe", errno);
  const Fd in_read(in[0]);
  const Fd in_write(in[1]);
  if (pipe2(out, O_CLOEXEC) != 0) throw system_error("cannot make a pipe", errno);
  output_ = Fd(out[0]);
  const Fd out_write(out[1]);
  fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  // Less than a pipe takes at once.
  if (write(in_write.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw system_error("cannot write to a pipe", errno);
  }
  std::vector<char*> words;
  for (const std::string& word : launch.argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::vector<char*> env;
  for (const std::string& entry : launch.env) env.push_back(const_cast<char*>(entry.c_str()));
  env.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    setsid();  // a Ctrl-C at the terminal is the launcher's business
    // It ends its step then; the agents have lost us and end by themselves.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || dup2(in_read.get(), 0) < 0 || dup2(out_write.get(), 1) < 0 ||
        dup2(out_write.get(), 2) < 0) {
      _exit(126);
    }
    for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execve(launch.program.c_str(), words.data(), env.data());
    _exit(127);
  }
  if (pid_ < 0) throw system_error("cannot start a process", errno);
  pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
}

Srun::~Srun() {
  if (ended_) return;
  if (ends_within(kEndPatienceMs)) return;
  kill(pid_, SIGTERM);
  if (ends_within(kTermPatienceMs)) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Srun::end_step() const {
  if (!ended_) kill(pid_, SIGTERM);
}

bool Srun::ends_within(int milliseconds) {
  for (int waited = 0;; waited += 10) {
    if (output_) read_lines();  // it must not wait for us
    if (waitpid(pid_, nullptr, WNOHANG) != 0) return ended_ = true;
    if (waited >= milliseconds) return false;
    pollfd polled[2] = {{pidfd_.get(), POLLIN, 0}, {output_.get(), POLLIN, 0}};
    poll(polled, 2, 10);
  }
}

std::vector<std::string> Srun::read_lines() {
  char bytes[4096];
  ssize_t got = 0;
  while (output_ && (got = read(output_.get(), bytes, sizeof bytes)) > 0) {
    unfinished_.append(bytes, static_cast<size_t>(got));
  }
  if (output_ && (got == 0 || errno != EAGAIN)) {
    output_.reset();
    if (!unfinished_.empty()) unfinished_ += '\n';
  }
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t end; (end = unfinished_.find('\n', start)) != std::string::npos; start = end + 1) {
    if (end > start) lines.push_back(unfinished_.substr(start, end - start));
  }
  unfinished_.erase(0, start);
  return lines;
}

int Srun::take_end() {
  int status = 0;
  waitpid(pid_, &status, 0);
  ended_ = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace mtl
