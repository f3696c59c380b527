// The files of a run that others read while it runs: JSON lines that only grow, and a status that
// is always whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/files.h"

namespace mtl {

// A file of lines, opened for appending: one write per line, so that a reader never sees two lines
// mixed, and a line torn by a crash or a full disk never swallows the next one.
class LineFile {
 public:
  // Throws Error "file.open" (Exit::environment).
  explicit LineFile(std::filesystem::path path);
  // Returns 0, or the errno of the failed write.
  int append(const std::string& line);

 private:
  std::filesystem::path path_;
  Fd fd_;
  bool torn_ = false;  // the file does not end with a line break
};

// Writes all of `text` if the file takes it; returns the bytes written and sets `error`, 0 or an
// errno.
size_t write_some(int fd, std::string_view text, int& error);

// Drops from a metrics.jsonl the lines of steps after `step`, those of `step` itself that have
// `key`, if one is given, and lines that are not JSON objects with a step; replaces the file
// atomically, and only if something has to go. A missing file is fine.
void drop_steps_after(const std::filesystem::path& path, int64_t step, const std::string& key = {});

// Replaces the file by way of a temporary one beside it, for readers, not for power failures: no
// fsync, since this happens every second of a run. Returns 0 or an errno.
int replace_file(const std::filesystem::path& path, const std::string& content);

}  // namespace mtl
