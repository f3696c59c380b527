// The errors that calls end with.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include "common/error.h"

namespace mtl::test {

// The code of the first error that `call` throws, and all that they say in `text`; "" if none.
inline std::string code_of(const std::function<void()>& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.diagnostics().front().code;
  }
  return "";
}

// The one error that `call` has to throw, with this exit code if one is given; it says what to do.
inline Diagnostic refusal_of(const std::function<void()>& call, std::optional<Exit> exit = {}) {
  try {
    call();
  } catch (const Error& error) {
    if (exit) CHECK(error.exit() == *exit);
    REQUIRE(error.diagnostics().size() == 1);
    CHECK(!error.diagnostics().front().help.empty());
    return error.diagnostics().front();
  }
  FAIL("no error");
  return {};
}

// The message of that, which has this code.
inline std::string error_of(const std::function<void()>& call, const std::string& code,
                            std::optional<Exit> exit = {}) {
  const Diagnostic refusal = refusal_of(call, exit);
  CHECK(refusal.code == code);
  return refusal.what;
}

}  // namespace mtl::test
