// A line with a delay and losses between two network devices of this namespace, frame by frame in a
// process of its own: not every kernel has netem.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <sys/types.h>

namespace mtl::test {

class Shaper {
 public:
  // Makes the tap devices `left` and `right` in the caller's network namespace and carries frames
  // between them until destroyed. Throws std::runtime_error.
  Shaper(const std::string& left, const std::string& right);
  ~Shaper();
  Shaper(const Shaper&) = delete;
  Shaper& operator=(const Shaper&) = delete;
  // For frames that arrive from now on, in each direction.
  void set(int64_t delay_us, int loss_ppm);

 private:
  struct Settings {
    std::atomic<int64_t> delay_us{0};
    std::atomic<int> loss_ppm{0};
  };
  [[noreturn]] static void carry(const int taps[2], const Settings& settings);
  Settings* settings_ = nullptr;  // shared with the process
  pid_t pid_ = -1;
};

}  // namespace mtl::test
