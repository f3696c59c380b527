// Memory errors show in the first steps, seeds and rounds that take a path: with AddressSanitizer,
// which takes several times as long, tests that prove numbers run fewer of them.
#pragma once

namespace mtl::test {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace mtl::test
