// The PTX in a fat binary, as nvcc puts it into an object and registers it with CUDA's runtime. Its
// format is not documented; this is what cuobjdump shows of those of CUDA 12 and 13.
#pragma once

#include <string>
#include <vector>

namespace mtl::ptx {

// Of what __cudaRegisterFatBinary gets, one for each `code=compute_*`. Throws std::runtime_error
// where it is no fat binary that this knows.
std::vector<std::string> texts_of(const void* registered);

// The compute capability of a text, 90 of ".target sm_90a", and whether it is for that one alone.
struct Target {
  int capability = 0;
  bool only = false;
};
Target target_of(const std::string& text);

// The text that a GPU's code would be made from: of those that it can run, the newest. Null: none.
const std::string* text_for(const std::vector<std::string>& texts, int capability);

}  // namespace mtl::ptx
