// What a node's ranks print, on its way to the launcher over the job's link. Output is what may
// wait: a block of it is sent only while little is under way, so that it neither fills the link's
// queue (which would end the link, and the job with it) nor stands in the way of the few messages
// that matter (ended, stopped). What is given up is what came before the newest lines: people look
// at the end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "rendezvous/link.h"

namespace mtl {

struct OutputRelayOptions {
  // Bytes that may be under way on the link when a block is sent: what a control message waits for
  // (a quarter of a second on a channel of 2 MB/s).
  size_t budget = size_t{512} << 10;
  // Once somebody waits for the end: all the waiting for the link after a request to stop, and how
  // long a link may stand still after the ranks' own end.
  std::chrono::milliseconds patience{2'000};
  // How long the rest may take after the ranks' own end, on a link that moves.
  std::chrono::milliseconds rest{10'000};
};

class OutputRelay {
 public:
  // The hub has to live as long. The thread starts with the first line.
  OutputRelay(LinkHub& hub, LinkId link, int64_t generation,
              const OutputRelayOptions& options = {});
  ~OutputRelay();  // finish()
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // One line, without its newline. Blocks while the link does not keep up. From one thread.
  void line(int rank, bool is_stderr, std::string_view text);
  // A stop was asked for, and the ranks may have words to say yet: from now on the link is waited
  // for no longer than `patience` in all; after that, what comes is dropped. Any thread.
  void hurry();
  // The ranks have ended: from now on the link may stand still for `patience`, and what takes
  // longer than `rest` (after hurry(): `patience`) is dropped. Any thread.
  void ranks_ended();
  // Hurries, hands everything to the hub, and says how much is missing, before the newest of the
  // dropped lines (64 KiB at most). No line may come after it.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  struct Block {
    int rank = 0;
    bool is_stderr = false;
    std::string text;
  };
  void run();
  bool block_complete() const;
  bool ended_before(Clock::time_point now) const;
  void wait_for_link(std::unique_lock<std::mutex>& lock);
  void send(const Block& block);
  void drop(int rank, bool is_stderr, std::string_view text);
  void keep(int rank, bool is_stderr, std::string_view text);

  LinkHub& hub_;
  const LinkId link_;
  const int64_t generation_;
  const OutputRelayOptions options_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable room_;
  std::deque<Block> blocks_;
  size_t bytes_ = 0;  // in blocks_
  bool hurried_ = false;
  bool closing_ = false;
  bool dropping_ = false;  // the patience is used up
  Clock::duration waited_{0};
  std::optional<Clock::time_point> ended_;
  Block gap_;  // where the first dropped line came from
  int64_t dropped_ = 0;
  std::deque<Block> newest_;  // of the dropped lines, one each
  size_t newest_bytes_ = 0;
  std::thread thread_;
};

}  // namespace mtl
