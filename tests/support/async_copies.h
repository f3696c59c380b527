// The asynchronous copies of 16 bytes (cp.async) that a thread of the emulated GPU has under way.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

namespace mtl::gpu_on_host {

class AsyncCopies {
 public:
  // From nullptr: zeros.
  void start(void* to, const void* from, bool arrives_at_once) {
    if (arrives_at_once) return carry_out({to, from});
    open_.push_back({to, from});
  }
  // What has been started since the last one is a group.
  void commit() { groups_.push_back(std::exchange(open_, {})); }
  // Until at most so many groups are under way.
  void wait(size_t pending) {
    while (groups_.size() > pending) {
      carry_out(groups_.front());
      groups_.erase(groups_.begin());
    }
  }
  // Copies that nobody waited for arrive some time, those of no group never.
  void end() {
    wait(0);
    open_.clear();
  }

 private:
  struct Copy {
    void* to;
    const void* from;
  };
  static void carry_out(const Copy& copy) {
    if (copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, 16);
    } else {
      std::memset(copy.to, 0, 16);
    }
  }
  static void carry_out(const std::vector<Copy>& group) {
    for (const Copy& copy : group) carry_out(copy);
  }

  std::vector<std::vector<Copy>> groups_;
  std::vector<Copy> open_;
};

}  // namespace mtl::gpu_on_host
