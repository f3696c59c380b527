// With 0, 1 or 2 closed the next pipe would sit there and be taken for the terminal: while this
// lives, /dev/null does.
#pragma once

#include <fcntl.h>
#include <unistd.h>
#include <vector>

namespace mtl {

class StandardDescriptors {
 public:
  StandardDescriptors() {
    for (int fd = 0; fd <= 2; ++fd) {
      if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) == fd) filled_.push_back(fd);
    }
  }
  ~StandardDescriptors() {
    for (int fd : filled_) close(fd);
  }
  StandardDescriptors(const StandardDescriptors&) = delete;
  StandardDescriptors& operator=(const StandardDescriptors&) = delete;

 private:
  std::vector<int> filled_;
};

}  // namespace mtl
