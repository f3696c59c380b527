// Which layers of a model a pattern and a list choose.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/spec/train_spec.h"

namespace mtl {

// Ascending, of layers 0 to `layers` - 1; what the list names beyond them is left out.
std::vector<int64_t> chosen_layers(const LayerChoice& choice, int64_t layers);

}  // namespace mtl
