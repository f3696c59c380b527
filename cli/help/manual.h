// The manual pages: mtl(1), a page for each command, and mtl-train.yaml(5); all from what the
// commands declare, from the topics of `mtl help` and from the schema of train.yaml.
#pragma once

#include <string>
#include <vector>

#include "cli/help/man_page.h"

namespace mtl {

// `date` stands at the foot of each.
std::vector<ManPage> manual_pages(const std::string& date);

}  // namespace mtl
