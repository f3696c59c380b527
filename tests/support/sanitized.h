// Memory errors and races show in the first steps, seeds and rounds that take a path: with
// AddressSanitizer or ThreadSanitizer, which take several times as long, tests that prove numbers
// run fewer of them.
#pragma once

namespace mtl::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace mtl::test
