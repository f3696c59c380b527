#include "launcher/system/own_program.h"

#include <unistd.h>

namespace mtl {

std::string own_program() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "mtl";
}

}  // namespace mtl
