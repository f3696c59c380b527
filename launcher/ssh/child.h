// A child process that talks over one socket: OpenSSH in its own right, or a proxy command. It has
// its own session and is killed when the thread that started it ends.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "common/files.h"

namespace mtl::ssh {

class Child {
 public:
  Child() = default;
  // `input_output` becomes its stdin and stdout, `errors` its stderr (-1 = /dev/null).
  // pid() < 0, with errno set, if it cannot be started; a program that is not there exits with 127.
  Child(const std::vector<std::string>& argv, int input_output, int errors);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();  // kills it and waits for it
  pid_t pid() const { return pid_; }
  // Readable when it has ended.
  int ended_fd() const { return ended_.get(); }
  // Of a child that has ended; the status as waitpid gives it.
  int reap();

 private:
  pid_t pid_ = -1;
  Fd ended_;
};

}  // namespace mtl::ssh
