#include "launcher/slurm/job_logs.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/text.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTask = "%a";
constexpr auto kBetweenSearches = std::chrono::seconds(1);

// A file's name with `from` where the task stands has `to` there.
std::string renamed(const std::string& log, const std::string& from, const std::string& to) {
  const size_t at = log.rfind(from);
  if (log.empty() || at == std::string::npos || log.find('/', at) != std::string::npos) return log;
  return std::string(log).replace(at, from.size(), to);
}

}  // namespace

std::string log_of_task(const std::string& log, const std::string& id) {
  const size_t line = id.find('_');
  return line == std::string::npos ? log : renamed(log, std::string(kTask), id.substr(line + 1));
}

std::string log_of_array(const std::string& log, const std::string& id) {
  const size_t line = id.find('_');
  return line == std::string::npos
             ? log
             : renamed(log, id + ".", fmt::format("{}_{}.", id.substr(0, line), kTask));
}

JobLogs::JobLogs(std::string log, int64_t last_lines)
    : log_(std::move(log)), last_lines_(last_lines) {
  array_ = fs::path(log_).filename().string().find(kTask) != std::string::npos;
  if (!log_.empty() && !array_) add(0, log_);
}

void JobLogs::add(int task, const fs::path& log) {
  Part part{LogReader(log), ConsoleLines(fmt::format("task {}| ", task))};
  if (last_lines_ > 0) part.reader.skip_to_last(last_lines_);
  parts_.emplace(task, std::move(part));
}

void JobLogs::look() {
  next_look_ = std::chrono::steady_clock::now() + kBetweenSearches;
  if (!array_) return;
  const fs::path path = log_;
  const std::string name = path.filename().string();
  const size_t at = name.find(kTask);
  const std::string before = name.substr(0, at), after = name.substr(at + kTask.size());
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), ignored)) {
    const std::string one = entry.path().filename().string();
    if (one.size() <= before.size() + after.size() || !one.starts_with(before) ||
        !one.ends_with(after)) {
      continue;
    }
    const auto task = to_number<int>(
        std::string_view(one).substr(before.size(), one.size() - before.size() - after.size()));
    if (task && !parts_.contains(*task)) add(*task, entry.path());
  }
}

bool JobLogs::read(const Sink& sink) {
  if (std::chrono::steady_clock::now() >= next_look_) look();
  bool any = false;
  for (auto& [task, part] : parts_) {
    for (std::string text; part.reader.read(text); text.clear()) {
      any = true;
      sink(array_ ? part.lines.add(text, ConsoleLines::Clock::now()) : text);
    }
  }
  return any;
}

bool JobLogs::finish(const Sink& sink) {
  look();
  const bool any = read(sink);
  for (auto& [task, part] : parts_) {
    if (const std::string rest = part.lines.finish(); !rest.empty()) sink(rest);
  }
  return any;
}

}  // namespace mtl
