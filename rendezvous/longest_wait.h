// What every time that somebody else names is cut to.
#pragma once

#include <chrono>

namespace mtl {

// A clock plus a year never overflows, a clock plus milliseconds::max() does.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24 * 365);

}  // namespace mtl
