// What new runs begin from: the weights of a run, in every form that init.from reads.
#pragma once

#include <filesystem>
#include <string>

#include "sweep/draw.h"
#include "sweep/run_one.h"

namespace mtl::sweep {

struct Begin {
  std::filesystem::path from;
  std::string refusal;  // why there is none: an export of a model that no other program knows
};

// Made in `folder`, as `source` and `imported`.
Begin begin_from(Source source, const Outcome& run, uint64_t seed,
                 const std::filesystem::path& folder);

}  // namespace mtl::sweep
