#include "runtime/interchange/new_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/checkpoint/rectangles.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void cannot_write(const fs::path& path, const std::string& why) {
  throw Error(Exit::environment, {.code = "export.write",
                                  .what = fmt::format("cannot write {}: {}", path.string(), why),
                                  .help = "check the permissions and the space there"});
}

[[noreturn]] void cannot_write(const fs::path& path) {
  cannot_write(path, std::generic_category().message(errno));
}

}  // namespace

NewFolder::NewFolder(const fs::path& place) {
  const fs::path whole = fs::absolute(place).lexically_normal();
  place_ = whole.has_filename() ? whole : whole.parent_path();
  std::error_code error;
  if (fs::exists(fs::symlink_status(place_, error)) &&
      !(fs::is_directory(place_, error) && fs::is_empty(place_, error))) {
    throw Error(Exit::usage, {.code = "export.exists",
                              .what = place_.string() + " is there already",
                              .help = "give the name of a new folder, or remove this one"});
  }
  path_ = place_;
  path_ += fmt::format(".writing-{}", ::getpid());
  try {
    make_directories(place_.parent_path());
  } catch (const Error& failed) {
    cannot_write(place_, failed.diagnostics()[0].what);
  }
  fs::remove_all(path_, error);
  if (!fs::create_directory(path_, error)) cannot_write(path_, error.message());
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!done_) fs::remove_all(path_, ignored);
}

void NewFolder::write(const std::string& name, std::string_view text) const {
  try {
    write_file_atomic(path_ / name, text);
  } catch (const Error& error) {
    cannot_write(path_ / name, error.diagnostics()[0].what);
  }
}

void NewFolder::commit() {
  std::error_code error;
  sync_directory(path_);
  fs::rename(path_, place_, error);
  if (error) cannot_write(place_, error.message());
  done_ = true;
  sync_directory(place_.parent_path());
}

SafetensorsFile::SafetensorsFile(const fs::path& path, std::vector<SafetensorsEntry> entries)
    : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
  if (!fd_) cannot_write(path_);
  int64_t at = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.begin = at;
    at += *volume(entry.shape) * safetensors_element_bytes(entry.dtype);
    entry.end = at;
  }
  const std::string header = safetensors_header(entries, {{"format", "pt"}});
  left_ = at + static_cast<int64_t>(header.size());
  append(header);
}

void SafetensorsFile::append(std::string_view bytes) {
  left_ -= static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) cannot_write(path_);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

void SafetensorsFile::finish() {
  if (left_ != 0) cannot_write(path_, "its tensors are not those of its header");
  if (::fsync(fd_.get()) != 0) cannot_write(path_);
  if (::close(fd_.release()) != 0 && errno != EINTR) cannot_write(path_);
}

}  // namespace mtl
