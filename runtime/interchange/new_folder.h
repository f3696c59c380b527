// A folder that is there whole or not at all: it is filled under another name beside its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/files.h"
#include "runtime/checkpoint/safetensors.h"

namespace mtl {

class NewFolder {
 public:
  // Throws Error (Exit::usage) export.exists when `place` is there and not an empty folder;
  // (Exit::environment) export.write.
  explicit NewFolder(const std::filesystem::path& place);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }  // where to write
  void write(const std::string& name, std::string_view text) const;
  // Gives it its name. What is in it has been fsynced.
  void commit();

 private:
  std::filesystem::path place_, path_;
  bool done_ = false;
};

// A safetensors file whose tensors arrive one after the other.
class SafetensorsFile {
 public:
  // Name, dtype and shape of each; the places are worked out here. Throws export.write.
  SafetensorsFile(const std::filesystem::path& path, std::vector<SafetensorsEntry> entries);
  // The bytes of the tensors, in the order of the entries.
  void append(std::string_view bytes);
  void finish();

 private:
  std::filesystem::path path_;
  Fd fd_;
  int64_t left_ = 0;
};

}  // namespace mtl
