#include "launcher/slurm/control.h"

#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include "common/files.h"

namespace mtl {

namespace {

constexpr int kNotFound = 127;
constexpr int kTooLate = 124;

void read_some(Fd& fd, std::string& text) {
  char bytes[4096];
  const ssize_t got = read(fd.get(), bytes, sizeof bytes);
  if (got > 0) {
    text.append(bytes, static_cast<size_t>(got));
  } else {
    fd.reset();
  }
}

}  // namespace

ControlEnd run_control(const std::vector<std::string>& argv, std::chrono::milliseconds patience) {
  ControlEnd end;
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return end;
  Fd out_read(out[0]);
  Fd out_write(out[1]);
  if (pipe2(err, O_CLOEXEC) != 0) return end;
  Fd err_read(err[0]);
  Fd err_write(err[1]);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  // What SLURM has told this job is nothing that a new one should be told.
  std::vector<char*> env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("SLURM_") || text.starts_with("SLURM_CONF=")) env.push_back(*entry);
  }
  env.push_back(nullptr);
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(null.get(), 0) < 0 || dup2(out_write.get(), 1) < 0 ||
        dup2(err_write.get(), 2) < 0) {
      _exit(kNotFound);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(words[0], words.data(), env.data());
    _exit(kNotFound);
  }
  if (pid < 0) return end;
  out_write.reset();
  err_write.reset();
  const auto until = std::chrono::steady_clock::now() + patience;
  bool late = false;
  while (out_read || err_read) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd polled[2] = {{out_read.get(), POLLIN, 0}, {err_read.get(), POLLIN, 0}};
    late = left.count() <= 0 || poll(polled, 2, static_cast<int>(left.count())) == 0;
    if (late) break;
    if (polled[0].revents != 0) read_some(out_read, end.out);
    if (polled[1].revents != 0) read_some(err_read, end.err);
  }
  if (late) kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  end.code = late ? kTooLate : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  for (std::string* text : {&end.out, &end.err}) {
    while (text->ends_with('\n')) text->pop_back();
  }
  return end;
}

std::string control_field(const std::string& text, const std::string& name) {
  const std::string key = name + "=";
  for (size_t at = 0; (at = text.find(key, at)) != std::string::npos; at += key.size()) {
    if (at > 0 && text[at - 1] != ' ' && text[at - 1] != '\n') continue;
    const size_t start = at + key.size();
    return text.substr(start, text.find_first_of(" \n", start) - start);
  }
  return {};
}

}  // namespace mtl
