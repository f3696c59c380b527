// A plan for people.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"

namespace mtl {

// Everything that `mtl plan` prints, lines of at most 100 columns where the numbers allow it.
std::string plan_text(const Plan& plan);
// `0-3`, `0 2 4 6`, `0-3 8-11`; long lists end in `...`.
std::string ranks_text(const std::vector<int>& ranks);
// `F0 F1 B0 F2 B1 B2 | reduce step`: forwards and backwards by micro-batch. The middle of a long
// program is left out.
std::string program_text(const Program& program);

}  // namespace mtl
