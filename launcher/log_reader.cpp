#include "launcher/log_reader.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

#include <sys/stat.h>

namespace mtl {

namespace {

constexpr size_t kChunk = 64 << 10;

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

std::map<int, std::filesystem::path> numbered_logs(const std::filesystem::path& dir,
                                                   const std::string& kind) {
  std::map<int, std::filesystem::path> logs;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kind + "-") || !name.ends_with(".log")) continue;
    const char* first = name.data() + kind.size() + 1;
    const char* last = name.data() + name.size() - 4;
    int number = 0;
    const auto [end, error] = std::from_chars(first, last, number);
    if (error == std::errc() && end == last && number >= 0) logs[number] = entry.path();
  }
  return logs;
}

LogReader::LogReader(std::filesystem::path path) : path_(std::move(path)) {}

std::filesystem::path LogReader::part(int n) const {
  return n == 0 ? path_ : std::filesystem::path(path_.string() + "." + std::to_string(n));
}

bool LogReader::open_part(int n, off_t offset) {
  Fd fd(open(part(n).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return false;
  if (offset > 0) lseek(fd.get(), offset, SEEK_SET);
  fd_ = std::move(fd);
  return true;
}

bool LogReader::open_oldest() {
  int oldest = 0;
  while (access(part(oldest + 1).c_str(), F_OK) == 0) ++oldest;
  return open_part(oldest, 0);
}

void LogReader::skip_to_last(int64_t lines) {
  std::vector<char> buffer(kChunk);
  // The newline at the end of a part ends its last line; each further one begins a line.
  for (int n = 0;; ++n) {
    const Fd fd(open(part(n).c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (!fd || fstat(fd.get(), &info) != 0) return;  // fewer lines than that: from the oldest on
    for (off_t end = info.st_size; end > 0;) {
      const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(kChunk));
      const ssize_t got = pread(fd.get(), buffer.data(), static_cast<size_t>(end - begin), begin);
      for (ssize_t i = got; i-- > 0;) {
        const off_t at = begin + i;
        if (buffer[static_cast<size_t>(i)] != '\n' || at == info.st_size - 1) continue;
        if (--lines <= 0) {
          open_part(n, at + 1);
          return;
        }
      }
      end = begin;
    }
    if (info.st_size > 0 && --lines <= 0) {  // its first line, with no newline in front of it
      open_part(n, 0);
      return;
    }
  }
}

// After the end of the open file: the one that was begun when it was moved aside. Parts may move
// on while we look, so that is taken which is right before and after opening it.
bool LogReader::open_next() {
  struct stat mine {}, other {};
  if (fstat(fd_.get(), &mine) != 0) return false;
  for (int attempt = 0; attempt < 100; ++attempt) {
    int n = 0;
    bool exists = stat(part(0).c_str(), &other) == 0;
    if (exists && same_file(mine, other)) return false;  // still the newest
    while (true) {
      ++n;
      exists = stat(part(n).c_str(), &other) == 0;
      if (!exists || same_file(mine, other)) break;
    }
    if (!exists) {
      if (n > 1) return open_oldest();  // ours is gone for good
      continue;                         // between two renames
    }
    Fd next(open(part(n - 1).c_str(), O_RDONLY | O_CLOEXEC));
    if (!next) {
      if (n == 1) return false;  // moved aside, and nothing written since
      continue;
    }
    if (stat(part(n).c_str(), &other) == 0 && same_file(mine, other)) {
      // Still ours there: what was opened in front of it is its successor.
      fd_ = std::move(next);
      return true;
    }
  }
  return false;
}

bool LogReader::read(std::string& text) {
  if (!fd_ && !open_oldest()) return false;
  char buffer[kChunk];
  for (;;) {
    ssize_t got = ::read(fd_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
      return true;
    }
    struct stat before {}, now {};
    fstat(fd_.get(), &before);
    const bool moved = stat(path_.c_str(), &now) != 0 || !same_file(before, now);
    if (!moved) return false;
    // It may have got its last lines after our read and before it was moved.
    got = ::read(fd_.get(), buffer, sizeof buffer);
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
      return true;
    }
    if (!open_next()) return false;
  }
}

}  // namespace mtl
