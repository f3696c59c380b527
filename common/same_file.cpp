#include "common/same_file.h"

#include <sys/stat.h>

namespace mtl {

bool same_regular_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  struct stat first = {}, second = {};
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
         S_ISREG(first.st_mode) && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace mtl
