// $((...)) of a shell: whole numbers, + - * / % and brackets.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace mtl {

// `variable` gives the text of a name; "" = it is not set. Nothing where the expression has
// anything else in it, or no value: a division by 0, a number beyond 64 bits.
std::optional<int64_t> shell_arithmetic(
    const std::string& expression, const std::function<std::string(const std::string&)>& variable);

}  // namespace mtl
