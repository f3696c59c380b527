// Folders of their own under TMPDIR, for what the ranks leave behind.
#pragma once

#include <filesystem>
#include <string>

#include "common/files.h"

namespace mtl {

// One that stays: NAME-XXXXXX. Empty if there can be none.
std::filesystem::path make_scratch_folder(const std::string& name);

// One that goes away. As nobody can clean up after a SIGKILL, the next of that name removes what
// such processes of this user have left: folders are locked as long as they are in use.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }  // empty if there could be none

 private:
  std::filesystem::path path_;
  Fd lock_;
};

}  // namespace mtl
