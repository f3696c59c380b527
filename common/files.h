// Files that survive a crash: whole-file reads, atomic writes, directory sync.
// All throw Error (Exit::environment, codes file.*) that name the path and the system's reason.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace mtl {

std::string read_file(const std::filesystem::path& path);
// Writes a temporary file beside `path`, fsyncs it, renames it over `path`, fsyncs the directory.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);
void append_line(const std::filesystem::path& path, std::string_view line);
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
