#include "launcher/output/log_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>

#include <sys/stat.h>

#include "launcher/output/outlet.h"
#include "launcher/system/system_error.h"

namespace mtl {

LogFile::LogFile(std::filesystem::path path, int64_t rotate_bytes, int keep)
    : path_(std::move(path)), rotate_bytes_(rotate_bytes), keep_(std::max(keep, 1)) {
  if (!open_file()) throw system_error("cannot open the log " + path_.string(), errno);
}

bool LogFile::open_file() {
  Fd fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0) return false;
  if (!S_ISREG(info.st_mode)) rotate_bytes_ = 0;  // a pipe or device cannot be moved aside
  size_ = S_ISREG(info.st_mode) ? info.st_size : 0;
  fd_ = std::move(fd);
  return true;
}

void LogFile::write(std::string_view block) {
  while (!block.empty() && error_ == 0) {
    size_t fits = block.size();
    if (rotates()) {
      const int64_t room = rotate_bytes_ - size_;
      if (static_cast<int64_t>(fits) > room) {
        const size_t end =
            room > 0 ? block.rfind('\n', static_cast<size_t>(room) - 1) : std::string_view::npos;
        if (end == std::string_view::npos && size_ > 0) {
          rotate();
          continue;
        }
        // A line that is larger than a whole file has one for itself.
        fits = (end == std::string_view::npos ? std::min(block.find('\n'), fits - 1) : end) + 1;
      }
    }
    write_part(block.substr(0, fits));
    block.remove_prefix(fits);
  }
}

void LogFile::write_part(std::string_view part) {
  if (!write_all(fd_.get(), part)) error_ = errno;
  size_ += static_cast<int64_t>(part.size());
}

void LogFile::rotate() {
  const auto numbered = [&](int n) { return path_.string() + "." + std::to_string(n); };
  for (int n = keep_ - 1; n >= 1; --n) {
    if (rename(numbered(n).c_str(), numbered(n + 1).c_str()) != 0 && errno != ENOENT) {
      rotate_error_ = errno;
      return;
    }
  }
  if (rename(path_.c_str(), numbered(1).c_str()) != 0 || !open_file()) rotate_error_ = errno;
}

}  // namespace mtl
