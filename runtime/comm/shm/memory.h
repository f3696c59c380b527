// Memory that other processes of this user can map: a memfd, which has no name in any file system,
// so nothing is left when its processes die. Peers open it by /proc/<pid>/fd/<fd>.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace mtl::shm {

// Where to find another process's memory file while that keeps it open. Trivial: it lies in shared
// memory itself.
struct MemoryName {
  int32_t pid;
  int32_t fd;
  uint64_t device;
  uint64_t inode;
  uint64_t bytes;
};

class SharedMemory {
 public:
  SharedMemory() = default;
  // Zeroed, page-aligned, of a size that nobody can change. `label` shows in /proc/<pid>/maps.
  // Throws Error "comm.memory" (Exit::out_of_memory).
  static SharedMemory create(const char* label, size_t bytes);
  // Throws Error "comm.host" (Exit::environment) if the process cannot be looked into.
  static SharedMemory open(const MemoryName& name);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Of create()d memory, until close_file().
  MemoryName name() const;
  // The mapping stays; new peers cannot open it any more.
  void close_file();

 private:
  void map();

  char* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace mtl::shm
