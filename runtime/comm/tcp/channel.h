// The messages of one rank to another, on a connection of their own that carries nothing back. The
// sender writes what the kernel takes and keeps the rest, which a thread of the channel sends on;
// the receiver reads straight into its tensor.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/tcp/connections.h"

namespace mtl::tcp {

class OutgoingChannel {
 public:
  // Connects, at the latest within the timeout.
  OutgoingChannel(std::shared_ptr<Core> core, uint64_t group, int to);
  // What was sent goes out first, unless the receiver is gone or takes nothing for the timeout.
  ~OutgoingChannel();
  OutgoingChannel(const OutgoingChannel&) = delete;
  OutgoingChannel& operator=(const OutgoingChannel&) = delete;

  void send(const Tensor& x);

 private:
  using Clock = std::chrono::steady_clock;

  // Writes what the kernel takes at once; the number of bytes.
  int64_t write(const char* data, int64_t bytes);
  void keep(const char* data, int64_t bytes, const Tensor& x);
  void send_kept();

  const std::shared_ptr<Core> core_;
  const int to_;
  const Connection connection_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<char>> kept_;
  int64_t kept_bytes_ = 0;
  bool ending_ = false, broken_ = false;
  std::thread thread_;  // started by the first bytes that are kept
};

class IncomingChannel {
 public:
  // Waits for the sender's first message, at most the timeout.
  IncomingChannel(std::shared_ptr<Core> core, uint64_t group, int from, const Tensor& first);
  void receive(const Tensor& x);

 private:
  using Clock = std::chrono::steady_clock;

  void read(char* data, int64_t bytes, const Tensor& x);

  const std::shared_ptr<Core> core_;
  const int from_;
  const Connection connection_;
};

}  // namespace mtl::tcp
