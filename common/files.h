// Files that survive a crash: whole-file reads, atomic writes, directory sync.
// All throw Error (Exit::environment, codes file.*) that name the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace mtl {

// The whole file, or its first `max_bytes` (pipes and devices end there too).
// Codes file.missing, file.unreadable.
std::string read_file(const std::filesystem::path& path, size_t max_bytes = SIZE_MAX);
// Without its newline; "" where there is none to read. For the kernel's small files.
std::string first_line(const std::filesystem::path& path);
// A file that comes into the place of another when it is complete: the old one is intact until
// then, and if that never comes. A symbolic link stays, and what it names is replaced.
class Replacement {
 public:
  // Code file.write for a directory, a device or a pipe, which are not to be replaced.
  explicit Replacement(const std::filesystem::path& path);
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement();
  // Where the content is to be written, beside what it replaces; gone if it is not finished.
  const std::filesystem::path& written() const { return written_; }
  // The permissions of what is replaced, if there is something.
  const std::optional<unsigned>& mode() const { return mode_; }
  // After the content has been fsynced: renames it, fsyncs the directory. Codes file.*.
  void finish();

 private:
  std::filesystem::path path_, target_, written_;
  std::optional<unsigned> mode_;
};

// A Replacement with `content` and the permissions of what it replaces; for `owner`, others can at
// no moment read it. Code file.write; the old content is then intact. Into a device or a pipe it
// writes.
enum class Readers { as_before, owner };
void write_file_atomic(const std::filesystem::path& path, std::string_view content,
                       Readers readers = Readers::as_before);
// Appends `line` and a newline in one write, so that lines of several writers do not mix.
void append_line(const std::filesystem::path& path, std::string_view line);
// With all parents; nothing to do when it exists. Code file.directory.
void make_directories(const std::filesystem::path& path);
void sync_directory(const std::filesystem::path& path);

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset();

 private:
  int fd_ = -1;
};

}  // namespace mtl
