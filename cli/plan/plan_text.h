// A plan for people.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/forecast/beside_steps.h"
#include "runtime/plan/plan.h"

namespace mtl {

// Everything that `mtl plan` prints, for a terminal of so many columns (at least 80). Tables and
// lists that would be longer than a screen are cut, and say so with `...`.
std::string plan_text(const Plan& plan, int columns, const BesideSteps& beside);
// `0-3`, `0 2 4 6`, `0-3 8-11`; long lists end in `...`.
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace mtl
