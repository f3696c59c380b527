// What two runs of the same have to agree in.
#pragma once

#include <cstdint>
#include <string>

#include "sweep/run_one.h"

namespace mtl::sweep {

// "" = they do; else the first thing that differs, with both values. `from_step`: lines and texts
// of later steps are compared, and checkpoints; `b` may have more of these (it was asked to stop).
std::string differs_in_bits(const Outcome& a, const Outcome& b, int64_t from_step);

// How far sums of another order may move a run, by what it computes in.
struct Bounds {
  double first_loss, first_norm, loss, moments;  // relative
};
Bounds bounds_of(const TrainSpec& spec);

// How far they were moved, to see how wide the bounds are.
struct Moved {
  double first_loss = 0, first_norm = 0, loss = 0, moments = 0;
};
std::string is_not_near(const Outcome& a, const Outcome& b, const Bounds& bounds, Moved& moved);

}  // namespace mtl::sweep
