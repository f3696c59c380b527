#include "faulty_disk.h"

#include <cerrno>
#include <cstdarg>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <sys/syscall.h>

namespace mtl::test {

namespace {

namespace fs = std::filesystem;

// What a power loss would undo.
struct Unsynced {
  enum class Kind { data, entry, rename } kind;
  fs::path path;  // now
  fs::path from;  // of a rename
};

struct Disk {
  bool armed = false;
  Fault fault = Fault::count;
  int64_t at = 0;
  int64_t calls = 0;
  int error_number = 0;
  std::function<void()> meanwhile;
  std::vector<Unsynced> unsynced;
};
Disk disk;

fs::path absolute(const char* path) {
  return fs::absolute(path).lexically_normal();
}

fs::path path_of(int fd) {
  char buffer[4096];
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), buffer, sizeof buffer);
  return std::string(buffer, length > 0 ? static_cast<size_t>(length) : 0);
}

[[noreturn]] void lose_power() {
  disk.armed = false;
  std::error_code ignored;
  for (const Unsynced& change : disk.unsynced) {
    if (change.kind != Unsynced::Kind::data) continue;
    const auto size = fs::file_size(change.path, ignored);
    if (!ignored) fs::resize_file(change.path, size / 2, ignored);
  }
  for (auto it = disk.unsynced.rbegin(); it != disk.unsynced.rend(); ++it) {
    if (it->kind == Unsynced::Kind::entry) fs::remove_all(it->path, ignored);
    if (it->kind == Unsynced::Kind::rename) fs::rename(it->path, it->from, ignored);
  }
  ::_exit(kCrashExit);
}

// Counts one change; true if it has to fail, with errno set.
bool trips(bool needs_space) {
  if (!disk.armed) return false;
  const int64_t call = ++disk.calls;
  if (disk.fault == Fault::full && call >= disk.at && needs_space) {
    errno = ENOSPC;
    return true;
  }
  if (call != disk.at) return false;
  switch (disk.fault) {
    case Fault::error:
      errno = disk.error_number;
      return true;
    case Fault::crash:
      ::_exit(kCrashExit);
    case Fault::power_loss:
      lose_power();
    case Fault::freeze:
      disk.armed = false;
      disk.meanwhile();
      disk.armed = true;
      break;
    case Fault::count:
    case Fault::full:
      break;
  }
  return false;
}

void note(Unsynced::Kind kind, const fs::path& path, const fs::path& from = {}) {
  if (disk.armed) disk.unsynced.push_back({kind, path, from});
}

void renamed(const fs::path& from, const fs::path& to, bool replaced) {
  if (!disk.armed) return;
  for (Unsynced& change : disk.unsynced) {
    if (change.kind == Unsynced::Kind::data && change.path == from) change.path = to;
  }
  // An entry that never was durable under its first name is a new entry under the second.
  if (!replaced) note(Unsynced::Kind::rename, to, from);
}

void synced(int fd) {
  if (!disk.armed) return;
  const fs::path path = path_of(fd);
  std::erase_if(disk.unsynced, [&](const Unsynced& change) {
    return change.kind == Unsynced::Kind::data ? change.path == path
                                               : change.path.parent_path() == path;
  });
}

}  // namespace

void arm(Fault fault, int64_t at, int error_number) {
  disk = {};
  disk.fault = fault;
  disk.at = at;
  disk.error_number = error_number;
  disk.armed = true;
}

void freeze_at(int64_t at, std::function<void()> meanwhile) {
  arm(Fault::freeze, at);
  disk.meanwhile = std::move(meanwhile);
}

int64_t disarm() {
  disk.armed = false;
  return disk.calls;
}

}  // namespace mtl::test

using mtl::test::Fault;
using mtl::test::Unsynced;
namespace faulty = mtl::test;

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
  }
  const bool creates = (flags & O_CREAT) && ::access(path, F_OK) != 0;
  if ((flags & O_CREAT) && faulty::trips(true)) return -1;
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (fd >= 0 && creates) faulty::note(Unsynced::Kind::entry, faulty::absolute(path));
  return fd;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  if (faulty::disk.armed && faulty::disk.calls + 1 == faulty::disk.at &&
      (faulty::disk.fault == Fault::crash || faulty::disk.fault == Fault::power_loss)) {
    ::syscall(SYS_write, fd, data, bytes / 2);
  }
  if (faulty::trips(true)) return -1;
  // Short writes are legal, so there are some.
  if (faulty::disk.armed && bytes > 100) bytes = bytes * 3 / 4;
  const auto put = static_cast<ssize_t>(::syscall(SYS_write, fd, data, bytes));
  if (put > 0) faulty::note(Unsynced::Kind::data, faulty::path_of(fd));
  return put;
}

int fsync(int fd) {
  if (faulty::trips(true)) return -1;
  // Power is lost in our books alone, so the real disk is not asked: it takes most of the time.
  const int result = ::fcntl(fd, F_GETFD) < 0 ? -1 : 0;
  if (result == 0) faulty::synced(fd);
  return result;
}

int fdatasync(int fd) {
  return fsync(fd);
}

int rename(const char* from, const char* to) {
  if (faulty::trips(true)) return -1;
  const auto source = faulty::absolute(from);
  const auto target = faulty::absolute(to);
  struct stat info = {};
  const bool replaced = ::lstat(to, &info) == 0;
  const int result = static_cast<int>(::syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
  if (result == 0) faulty::renamed(source, target, replaced);
  return result;
}

int symlink(const char* target, const char* path) {
  if (faulty::trips(true)) return -1;
  const int result = static_cast<int>(::syscall(SYS_symlinkat, target, AT_FDCWD, path));
  if (result == 0) faulty::note(Unsynced::Kind::entry, faulty::absolute(path));
  return result;
}

int mkdir(const char* path, mode_t mode) {
  if (faulty::trips(true)) return -1;
  const int result = static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0) faulty::note(Unsynced::Kind::entry, faulty::absolute(path));
  return result;
}

int unlink(const char* path) {
  if (faulty::trips(false)) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int unlinkat(int dir, const char* path, int flags) {
  if (faulty::trips(false)) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, dir, path, flags));
}

int remove(const char* path) {
  if (faulty::trips(false)) return -1;
  const auto result = ::syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  if (result == 0 || errno != EISDIR) return static_cast<int>(result);
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}

}  // extern "C"
