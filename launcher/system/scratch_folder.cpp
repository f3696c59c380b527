#include "launcher/system/scratch_folder.h"

#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

namespace mtl {

namespace fs = std::filesystem;

namespace {

// Longer than it takes from making a folder to locking it.
constexpr time_t kYoung_s = 60;

fs::path base() {
  const char* given = std::getenv("TMPDIR");
  return given != nullptr && *given != '\0' ? given : "/tmp";
}

// An absent one where somebody else has the folder, or it is gone.
Fd lock(const fs::path& folder) {
  Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return {};
  return fd;
}

void remove_left_behind(const std::string& name) {
  std::error_code ignored;
  for (fs::directory_iterator entry(base(), ignored), end; entry != end; entry.increment(ignored)) {
    const fs::path& path = entry->path();
    const std::string file = path.filename().string();
    if (!file.starts_with(name + "-") || file.size() != name.size() + 7) continue;
    const Fd fd = lock(path);
    struct stat found {};
    if (!fd || fstat(fd.get(), &found) != 0 || found.st_uid != geteuid()) continue;
    if (time(nullptr) - found.st_mtime > kYoung_s) fs::remove_all(path, ignored);
  }
}

}  // namespace

fs::path make_scratch_folder(const std::string& name) {
  std::string path = (base() / (name + "-XXXXXX")).string();
  return mkdtemp(path.data()) != nullptr ? fs::path(path) : fs::path();
}

ScratchFolder::ScratchFolder(const std::string& name) {
  remove_left_behind(name);
  path_ = make_scratch_folder(name);
  if (!path_.empty()) lock_ = lock(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace mtl
