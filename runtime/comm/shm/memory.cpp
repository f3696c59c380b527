// memfd_create, /proc/<pid>/fd and mmap.
#include "runtime/comm/shm/memory.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <unistd.h>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl::shm {

namespace {

[[noreturn]] void throw_no_memory(const char* call, size_t bytes) {
  throw Error(Exit::out_of_memory,
              {.code = "comm.memory",
               .what = fmt::format("cannot make {} bytes of shared memory ({}: {})", bytes, call,
                                   strerror(errno)),
               .help = "check ulimit -v, ulimit -n and the memory of the machine or container; "
                       "or use a smaller model or micro-batch (see: mtl plan)"});
}

[[noreturn]] void throw_no_access(const MemoryName& name, const char* reason) {
  throw Error(
      Exit::environment,
      {.code = "comm.host",
       .what = fmt::format("cannot open the memory of process {} (/proc/{}/fd/{}): {}", name.pid,
                           name.pid, name.fd, reason),
       .help = "ranks that share memory must run on one host, in one container and as one user"});
}

void* map_file(int fd, size_t bytes) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer knows memory by its address. Ranks that are threads of one process have to see a
// file at the same one, or it would know neither what orders them nor where they race; so a file is
// mapped once, for good.
void* mapping_of(int fd, size_t bytes) {
  static std::mutex mutex;
  static std::map<ino_t, void*> mappings;
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return MAP_FAILED;
  const std::scoped_lock lock(mutex);
  void*& mapping = mappings.try_emplace(status.st_ino, MAP_FAILED).first->second;
  if (mapping == MAP_FAILED) mapping = map_file(fd, bytes);
  return mapping;
}

void unmap(void*, size_t) {}
#else
void* mapping_of(int fd, size_t bytes) {
  return map_file(fd, bytes);
}

void unmap(void* data, size_t bytes) {
  ::munmap(data, bytes);
}
#endif

}  // namespace

SharedMemory SharedMemory::create(const char* label, size_t bytes) {
  SharedMemory memory;
  memory.bytes_ = bytes;
  memory.fd_ = ::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory.fd_ < 0) throw_no_memory("memfd_create", bytes);
  if (::ftruncate(memory.fd_, static_cast<off_t>(bytes)) != 0) throw_no_memory("ftruncate", bytes);
  // A file cut short by a defect elsewhere would kill its readers with SIGBUS.
  if (::fcntl(memory.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_no_memory("F_ADD_SEALS", bytes);
  }
  memory.map();
  return memory;
}

SharedMemory SharedMemory::open(const MemoryName& name) {
  SharedMemory memory;
  memory.bytes_ = name.bytes;
  const std::string path = fmt::format("/proc/{}/fd/{}", name.pid, name.fd);
  memory.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (memory.fd_ < 0) throw_no_access(name, strerror(errno));
  struct stat status = {};
  if (::fstat(memory.fd_, &status) != 0) throw_no_access(name, strerror(errno));
  // The number may mean another process or another file by now, or in another pid namespace.
  if (status.st_dev != name.device || status.st_ino != name.inode ||
      static_cast<uint64_t>(status.st_size) != name.bytes) {
    throw_no_access(name, "it is not the file that the process announced");
  }
  memory.map();
  memory.close_file();
  return memory;
}

void SharedMemory::map() {
  void* const data = mapping_of(fd_, bytes_);
  if (data == MAP_FAILED) throw_no_memory("mmap", bytes_);
  data_ = static_cast<char*>(data);
  // Used where the system allows huge pages for shared memory; harmless elsewhere.
  ::madvise(data, bytes_, MADV_HUGEPAGE);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedMemory::~SharedMemory() {
  close_file();
  if (data_ != nullptr) unmap(data_, bytes_);
}

MemoryName SharedMemory::name() const {
  struct stat status = {};
  if (::fstat(fd_, &status) != 0) throw_no_memory("fstat", bytes_);
  return {.pid = ::getpid(),
          .fd = fd_,
          .device = status.st_dev,
          .inode = status.st_ino,
          .bytes = bytes_};
}

void SharedMemory::close_file() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace mtl::shm
