#include "launcher/scratch_folder.h"

#include <cstdlib>

namespace mtl {

ScratchFolder::ScratchFolder(const std::string& name) {
  const char* base = std::getenv("TMPDIR");
  std::string path = base != nullptr && *base != '\0' ? base : "/tmp";
  path += "/" + name + "-XXXXXX";
  if (mkdtemp(path.data()) != nullptr) path_ = path;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty() && !kept_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace mtl
