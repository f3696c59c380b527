// The one place that knows the MTL_VERSION macro, so that a new version recompiles one file.
#include "common/version.h"

namespace mtl {

std::string version() {
  return MTL_VERSION;
}

}  // namespace mtl
