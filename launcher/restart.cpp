#include "launcher/restart.h"

#include "common/error.h"

namespace mtl {

bool may_restart(int exit_code, bool is_ours) {
  if (exit_code == 126 || exit_code == 127) return false;
  if (!is_ours) return true;
  switch (static_cast<Exit>(exit_code)) {
    case Exit::usage:
    case Exit::config:
    case Exit::environment:
    case Exit::out_of_memory:
    case Exit::data:
      return false;
    default:
      return true;
  }
}

}  // namespace mtl
