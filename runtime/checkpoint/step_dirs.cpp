// Names and folders of checkpoints and of attempts at them (step_dirs.h).
#include "runtime/checkpoint/step_dirs.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <system_error>
#include <tuple>

#include <fmt/format.h>

#include "common/files.h"
#include "runtime/checkpoint/write_error.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr size_t kStepDigits = 8;  // at least
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kDeleted = ".deleted";
constexpr const char* kWritten = "checkpoint";

// Takes the digits that `text` begins with.
std::optional<int64_t> take_number(std::string_view& text) {
  if (text.empty() || text.front() == '-') return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// Takes an attempt's folder away from ranks that may still work in it.
void take_away(const fs::path& folder) {
  fs::path doomed = folder;
  doomed += kDeleted;
  std::error_code error;
  fs::remove_all(doomed, error);
  fs::rename(folder, doomed, error);
  // One that is not there any more has just been deleted by its rank.
  if (error && error != std::errc::no_such_file_or_directory) fail_write(folder, error.message());
  // Clients of a network file system rename by the folder's handle, which its new name changes
  // nothing about. So what they could put in place goes too, in one instant, and the folder itself.
  fs::rename(doomed / kWritten, doomed / kDeleted, error);
  fs::remove_all(doomed, error);  // if this is not all, remove_attempts() tries again
}

}  // namespace

std::optional<StepName> parse_step_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const size_t before = name.size();
  const auto step = take_number(name);
  if (!step || before - name.size() < kStepDigits) return std::nullopt;
  StepName parsed{.step = *step, .fence = {}, .deleted = false};
  if (name.starts_with(kWriting)) {
    name.remove_prefix(kWriting.size());
    parsed.fence = take_number(name);
    if (!parsed.fence) return std::nullopt;
  }
  parsed.deleted = name == kDeleted;
  if (!name.empty() && !parsed.deleted) return std::nullopt;
  return parsed;
}

std::vector<StepDir> step_dirs(const fs::path& checkpoints_dir) {
  std::vector<StepDir> dirs;
  for (const auto& entry : fs::directory_iterator(checkpoints_dir)) {
    if (const auto name = parse_step_name(entry.path().filename().string())) {
      dirs.push_back({*name, entry.path()});
    }
  }
  const auto rank = [](const StepDir& dir) {
    return std::tuple(-dir.name.step, !dir.name.is_checkpoint(), -dir.name.fence.value_or(0));
  };
  std::sort(dirs.begin(), dirs.end(),
            [&](const StepDir& a, const StepDir& b) { return rank(a) < rank(b); });
  return dirs;
}

fs::path checkpoint_path(const fs::path& checkpoints_dir, int64_t step) {
  return checkpoints_dir / fmt::format("{}{:08d}", kPrefix, step);
}

fs::path attempt_path(const CheckpointAttempt& attempt) {
  // Without a slash at the end, and with a parent.
  fs::path dir = fs::absolute(attempt.dir).lexically_normal();
  if (!dir.has_filename()) dir = dir.parent_path();
  dir += fmt::format("{}{}", kWriting, attempt.fence);
  return dir;
}

fs::path written_path(const CheckpointAttempt& attempt) {
  return attempt_path(attempt) / kWritten;
}

void remove_attempts(const fs::path& checkpoints_dir, int64_t fence) {
  // What was moved into them must not be back in its place, half deleted, after a power loss.
  sync_directory(checkpoints_dir);
  std::exception_ptr first;
  for (const StepDir& dir : step_dirs(checkpoints_dir)) {
    if (!dir.name.deleted && (!dir.name.fence || *dir.name.fence > fence)) continue;
    try {
      if (fs::is_directory(dir.path)) sync_directory(dir.path);
      fs::remove_all(dir.path);
    } catch (const fs::filesystem_error&) {
      // One that cannot be deleted keeps nobody from deleting the others.
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void fence_off_attempts(const fs::path& checkpoints_dir, int64_t fence) {
  as_write_error(checkpoints_dir, [&] {
    try {
      // Nothing is there yet. Whatever else keeps us from looking is an error, or an old rank could
      // go on.
      if (!fs::exists(checkpoints_dir)) return;
      // Of a folder that it has changed itself, a client of a network file system takes a fresh
      // list.
      const fs::path probe = checkpoints_dir / fmt::format(".fence-{}", fence);
      fs::create_directory(probe);
      fs::remove(probe);
      for (const StepDir& dir : step_dirs(checkpoints_dir)) {
        if (!dir.name.deleted && dir.name.fence && *dir.name.fence < fence) take_away(dir.path);
      }
    } catch (const fs::filesystem_error& failed) {
      fail_write(checkpoints_dir, failed.code().message());
    }
    sync_directory(checkpoints_dir);
  });
}

}  // namespace mtl
