// A file that is being written beside the one that it will become: PATH.part. Buffered; it can be
// cut back to where it was synced, so that an interrupted writer goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "common/files.h"

namespace mtl {

// Throws Error (Exit::environment) data.write with the system's reason.
[[noreturn]] void fail_data_write(const std::filesystem::path& path, int error);

class PartFile {
 public:
  enum class Start { empty, keep };  // keep: what is there stays

  // Opens or makes PATH.part; locks it if asked to. All members throw Error (Exit::environment)
  // data.write; this one also data.busy, if another process has the lock.
  PartFile(const std::filesystem::path& path, Start start, bool lock);

  const std::filesystem::path& part_path() const { return part_; }
  int64_t size() const { return written_ + static_cast<int64_t>(buffer_.size()); }
  void write(const void* bytes, size_t count);
  // Room for `count` bytes (at most kLargest), which the caller fills.
  std::byte* grow(size_t count);
  static constexpr size_t kLargest = size_t{1} << 20;
  // Drops what is behind the first `size` bytes; the file has at least as many.
  void cut(int64_t size);
  void flush();
  void sync();  // flush, then to the disk
  // Closes it and gives it its name. The caller has synced it.
  void rename_to_final();
  // Reads back from the start of the file; `read` may be called until it gives 0.
  void rewind();
  size_t read(void* bytes, size_t count);
  void remove();

 private:
  std::filesystem::path path_, part_;
  Fd fd_;
  std::basic_string<std::byte> buffer_;
  int64_t written_ = 0;
  int64_t read_at_ = 0;
};

}  // namespace mtl
