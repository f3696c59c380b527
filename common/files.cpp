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

namespace mtl {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& code, const std::string& action, const fs::path& path,
                       int error) {
  Diagnostic diagnostic;
  diagnostic.code = code;
  diagnostic.what = fmt::format("cannot {} {}: {}", action, path.string(),
                                std::generic_category().message(error));
  diagnostic.place = Place{path.string()};
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      diagnostic.help =
          "check the spelling of the path; relative paths start at the directory "
          "that the command was started in";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      diagnostic.help = "check the permissions of the path and of the directories above it";
      break;
    case ENOSPC:
    case EDQUOT:
      diagnostic.help = "free some space on that file system (see: df -h) and run it again";
      break;
    case EISDIR:
      diagnostic.help = "name a file inside that directory";
      break;
    default:
      break;
  }
  throw Error(Exit::environment, std::move(diagnostic));
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

// Removes the temporary file unless it was renamed into place.
struct TemporaryFile {
  fs::path path;
  bool kept = false;
  ~TemporaryFile() {
    if (!kept) ::unlink(path.c_str());
  }
};

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

void write_file_atomic(const fs::path& path, std::string_view content, Readers readers) {
  static std::atomic<unsigned> counter{0};
  std::error_code ignored;
  fs::path target = path;
  if (fs::is_symlink(path, ignored)) {
    target = fs::weakly_canonical(path, ignored);
    if (target.empty()) target = path;
  }
  TemporaryFile temporary{target.parent_path() / fmt::format(".{}.{}-{}.tmp",
                                                             target.filename().string(), ::getpid(),
                                                             counter++)};
  const mode_t allowed = readers == Readers::owner ? 0700 : 07777;
  Fd file = open_or_fail("file.write", "write", temporary.path, O_WRONLY | O_CREAT | O_EXCL,
                         0666 & allowed);
  struct stat info {};
  if (::stat(target.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) fail("file.write", "write", path, EISDIR);
    if (::fchmod(file.get(), info.st_mode & allowed) != 0) {
      fail("file.write", "write", path, errno);
    }
  }
  write_all(file, content, "write", path);
  if (::fsync(file.get()) != 0) fail("file.write", "write", path, errno);
  // Network file systems report a full disk as late as here.
  if (::close(file.release()) != 0) fail("file.write", "write", path, errno);
  if (::rename(temporary.path.c_str(), target.c_str()) != 0) {
    fail("file.write", "write", path, errno);
  }
  temporary.kept = true;
  sync_directory(target.parent_path());
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
