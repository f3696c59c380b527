#include "cli/secret.h"

#include "common/text.h"

namespace mtl {

bool is_secret(const std::string& name) {
  for (const char* word : {"TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH"}) {
    if (contains_ignoring_case(name, word)) return true;
  }
  return false;
}

}  // namespace mtl
