#include "runtime/device/replays.h"

#include <algorithm>

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
  if (entry.recording == nullptr) record(entry, enqueue);
  if (entry.recording == nullptr) return enqueue();
  recorder_.launch(entry.recording);
}

// Nothing has been done yet where this fails: the ops were not enqueued, so they can be as usual.
// What is wrong with them will show then; else it was the recording.
void Replays::record(Entry& entry, const std::function<void()>& enqueue) {
  try {
    recorder_.begin();
    recording_ = true;
    enqueue();
    recording_ = false;
    entry.recording = recorder_.end();
  } catch (const Error& error) {
    recorder_.abandon();
    recording_ = false;
    trouble_ = error.diagnostics().front().what;
  } catch (...) {
    recorder_.abandon();
    recording_ = false;
    throw;
  }
}

void Replays::make_room() {
  if (entries_.size() <= kMost) return;
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  if (oldest->second.recording != nullptr) recorder_.destroy(oldest->second.recording);
  entries_.erase(oldest);
}

void Replays::forget() {
  for (auto& [key, entry] : entries_) {
    if (entry.recording != nullptr) recorder_.destroy(entry.recording);
  }
  entries_.clear();
}

}  // namespace mtl
