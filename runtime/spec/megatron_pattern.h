// The lists of numbers that flags of Megatron-LM give as Python's: "[0]*3+[1]*58", "([1,0])*2".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace mtl::spec {

// Nothing where it is no sum and product of lists and whole numbers, or longer than `most`.
std::optional<std::vector<int64_t>> python_list(std::string_view text, size_t most);

}  // namespace mtl::spec
