// A rank's log: appended to, and with a size limit moved aside (.1 the newest, .2, ...) between two
// lines, so that no line is lost or torn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "common/files.h"

namespace mtl {

class LogFile {
 public:
  // rotate_bytes 0 = never. At most `keep` older files stay. Throws Error "launch.process" if it
  // cannot be opened.
  LogFile(std::filesystem::path path, int64_t rotate_bytes, int keep);

  // Whole lines. After an error nothing more is written, see error().
  void write(std::string_view block);

  const std::filesystem::path& path() const { return path_; }
  int error() const { return error_; }                // errno of the first write that failed
  int rotate_error() const { return rotate_error_; }  // ... rename: the file grows on since then

 private:
  bool rotates() const { return rotate_bytes_ > 0 && rotate_error_ == 0; }
  bool open_file();
  void rotate();
  void write_part(std::string_view part);

  std::filesystem::path path_;
  int64_t rotate_bytes_;
  int keep_;
  Fd fd_;
  int64_t size_ = 0;
  int error_ = 0;
  int rotate_error_ = 0;
};

}  // namespace mtl
