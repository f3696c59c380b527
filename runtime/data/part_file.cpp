// Positions are kept here and every transfer names its own, so that nothing depends on the
// descriptor's.
#include "runtime/data/part_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl {

void fail_data_write(const std::filesystem::path& path, int error) {
  Diagnostic diagnostic;
  diagnostic.code = "data.write";
  diagnostic.what =
      fmt::format("cannot write {}: {}", path.string(), std::generic_category().message(error));
  if (error == ENOSPC || error == EDQUOT) {
    diagnostic.help = "free some space on that file system (see: df -h) and run it again";
  } else if (error == ENOENT || error == ENOTDIR) {
    diagnostic.help = "make the directory first, or check the spelling";
  } else if (error == EFBIG) {
    diagnostic.help = "the limit on file sizes is too low (see: ulimit -f), or the file system's";
  } else {
    diagnostic.help = "check the permissions of the directory, and that its file system is healthy";
  }
  throw Error(Exit::environment, std::move(diagnostic));
}

PartFile::PartFile(const std::filesystem::path& path, Start start, bool lock)
    : path_(path), part_(path.string() + ".part") {
  struct stat info {};
  while (true) {
    int fd = -1;
    do {
      fd = ::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) fail_data_write(part_, errno);
    fd_ = Fd(fd);
    // A file system without locks is no reason not to write.
    if (lock && ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw Error(Exit::environment,
                  {.code = "data.busy",
                   .what = fmt::format("another process is writing {}", part_.string()),
                   .help = "wait for it, or write somewhere else"});
    }
    struct stat named {};
    if (::fstat(fd, &info) != 0) fail_data_write(part_, errno);
    // Another process that just finished has given this very file its final name.
    if (::stat(part_.c_str(), &named) == 0 && named.st_ino == info.st_ino &&
        named.st_dev == info.st_dev) {
      break;
    }
  }
  written_ = info.st_size;
  if (start == Start::empty) cut(0);
  buffer_.reserve(kLargest);
}

void PartFile::write(const void* bytes, size_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  while (count > 0) {
    const size_t now = std::min(count, kLargest);
    std::memcpy(grow(now), from, now);
    from += now;
    count -= now;
  }
}

std::byte* PartFile::grow(size_t count) {
  if (buffer_.size() + count > kLargest) flush();
  buffer_.resize(buffer_.size() + count);
  return buffer_.data() + buffer_.size() - count;
}

void PartFile::cut(int64_t size) {
  flush();
  if (::ftruncate(fd_.get(), size) != 0) fail_data_write(part_, errno);
  written_ = size;
}

void PartFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t count = ::pwrite(fd_.get(), buffer_.data() + done, buffer_.size() - done,
                                   written_ + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_data_write(part_, count < 0 ? errno : EIO);
    done += static_cast<size_t>(count);
  }
  written_ += static_cast<int64_t>(done);
  buffer_.clear();
}

void PartFile::sync() {
  flush();
  if (::fdatasync(fd_.get()) != 0) fail_data_write(part_, errno);
}

void PartFile::rename_to_final() {
  flush();
  // Network file systems report a full disk as late as here.
  if (::close(fd_.release()) != 0) fail_data_write(part_, errno);
  if (::rename(part_.c_str(), path_.c_str()) != 0) fail_data_write(path_, errno);
}

void PartFile::rewind() {
  flush();
  read_at_ = 0;
}

size_t PartFile::read(void* bytes, size_t count) {
  size_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(fd_.get(), static_cast<std::byte*>(bytes) + done, count - done,
                                read_at_ + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_data_write(part_, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  read_at_ += static_cast<int64_t>(done);
  return done;
}

void PartFile::remove() {
  fd_.reset();
  ::unlink(part_.c_str());
}

}  // namespace mtl
