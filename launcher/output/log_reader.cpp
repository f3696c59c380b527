#include "launcher/output/log_reader.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

#include <sys/stat.h>

#include "common/text.h"

namespace mtl {

namespace {

constexpr size_t kChunk = 64 << 10;
// The writer moves parts one after the other while we look at them: at any moment one may be
// missing in the middle, and what was looked at may be somewhere else when it is opened.
constexpr int kAttempts = 1'000;

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
    const size_t first = kind.size() + 1, last = name.size() - 4;
    const auto number = to_number<int>(std::string_view(name).substr(first, last - first));
    if (number && *number >= 0) logs[*number] = entry.path();
  }
  return logs;
}

LogReader::LogReader(std::filesystem::path path) : path_(std::move(path)) {}

std::filesystem::path LogReader::part(int n) const {
  return n == 0 ? path_ : std::filesystem::path(path_.string() + "." + std::to_string(n));
}

bool LogReader::exists(int n, struct stat& info) const {
  return stat(part(n).c_str(), &info) == 0;
}

bool LogReader::open_oldest() {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    int oldest = -1;
    struct stat info {};
    for (int n = 0; n <= oldest + 2; ++n) {
      if (exists(n, info)) oldest = n;
    }
    if (oldest < 0) return false;
    fd_ = Fd(open(part(oldest).c_str(), O_RDONLY | O_CLOEXEC));
    if (fd_) return true;
  }
  return false;
}

void LogReader::skip_to_last(int64_t lines) {
  std::vector<char> buffer(kChunk);
  // The newline at the end of a part ends its last line; each further one begins a line.
  for (int n = 0;; ++n) {
    Fd fd(open(part(n).c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (!fd || fstat(fd.get(), &info) != 0) {
      if (exists(n + 1, info)) continue;
      return;  // fewer lines than that: from the oldest on
    }
    for (off_t end = info.st_size; end > 0;) {
      const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(kChunk));
      const ssize_t got = pread(fd.get(), buffer.data(), static_cast<size_t>(end - begin), begin);
      for (ssize_t i = got; i-- > 0;) {
        const off_t at = begin + i;
        if (buffer[static_cast<size_t>(i)] != '\n' || at == info.st_size - 1) continue;
        if (--lines <= 0) {
          lseek(fd.get(), at + 1, SEEK_SET);
          fd_ = std::move(fd);
          return;
        }
      }
      end = begin;
    }
    if (info.st_size > 0 && --lines <= 0) {  // its first line, with no newline in front of it
      lseek(fd.get(), 0, SEEK_SET);
      fd_ = std::move(fd);
      return;
    }
  }
}

// After the end of the open file: the one that was begun when it was moved aside. Parts may move
// on while we look, always from n to n + 1, so that is taken which has ours behind it both before
// and after it was opened.
bool LogReader::open_next() {
  struct stat mine {
  }, other{};
  if (fstat(fd_.get(), &mine) != 0) return false;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    int ours = -1;
    for (int n = 0, last = 0; n <= last + 2 && ours < 0; ++n) {
      if (!exists(n, other)) continue;
      last = n;
      if (same_file(mine, other)) ours = n;
    }
    if (ours == 0) return false;         // still the newest
    if (ours < 0) return open_oldest();  // gone for good
    Fd next(open(part(ours - 1).c_str(), O_RDONLY | O_CLOEXEC));
    if (!next) {
      if (ours == 1) return false;  // moved aside, and nothing written since
      continue;
    }
    if (exists(ours, other) && same_file(mine, other)) {
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
    struct stat before {
    }, now{};
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
