// Where output goes: a thread that takes blocks of bytes off a bounded queue and hands each to its
// consumer, so that a slow disk or a stopped terminal never holds up who watches the workers, nor
// the workers. What does not fit is dropped, counted, and its place marked.
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

struct Consumer {
  // Takes one block: whole lines, or raw bytes, as the pusher and the consumer have agreed.
  std::function<void(std::string_view block)> write;
  // The words that stand where so many bytes were dropped; none = nobody would read them.
  std::function<std::string(int64_t bytes)> gap;
  // The outlet's own.
  int64_t lost = 0;  // bytes since the last block that went in
  int64_t lost_in_all = 0;
};

class Outlet {
 public:
  enum class Policy {
    drop,  // a full queue drops: for disks and terminals, which must not slow a worker
    wait,  // better not read more while it is full and moves (see accepts()); drops if nothing
           // went out for kStall: for somebody's pipe, whose reader wants every byte
  };
  // Wakes the owner's poll through `wake` (an eventfd) when there is room again. The thread starts
  // with the first block.
  Outlet(size_t capacity_bytes, int wake, Policy policy);
  // Writes what is queued, however long that takes, and joins.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  // The consumer must live as long as the outlet. Once a queue under Policy::drop was full, it
  // drops until half of it is free: few long gaps instead of many short ones.
  void push(Consumer& consumer, std::string block);
  // Marks a gap at the end of what a consumer gets, if there is one, full or not.
  void close_gap(Consumer& consumer);
  bool accepts() const;
  // When accepts() turns true without a wake, because the outlet counts as stalled then.
  std::chrono::steady_clock::time_point stall_time() const;
  int64_t dropped_bytes() const;

  static constexpr std::chrono::milliseconds kStall{2'000};

 private:
  bool full() const { return queued_ > capacity_; }
  bool drops();
  void queue(Consumer& consumer, std::string block);
  void start_thread();
  void run();

  struct Block {
    const Consumer* consumer;
    std::string bytes;
  };
  const size_t capacity_;
  const int wake_;
  const Policy policy_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Block> blocks_;
  size_t queued_ = 0;  // bytes, that of the block in hand included
  int64_t dropped_ = 0;
  bool dropping_ = false;
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
