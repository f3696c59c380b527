// Reads rank logs while they are written: the whole of one with the parts that were moved aside
// (log_file.h), its last lines, and what is added, across rotations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include <sys/stat.h>

#include "common/files.h"

namespace mtl {

// The logs KIND-NUMBER.log of a directory, by number: kind "rank" or "node". Empty if there are
// none, or no such directory.
std::map<int, std::filesystem::path> numbered_logs(const std::filesystem::path& dir,
                                                   const std::string& kind);

class LogReader {
 public:
  // From the beginning of the oldest part.
  explicit LogReader(std::filesystem::path path);
  // Goes to where the last `lines` lines begin. Only before the first read.
  void skip_to_last(int64_t lines);
  // Appends at most some 64 KiB of what comes next; false = nothing for now. A file that does not
  // exist (yet) has nothing.
  bool read(std::string& text);

 private:
  std::filesystem::path part(int n) const;  // 0 = the log itself
  bool exists(int n, struct stat& info) const;
  bool open_oldest();
  bool open_next();

  std::filesystem::path path_;
  Fd fd_;
};

}  // namespace mtl
