// What the tests of token files in Megatron's format share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"

namespace mtl::test {

// Files that Megatron wrote.
inline const std::filesystem::path kIndexed =
    std::filesystem::path(MTL_SOURCE_DIR) / "tests/reference/indexed";

// The sequences of each document.
using IdsOfDocuments = std::vector<std::vector<std::vector<int32_t>>>;

// The message of the error that `act` must throw.
inline std::string error_of(const std::function<void()>& act, const std::string& code) {
  try {
    act();
  } catch (const Error& error) {
    CHECK(error.diagnostics().front().code == code);
    CHECK(!error.diagnostics().front().help.empty());
    return error.diagnostics().front().what;
  }
  FAIL("no error");
  return {};
}

}  // namespace mtl::test
