// What a rank wrote about its own failure: the file named by TORCHELASTIC_ERROR_FILE, as torch's
// elastic errors (error_handler.py, 1.9 - 2.x) write it.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace mtl {

struct ErrorFile {
  std::string message;  // "ValueError: ..."; may have several lines
  // To the second: the end of that second.
  std::optional<std::chrono::system_clock::time_point> when;
};

// Nothing if there is no such file, or none that can be understood.
std::optional<ErrorFile> read_error_file(const std::filesystem::path& path);

}  // namespace mtl
