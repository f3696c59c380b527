// A 32-bit word in memory shared between processes that one can sleep on.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <unistd.h>

#include <linux/futex.h>
#include <sys/syscall.h>

namespace mtl::shm {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// Sleeps while the word holds `seen`, at most `limit`; may wake for no reason.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit) {
  timespec time = {};
  time.tv_sec = static_cast<time_t>(limit.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(limit.count() % 1'000'000'000);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A word that changes, with the number of those who sleep on it, so that a change costs a system
// call only if somebody does. Zeroed memory is a valid Signal.
struct alignas(128) Signal {
  std::atomic<uint32_t> word;
  std::atomic<uint32_t> sleepers;

  void set(uint32_t value) {
    word.store(value, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(word);
  }
  // Sleeps while the word holds `seen`. The sleeper counts itself before the kernel looks at the
  // word again, and set() changes the word before it looks at the count: one of the two notices.
  void sleep(uint32_t seen, std::chrono::nanoseconds limit) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(word, seen, limit);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
};

}  // namespace mtl::shm
