// What is wrong with a checkpoint, as those who read it are told.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include "common/error.h"

namespace mtl::test {

inline std::optional<Diagnostic> problem(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::data);
    return error.diagnostics()[0];
  }
  return std::nullopt;
}

inline std::string code_of(const std::function<void()>& call) {
  const auto found = problem(call);
  return found ? found->code : "";
}

}  // namespace mtl::test
