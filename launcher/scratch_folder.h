// A folder of its own under TMPDIR for what the ranks leave behind; goes away unless it is kept.
#pragma once

#include <filesystem>
#include <string>

namespace mtl {

class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }  // empty if there could be none
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

}  // namespace mtl
