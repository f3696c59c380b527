#include "cluster/lab/shaper.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <new>
#include <poll.h>
#include <random>
#include <stdexcept>
#include <unistd.h>
#include <vector>

#include <linux/if.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

namespace mtl::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Frame {
  Clock::time_point due;
  std::vector<char> bytes;
};

int open_tap(const std::string& name) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) {
    throw std::runtime_error("no tap device (/dev/net/tun): " + std::string(strerror(errno)));
  }
  return fd;
}

}  // namespace

Shaper::Shaper(const std::string& left, const std::string& right) {
  void* memory =
      mmap(nullptr, sizeof(Settings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
  settings_ = new (memory) Settings;
  int taps[2] = {-1, -1};
  taps[0] = open_tap(left);
  taps[1] = open_tap(right);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    carry(taps, *settings_);
  }
  close(taps[0]);
  close(taps[1]);
  if (pid_ < 0) throw std::runtime_error("cannot fork");
}

Shaper::~Shaper() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  munmap(settings_, sizeof(Settings));
}

void Shaper::set(int64_t delay_us, int loss_ppm) {
  settings_->delay_us = delay_us;
  settings_->loss_ppm = loss_ppm;
}

void Shaper::carry(const int taps[2], const Settings& settings) {
  std::mt19937 random(static_cast<unsigned>(getpid()));
  std::uniform_int_distribution<int> dice(0, 999'999);
  std::deque<Frame> queues[2];  // by the side on which the frames came in, in order of `due`
  std::vector<char> buffer(65536);
  for (;;) {
    Clock::time_point next = Clock::time_point::max();
    for (const auto& queue : queues) {
      if (!queue.empty()) next = std::min(next, queue.front().due);
    }
    pollfd polled[2] = {{taps[0], POLLIN, 0}, {taps[1], POLLIN, 0}};
    timespec timeout{};
    if (next != Clock::time_point::max()) {
      const auto left = std::max(next - Clock::now(), Clock::duration::zero());
      const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
      timeout = {ns / 1'000'000'000, ns % 1'000'000'000};
    }
    ppoll(polled, 2, next == Clock::time_point::max() ? nullptr : &timeout, nullptr);
    for (int side = 0; side < 2; ++side) {
      auto& queue = queues[side];
      // Bounded, so that a flood from one side does not keep the frames of the other.
      for (int burst = 0; burst < 64; ++burst) {
        const ssize_t size = read(taps[side], buffer.data(), buffer.size());
        if (size <= 0) break;
        if (dice(random) < settings.loss_ppm) continue;
        Clock::time_point due = Clock::now() + std::chrono::microseconds(settings.delay_us);
        if (!queue.empty()) due = std::max(due, queue.back().due);
        queue.push_back({due, {buffer.begin(), buffer.begin() + size}});
      }
      const Clock::time_point now = Clock::now();
      while (!queue.empty() && queue.front().due <= now) {
        const std::vector<char>& bytes = queue.front().bytes;
        // A full or absent far side loses the frame, as a line does.
        [[maybe_unused]] const ssize_t sent = write(taps[1 - side], bytes.data(), bytes.size());
        queue.pop_front();
      }
    }
  }
}

}  // namespace mtl::test
