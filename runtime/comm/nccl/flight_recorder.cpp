#include "runtime/comm/nccl/flight_recorder.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mtl::nccl {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string hex(uint64_t key) {
  return fmt::format("{:016x}", key);
}

std::string ranks_text(std::span<const int> ranks) {
  constexpr size_t kAtMost = 16;
  if (ranks.size() <= kAtMost) return fmt::format("{}", fmt::join(ranks, ", "));
  return fmt::format("{}, ... {} ({} ranks)", fmt::join(ranks.first(kAtMost), ", "), ranks.back(),
                     ranks.size());
}

const FlightDump* dump_of(std::span<const FlightDump> dumps, int rank) {
  const auto found = std::find_if(dumps.begin(), dumps.end(),
                                  [&](const FlightDump& dump) { return dump.rank == rank; });
  return found == dumps.end() ? nullptr : &*found;
}

const GroupProgress* progress_of(const FlightDump& dump, uint64_t group) {
  const auto found =
      std::find_if(dump.groups.begin(), dump.groups.end(),
                   [&](const GroupProgress& progress) { return progress.group.key == group; });
  return found == dump.groups.end() ? nullptr : &*found;
}

const FlightEntry* entry_of(const FlightDump& dump, uint64_t group, uint64_t sequence) {
  const auto found = std::find_if(
      dump.entries.rbegin(), dump.entries.rend(),
      [&](const FlightEntry& entry) { return entry.group == group && entry.sequence == sequence; });
  return found == dump.entries.rend() ? nullptr : &*found;
}

// The two ends of a message are one operation.
std::string kind_of(const std::string& what) {
  std::string kind = what;
  for (const char* end : {"send(", "recv("}) {
    if (kind.starts_with(end)) kind.replace(0, 5, "message(");
  }
  return kind;
}

}  // namespace

std::string words_of(const GroupName& group) {
  if (group.messages) {
    return fmt::format("the messages from rank {} to rank {}", group.ranks.front(),
                       group.ranks.back());
  }
  return fmt::format("the group of ranks {}", ranks_text(group.ranks));
}

std::string to_json_lines(const FlightDump& dump, size_t entries_at_most) {
  std::string text =
      nlohmann::json({{"flight_recorder", 1}, {"rank", dump.rank}, {"reason", dump.reason}}).dump();
  text += '\n';
  for (const GroupProgress& progress : dump.groups) {
    nlohmann::json line = {{"group", hex(progress.group.key)},
                           {"ranks", progress.group.ranks},
                           {"enqueued", progress.enqueued},
                           {"started", progress.started},
                           {"finished", progress.finished}};
    if (progress.group.messages) line["messages"] = true;
    text += line.dump() + '\n';
  }
  const auto time = [](double seconds) {
    return seconds == 0 ? nlohmann::json(nullptr) : nlohmann::json(seconds);
  };
  const size_t count = std::min(entries_at_most, dump.entries.size());
  for (size_t i = dump.entries.size() - count; i < dump.entries.size(); ++i) {
    const FlightEntry& entry = dump.entries[i];
    text += nlohmann::json({{"group", hex(entry.group)},
                            {"sequence", entry.sequence},
                            {"op", entry.what},
                            {"bytes", entry.bytes},
                            {"enqueued_at", time(entry.enqueued)},
                            {"started_at", time(entry.started)},
                            {"finished_at", time(entry.finished)}})
                .dump() +
            '\n';
  }
  return text;
}

std::optional<FlightDump> parse_flight(const std::string& text) {
  FlightDump dump;
  std::istringstream in(text);
  bool begun = false;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    try {
      if (!begun) {
        if (!json.contains("flight_recorder")) return std::nullopt;
        dump.rank = json.at("rank");
        dump.reason = json.value("reason", "");
        begun = true;
        continue;
      }
      const uint64_t key = std::stoull(json.at("group").get<std::string>(), nullptr, 16);
      if (json.contains("sequence")) {
        const auto time = [&](const char* name) {
          const auto& value = json.at(name);
          return value.is_null() ? 0.0 : value.get<double>();
        };
        dump.entries.push_back({.group = key,
                                .sequence = json.at("sequence"),
                                .what = json.at("op"),
                                .bytes = json.at("bytes"),
                                .enqueued = time("enqueued_at"),
                                .started = time("started_at"),
                                .finished = time("finished_at")});
      } else {
        dump.groups.push_back({.group = {.key = key,
                                         .ranks = json.at("ranks"),
                                         .messages = json.value("messages", false)},
                               .enqueued = json.at("enqueued"),
                               .started = json.at("started"),
                               .finished = json.at("finished")});
      }
    } catch (const std::exception&) {
      continue;
    }
  }
  if (!begun) return std::nullopt;
  return dump;
}

Stalled why_stalled(const GroupName& group, uint64_t sequence, std::span<const FlightDump> dumps) {
  Stalled stalled;
  // What the operation is: of the first rank that can tell.
  std::string wanted;
  for (const int rank : group.ranks) {
    const FlightDump* dump = dump_of(dumps, rank);
    const FlightEntry* entry = dump != nullptr ? entry_of(*dump, group.key, sequence) : nullptr;
    if (entry != nullptr && wanted.empty()) wanted = entry->what;
  }
  for (const int rank : group.ranks) {
    const FlightDump* dump = dump_of(dumps, rank);
    if (dump == nullptr) {
      stalled.silent.push_back(rank);
      stalled.words.push_back(fmt::format("rank {} does not answer", rank));
      continue;
    }
    const GroupProgress* progress = progress_of(*dump, group.key);
    const uint64_t enqueued = progress != nullptr ? progress->enqueued : 0;
    if (enqueued < sequence) {
      stalled.not_called.push_back(rank);
      stalled.words.push_back(
          enqueued == 0
              ? fmt::format("rank {} has called nothing there yet", rank)
              : fmt::format("rank {} has not called it (its last there is {})", rank, enqueued));
      continue;
    }
    const FlightEntry* entry = entry_of(*dump, group.key, sequence);
    if (entry != nullptr && kind_of(entry->what) != kind_of(wanted)) {
      stalled.different.push_back(rank);
      stalled.words.push_back(fmt::format("rank {} calls {} instead", rank, entry->what));
    } else if (progress->started < sequence) {
      stalled.not_started.push_back(rank);
      stalled.words.push_back(
          fmt::format("rank {} has called it, but its device has not come to it", rank));
    }
  }
  return stalled;
}

GroupProgress& FlightRecorder::progress(uint64_t group) {
  return *std::find_if(groups_.begin(), groups_.end(),
                       [&](const GroupProgress& progress) { return progress.group.key == group; });
}

void FlightRecorder::add_group(const GroupName& group) {
  const std::scoped_lock lock(mutex_);
  groups_.push_back({.group = group});
}

FlightRecorder::Slot FlightRecorder::enqueued(uint64_t group, uint64_t sequence, std::string what,
                                              int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  FlightEntry entry = {.group = group,
                       .sequence = sequence,
                       .what = std::move(what),
                       .bytes = bytes,
                       .enqueued = now()};
  if (ring_.size() < kEntries) {
    ring_.push_back(std::move(entry));
  } else {
    ring_[count_ % kEntries] = std::move(entry);
  }
  progress(group).enqueued = sequence;
  return count_++;
}

void FlightRecorder::started(Slot slot, uint64_t group, uint64_t sequence) {
  const std::scoped_lock lock(mutex_);
  if (slot + kEntries >= count_) ring_[slot % kEntries].started = now();
  GroupProgress& own = progress(group);
  own.started = std::max(own.started, sequence);
}

void FlightRecorder::finished(Slot slot, uint64_t group, uint64_t sequence) {
  const std::scoped_lock lock(mutex_);
  if (slot + kEntries >= count_) ring_[slot % kEntries].finished = now();
  GroupProgress& own = progress(group);
  own.finished = std::max(own.finished, sequence);
}

FlightDump FlightRecorder::dump(const std::string& reason) const {
  const std::scoped_lock lock(mutex_);
  FlightDump dump = {.rank = rank_, .reason = reason, .groups = groups_};
  for (uint64_t n = count_ - ring_.size(); n < count_; ++n) {
    dump.entries.push_back(ring_[n % kEntries]);
  }
  return dump;
}

}  // namespace mtl::nccl
