// A file of somebody else's, mapped for reading. Every access is checked against its size.
#pragma once

#include <filesystem>
#include <string_view>

namespace mtl {

class MappedFile {
 public:
  // Throws Error (Exit::data) import.unreadable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string_view bytes() const { return {data_, size_}; }

 private:
  std::filesystem::path path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mtl
