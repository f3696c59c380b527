// What the tests of token files in Megatron's format share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace mtl::test {

// Files that Megatron wrote.
inline const std::filesystem::path kIndexed =
    std::filesystem::path(MTL_SOURCE_DIR) / "tests/reference/indexed";

// The sequences of each document.
using IdsOfDocuments = std::vector<std::vector<std::vector<int32_t>>>;

}  // namespace mtl::test
