#include "launcher/system/system_error.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace mtl {

Error system_error(const std::string& what, int error) {
  std::string help =
      "check the limits on processes and open files: ulimit -u -n, and pids.max of the container";
  if (error == EACCES || error == EROFS) {
    help = "the user who runs mtl on that machine has to be able to write there";
  } else if (error == ENOSPC || error == EDQUOT) {
    help = "free some space on that file system (see: df -h, df -i) and run it again";
  }
  return Error(Exit::environment, Diagnostic{.code = "launch.process",
                                             .what = fmt::format("{}: {}", what, strerror(error)),
                                             .help = help});
}

}  // namespace mtl
