// What becomes of Device::replay() on a device that can record what is enqueued: the first call of
// a key is enqueued as it is (algorithms are chosen, scratch memory grows), the second one is
// recorded, and from then on the recording is launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>

namespace mtl {

// How a device records: CUDA's stream capture, or the tests'.
class Recorder {
 public:
  using Recording = void*;
  virtual ~Recorder() = default;
  // What is enqueued from now on is recorded, and not done.
  virtual void begin() = 0;
  // Throws an Error where it cannot be recorded.
  virtual Recording end() = 0;
  // Drops what was begun, if it still goes on, and the error that ended it. Does not throw.
  virtual void abandon() = 0;
  virtual void launch(Recording recording) = 0;
  // Waits for what of it is under way. Does not throw.
  virtual void destroy(Recording recording) = 0;
};

class Replays {
 public:
  // Recordings that are kept; beyond, the one that has not been used for longest goes.
  static constexpr size_t kMost = 128;

  // `recorder` outlives this.
  explicit Replays(Recorder& recorder) : recorder_(recorder) {}
  ~Replays() { forget(); }
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;

  void run(const std::string& key, const std::function<void()>& enqueue);
  // Drops all recordings: memory that they use has moved. May be called while something is
  // enqueued, not while it is recorded.
  void forget();
  // Whether what is enqueued is being recorded: no time to copy, to wait or to allocate.
  bool recording() const { return recording_; }
  // Why nothing is recorded any more; empty: nothing has gone wrong.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Entry {
    Recorder::Recording recording = nullptr;
    uint64_t used = 0;
  };
  void record(Entry& entry, const std::function<void()>& enqueue);
  void make_room();

  Recorder& recorder_;
  std::unordered_map<std::string, Entry> entries_;
  uint64_t calls_ = 0;
  bool recording_ = false;
  std::string trouble_;
};

}  // namespace mtl
