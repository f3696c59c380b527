// Where output goes: a thread that takes blocks of bytes off a bounded queue and hands each to its
// consumer, so that a slow disk or a stopped terminal never holds up who watches the workers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "common/files.h"

namespace mtl {

// Takes one block: whole lines, or raw bytes, as the pusher and the consumer have agreed.
using Consumer = std::function<void(std::string_view block)>;

class Outlet {
 public:
  // Wakes the owner's poll through `wake` (an eventfd) when there is room again.
  Outlet(size_t capacity_bytes, int wake);
  // Writes what is queued, however long that takes, and joins.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  // The consumer must live as long as the outlet. A full outlet takes the block all the same if it
  // still moves; if nothing went out for kStall the block is dropped and counted.
  void push(const Consumer& consumer, std::string block);
  // False = better not read more for it now: it is full but moves. A stalled outlet accepts,
  // because what it gets is dropped and nobody has to wait for it.
  bool accepts() const;
  // When accepts() turns true without a wake, because the outlet counts as stalled then.
  std::chrono::steady_clock::time_point stall_time() const;
  int64_t dropped_bytes() const;

  static constexpr std::chrono::milliseconds kStall{2'000};

 private:
  bool full() const { return queued_ > capacity_; }
  void run();

  struct Block {
    const Consumer* consumer;
    std::string bytes;
  };
  const size_t capacity_;
  const int wake_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Block> blocks_;
  size_t queued_ = 0;  // bytes, that of the block in hand included
  int64_t dropped_ = 0;
  bool closing_ = false;
  std::chrono::steady_clock::time_point moved_;
  std::thread thread_;
};

// Writes everything to a descriptor, waiting where it would block. False and errno on an error;
// SIGPIPE has to be blocked by the caller.
bool write_all(int fd, std::string_view bytes);

// Calls `on_line` for each line of a block, without its newline.
void each_line(std::string_view block, const std::function<void(std::string_view)>& on_line);

// Cuts a stream into blocks of whole lines.
class LineCutter {
 public:
  static constexpr size_t kMaxLine = 8 << 20;  // a longer line is cut
  // The whole lines that are complete with these bytes, newlines included; may be empty.
  std::string add(std::string_view bytes);
  // The unfinished line at the end of the stream, with a newline added; empty if there is none.
  std::string finish();

 private:
  std::string partial_;
};

}  // namespace mtl
