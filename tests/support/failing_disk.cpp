// A disk that fails on request, for a program that is started with LD_PRELOAD of this library:
// while the file $MTL_FAILING_DISK exists, whose content is "fsync" or "write", that call fails
// with EIO for every file below a folder named "checkpoints".
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <sys/uio.h>

namespace {

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

bool fails(const char* call, int fd) {
  const char* const switch_file = std::getenv("MTL_FAILING_DISK");
  if (switch_file == nullptr) return false;
  const int given = ::open(switch_file, O_RDONLY | O_CLOEXEC);
  if (given < 0) return false;
  char wanted[16] = {};
  const ssize_t got = ::read(given, wanted, sizeof wanted - 1);
  ::close(given);
  if (got <= 0 || std::strcmp(wanted, call) != 0) return false;
  char link[64], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return ::readlink(link, path, sizeof path - 1) > 0 &&
         std::strstr(path, "/checkpoints/") != nullptr;
}

template <typename Result>
Result fail() {
  errno = EIO;
  return -1;
}

}  // namespace

extern "C" {

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  return fails("fsync", fd) ? fail<int>() : real(fd);
}
int fdatasync(int fd) {
  static auto* const real = next<int(int)>("fdatasync");
  return fails("fsync", fd) ? fail<int>() : real(fd);
}
ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return fails("write", fd) ? fail<ssize_t>() : real(fd, data, bytes);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return fails("write", fd) ? fail<ssize_t>() : real(fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return fails("write", fd) ? fail<ssize_t>() : real(fd, data, bytes, offset);
}
ssize_t writev(int fd, const struct iovec* parts, int count) {
  static auto* const real = next<ssize_t(int, const struct iovec*, int)>("writev");
  return fails("write", fd) ? fail<ssize_t>() : real(fd, parts, count);
}

}  // extern "C"
