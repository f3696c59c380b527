#include "runtime/device/replays.h"

#include <algorithm>
#include <utility>

#include "common/error.h"

namespace mtl {

void Replays::run(const std::string& key, const std::function<void()>& enqueue) {
  if (!trouble_.empty()) return enqueue();
  const auto [found, is_new] = entries_.try_emplace(key);
  found->second.used = ++calls_;
  if (is_new) {
    enqueue();
    make_room();
    return;
  }
  Entry& entry = found->second;
  if (!entry.recorded) record(entry, enqueue);
  if (!entry.recorded) return enqueue();
  launch(entry);
}

void Replays::anew(const std::function<void()>& what) {
  if (!recording()) return what();
  end_part();
  recording_->parts.push_back({.recording = nullptr, .anew = what});
  recorder_.begin();
}

// Nothing has been done yet where this fails: the ops were not enqueued, so they can be as usual.
// What is wrong with them will show then; else it was the recording.
void Replays::record(Entry& entry, const std::function<void()>& enqueue) {
  try {
    recording_ = &entry;
    recorder_.begin();
    enqueue();
    end_part();
    recording_ = nullptr;
    entry.recorded = true;
  } catch (const Error& error) {
    recorder_.abandon();
    recording_ = nullptr;
    drop(entry);
    trouble_ = error.diagnostics().front().what;
  } catch (...) {
    recorder_.abandon();
    recording_ = nullptr;
    drop(entry);
    throw;
  }
}

void Replays::end_part() {
  const Recorder::Recording made = recorder_.end();
  if (made != nullptr) recording_->parts.push_back({.recording = made, .anew = {}});
}

void Replays::launch(const Entry& entry) {
  const struct Launching {
    explicit Launching(Replays& of) : replays(of) { replays.launching_ = true; }
    ~Launching() {
      replays.launching_ = false;
      if (std::exchange(replays.forget_then_, false)) replays.forget();
    }
    Replays& replays;
  } launching(*this);
  for (const Part& part : entry.parts) {
    part.anew ? part.anew() : recorder_.launch(part.recording);
  }
}

void Replays::drop(Entry& entry) {
  for (const Part& part : entry.parts) {
    if (part.recording != nullptr) recorder_.destroy(part.recording);
  }
  entry.parts.clear();
}

void Replays::make_room() {
  if (entries_.size() <= kMost) return;
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  drop(oldest->second);
  entries_.erase(oldest);
}

void Replays::forget() {
  if (launching_) {
    forget_then_ = true;
    return;
  }
  for (auto& [key, entry] : entries_) drop(entry);
  entries_.clear();
}

}  // namespace mtl
