// Says of an op that takes long what it is, while it still does: of one that hangs nobody will hear
// anything else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace mtl::bench {

class OpWatch {
 public:
  explicit OpWatch(std::chrono::milliseconds patience)
      : patience_(patience), thread_([this] { serve(); }) {}
  ~OpWatch() {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  OpWatch(const OpWatch&) = delete;
  OpWatch& operator=(const OpWatch&) = delete;

  // `words` is called if it takes too long.
  void begin(std::function<std::string()> words) {
    const std::scoped_lock lock(mutex_);
    words_ = std::move(words);
    since_ = std::chrono::steady_clock::now();
  }
  void end() {
    const std::scoped_lock lock(mutex_);
    words_ = nullptr;
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      changed_.wait_for(lock, patience_ / 4);
      if (!words_ || std::chrono::steady_clock::now() - since_ < patience_) continue;
      std::fprintf(stderr, "takes long: %s\n", words_().c_str());
      std::fflush(stderr);
      words_ = nullptr;
    }
  }

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<std::string()> words_;
  std::chrono::steady_clock::time_point since_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace mtl::bench
