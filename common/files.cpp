// Files by system calls, because only they say exactly what failed and can be fsynced.
#include "common/files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <sys/stat.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/refused_path.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& code, const std::string& action, const fs::path& path,
                       int error) {
  throw Error(Exit::environment, refused_path(code, action, path, error));
}

Fd open_or_fail(const std::string& code, const std::string& action, const fs::path& path, int flags,
                mode_t mode = 0666) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail(code, action, path, errno);
  return Fd(fd);
}

void write_all(const Fd& fd, std::string_view content, const std::string& action,
               const fs::path& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("file.write", action, path, errno);
    content.remove_prefix(static_cast<size_t>(written));
  }
}

// What `path` names in the end, whether it is there or not: links are followed, as open() does.
fs::path named_by_links(fs::path path) {
  constexpr int kMostLinks = 40;  // as Linux has it
  std::error_code no_link;
  for (int links = 0; links < kMostLinks; ++links) {
    const fs::path next = fs::read_symlink(path, no_link);
    if (no_link) return path;
    path = path.parent_path() / next;
  }
  return path;
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

void Fd::reset() {
  // Linux closes the descriptor even when close() is interrupted, so it is never repeated.
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string read_file(const fs::path& path, size_t max_bytes) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    fail(missing ? "file.missing" : "file.unreadable", "read", path, errno);
  }
  const Fd file(fd);
  std::string content;
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
    content.reserve(std::min(static_cast<size_t>(info.st_size), max_bytes));
  }
  char buffer[1 << 16];
  while (content.size() < max_bytes) {
    const ssize_t got = ::read(fd, buffer, std::min(sizeof buffer, max_bytes - content.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("file.unreadable", "read", path, errno);
    if (got == 0) break;
    content.append(buffer, static_cast<size_t>(got));
  }
  return content;
}

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

Replacement::Replacement(const fs::path& path) : path_(path), target_(named_by_links(path)) {
  static std::atomic<unsigned> counter{0};
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) fail("file.write", "write", path, EISDIR);
    if (!S_ISREG(info.st_mode)) {
      throw Error(Exit::environment,
                  {.code = "file.write",
                   .what = fmt::format("cannot write {}: it is no file", path.string()),
                   .place = Place{path.string()},
                   .help = "name a file, or a path where there is none"});
    }
    mode_ = info.st_mode & 07777;
  } else if (errno == ELOOP) {
    fail("file.write", "write", path, ELOOP);
  }
  written_ = target_.parent_path() /
             fmt::format(".{}.{}-{}.tmp", target_.filename().string(), ::getpid(), counter++);
}

Replacement::~Replacement() {
  if (!written_.empty()) ::unlink(written_.c_str());
}

void Replacement::finish() {
  if (::rename(written_.c_str(), target_.c_str()) != 0) fail("file.write", "write", path_, errno);
  written_.clear();
  sync_directory(target_.parent_path());
}

void write_file_atomic(const fs::path& path, std::string_view content, Readers readers) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    // A pipe that nobody reads is an error, and none to wait for.
    const Fd file = open_or_fail("file.write", "write", path, O_WRONLY | O_NONBLOCK);
    ::fcntl(file.get(), F_SETFL, O_WRONLY);
    return write_all(file, content, "write", path);
  }
  Replacement replacement(path);
  const mode_t allowed = readers == Readers::owner ? 0700 : 07777;
  int fd = -1;
  do {
    fd = ::open(replacement.written().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                0666 & allowed);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail("file.write", "write", path, errno);
  Fd file(fd);
  if (replacement.mode() && ::fchmod(fd, *replacement.mode() & allowed) != 0) {
    fail("file.write", "write", path, errno);
  }
  write_all(file, content, "write", path);
  if (::fsync(fd) != 0) fail("file.write", "write", path, errno);
  // Network file systems report a full disk as late as here.
  if (::close(file.release()) != 0) fail("file.write", "write", path, errno);
  replacement.finish();
}

void append_line(const fs::path& path, std::string_view line) {
  const Fd file = open_or_fail("file.write", "append to", path, O_WRONLY | O_CREAT | O_APPEND);
  std::string text(line);
  text += '\n';
  write_all(file, text, "append to", path);
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("file.directory", "make the directory", path, error.value());
  // create_directories is content with a file of that name.
  if (!fs::is_directory(path, error)) fail("file.directory", "make the directory", path, EEXIST);
}

void sync_directory(const fs::path& path) {
  const fs::path directory = path.empty() ? fs::path(".") : path;
  const Fd fd =
      open_or_fail("file.directory", "open the directory", directory, O_RDONLY | O_DIRECTORY);
  // Some file systems cannot sync a directory and say so with EINVAL; their renames are ordered.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) {
    fail("file.directory", "sync the directory", directory, errno);
  }
}

}  // namespace mtl
