// What becomes of Device::replay() on a device that can record what is enqueued: the first call of
// a key is enqueued as it is (algorithms are chosen, scratch memory grows), the second one is
// recorded, and from then on the recording is launched. Device::anew() divides a recording in two,
// between which something is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace mtl {

// How a device records: CUDA's stream capture, or the tests'.
class Recorder {
 public:
  using Recording = void*;
  virtual ~Recorder() = default;
  // What is enqueued from now on is recorded, and not done.
  virtual void begin() = 0;
  // Null if nothing was enqueued. Throws an Error where it cannot be recorded.
  virtual Recording end() = 0;
  // Drops what was begun, if it still goes on, and the error that ended it. Does not throw.
  virtual void abandon() = 0;
  virtual void launch(Recording recording) = 0;
  // Waits for what of it is under way. Does not throw.
  virtual void destroy(Recording recording) = 0;
};

class Replays {
 public:
  // Keys whose recordings are kept; beyond, those that have not been used for longest go.
  static constexpr size_t kMost = 256;

  // `recorder` outlives this.
  explicit Replays(Recorder& recorder) : recorder_(recorder) {}
  ~Replays() { forget(); }
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;

  void run(const std::string& key, const std::function<void()>& enqueue);
  // Calls `what`, now and in this place of every launch; while something is recorded not now.
  void anew(const std::function<void()>& what);
  // Drops all recordings: memory that they use is about to go. Not to be called while something is
  // recorded. While something is launched (by what is done anew in it) they stay until that is
  // over, and so must the memory.
  void forget();
  // Whether what is enqueued is being recorded: no time to copy, to wait or to allocate.
  bool recording() const { return recording_ != nullptr; }
  // Why nothing is recorded any more; empty: nothing has gone wrong.
  const std::string& trouble() const { return trouble_; }

 private:
  // One of the two.
  struct Part {
    Recorder::Recording recording = nullptr;
    std::function<void()> anew;
  };
  struct Entry {
    std::vector<Part> parts;
    bool recorded = false;
    uint64_t used = 0;
  };
  void record(Entry& entry, const std::function<void()>& enqueue);
  void end_part();
  void launch(const Entry& entry);
  void drop(Entry& entry);
  void make_room();

  Recorder& recorder_;
  std::unordered_map<std::string, Entry> entries_;
  uint64_t calls_ = 0;
  Entry* recording_ = nullptr;
  bool launching_ = false, forget_then_ = false;
  std::string trouble_;
};

}  // namespace mtl
