// A terminal whose window is the test: keys are typed into it, what it shows is read, it is closed.
#pragma once

#include <cstring>
#include <fcntl.h>
#include <pty.h>
#include <stdexcept>
#include <string>
#include <termios.h>
#include <unistd.h>
#include <vector>

#include "cluster/jobs.h"

namespace mtl::test {

class Terminal {
 public:
  Terminal() {
    char name[100];
    if (openpty(&master_, &slave_, name, nullptr, nullptr) != 0) {
      throw std::runtime_error("no pseudo terminal: " + std::string(strerror(errno)));
    }
    name_ = name;
    fcntl(master_, F_SETFL, O_NONBLOCK);
    fcntl(master_, F_SETFD, FD_CLOEXEC);
    fcntl(slave_, F_SETFD, FD_CLOEXEC);
  }
  ~Terminal() {
    close_window();
    if (slave_ >= 0) close(slave_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // In a session of its own, with this as its terminal, as a login shell has.
  Command start(const Cluster& cluster, int machine, const std::vector<std::string>& args) const {
    std::string line = "exec setsid --wait --ctty " MTL_PROGRAM " launch";
    for (const std::string& arg : args) line += " '" + arg + "'";
    line += " < " + name_ + " > " + name_ + " 2>&1";
    return cluster.start(machine, {"/bin/sh", "-c", line}, {{"TERM", "xterm"}});
  }
  void type(const char* keys) const {
    if (::write(master_, keys, strlen(keys)) < 0) {
      throw std::runtime_error("the terminal takes no keys");
    }
  }
  // What has been shown so far.
  const std::string& text() {
    char buffer[4096];
    ssize_t got = 0;
    while (master_ >= 0 && (got = read(master_, buffer, sizeof buffer)) > 0) {
      text_.append(buffer, static_cast<size_t>(got));
    }
    return text_;
  }
  bool shows(const std::string& part, Milliseconds within = kPatience) {
    return wait_until([&] { return has(text(), part); }, within);
  }
  std::string modes() const {
    termios modes{};
    if (tcgetattr(slave_, &modes) != 0) return "?";
    return std::to_string(modes.c_iflag) + " " + std::to_string(modes.c_oflag) + " " +
           std::to_string(modes.c_cflag) + " " + std::to_string(modes.c_lflag);
  }
  // The hang-up that a closed window is. The last of our ends of it goes here; the slave's, which
  // we keep for modes(), does not count.
  void close_window() {
    if (master_ >= 0) close(master_);
    master_ = -1;
  }

 private:
  int master_ = -1, slave_ = -1;
  std::string name_, text_;
};

}  // namespace mtl::test
