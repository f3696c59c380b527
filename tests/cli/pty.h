// A program in a terminal of its own: keys in, screen bytes out.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <poll.h>
#include <pty.h>
#include <string>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>
#include <vector>

#include <sys/ioctl.h>
#include <sys/wait.h>

namespace mtl::test {

class Pty {
 public:
  Pty(const std::vector<std::string>& argv, const std::map<std::string, std::string>& env,
      const std::string& folder, int columns = 80, int rows = 24) {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = static_cast<unsigned short>(rows);
    std::vector<char*> words;
    for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    int terminal = -1;
    if (openpty(&master_, &terminal, nullptr, nullptr, &size) != 0) std::abort();
    modes_before_ = modes();  // the program may change them as soon as it is there
    pid_ = fork();
    if (pid_ != 0) {
      close(terminal);
      return;
    }
    close(master_);
    if (login_tty(terminal) != 0) _exit(97);
    if (chdir(folder.c_str()) != 0) _exit(99);
    for (const auto& [name, value] : env) setenv(name.c_str(), value.c_str(), 1);
    execv(words[0], words.data());
    _exit(98);
  }
  ~Pty() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(master_);
  }
  Pty(const Pty&) = delete;
  Pty& operator=(const Pty&) = delete;

  void send(const std::string& keys) {
    [[maybe_unused]] const ssize_t sent = write(master_, keys.data(), keys.size());
  }
  // Reads until `text` has appeared since the last call; false if it never does.
  bool wait_for(const std::string& text) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(180);
    while (std::chrono::steady_clock::now() < until) {
      const size_t at = screen_.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      if (!read_some()) return screen_.find(text, seen_) != std::string::npos;
    }
    return false;
  }
  // The exit code, or 128 + signal; of a program that says nothing for three minutes, that of
  // SIGKILL.
  int finish() {
    while (read_some()) {
    }
    int status = 0;
    if (!ended_) kill(pid_, SIGKILL);
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  void resize(int columns, int rows) {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = static_cast<unsigned short>(rows);
    ioctl(master_, TIOCSWINSZ, &size);
  }
  const termios& modes_before() const { return modes_before_; }
  termios modes() const {
    termios modes{};
    tcgetattr(master_, &modes);
    return modes;
  }
  void signal(int number) { kill(pid_, number); }
  const std::string& screen() const { return screen_; }

 private:
  bool read_some() {
    pollfd wait{master_, POLLIN, 0};
    if (poll(&wait, 1, 180'000) <= 0) return false;
    char buffer[4096];
    const ssize_t got = read(master_, buffer, sizeof(buffer));
    if (got <= 0) {  // EIO: the program has ended
      ended_ = true;
      return false;
    }
    screen_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  pid_t pid_ = -1;
  int master_ = -1;
  termios modes_before_{};
  std::string screen_;
  size_t seen_ = 0;
  bool ended_ = false;
};

}  // namespace mtl::test
