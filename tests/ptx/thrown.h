// What a kernel is refused for, for tests.
#pragma once

#include <stdexcept>
#include <string>

#include <doctest/doctest.h>

#include "ptx/snippet.h"

namespace mtl::ptx {

// The error's words; empty where it ran.
inline std::string thrown(const std::string& text, void* out, const void* in,
                          const SnippetRun& how = {}) {
  try {
    run_snippet(text, out, in, how);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

inline void check_thrown(const std::string& words, const std::string& part) {
  INFO("thrown: " << words);
  INFO("wanted: " << part);
  CHECK(words.find(part) != std::string::npos);
}

}  // namespace mtl::ptx
