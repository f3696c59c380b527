#include "common/file_lock.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include <sys/file.h>

namespace mtl {

std::optional<Fd> take_lock(const std::filesystem::path& path) {
  Fd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  // Who only looks, as below, has it for a moment.
  for (int attempt = 0; lock && flock(lock.get(), LOCK_EX | LOCK_NB) != 0; ++attempt) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) break;
    if (attempt == 4) return std::nullopt;
    usleep(20'000);
  }
  return lock;
}

Fd lock_directory_of(const std::filesystem::path& path) {
  for (std::filesystem::path dir = std::filesystem::absolute(path);; dir = dir.parent_path()) {
    Fd lock(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock && dir.has_relative_path()) continue;
    while (lock && flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
    return lock;
  }
}

std::optional<bool> is_locked(const std::filesystem::path& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  if (flock(file.get(), LOCK_SH | LOCK_NB) == 0) return false;
  return errno == EWOULDBLOCK ? std::optional(true) : std::nullopt;
}

}  // namespace mtl
