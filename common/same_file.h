// Whether two paths name one file. What reads one and writes the other would lose what it has read.
#pragma once

#include <filesystem>

namespace mtl {

// Be it by links or by other ways; false where one is not there, or is no regular file.
bool same_regular_file(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace mtl
