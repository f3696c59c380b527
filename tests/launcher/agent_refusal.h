// What run_agent() refuses.
#pragma once

#include "common/error.h"
#include "launcher/agent/agent.h"

namespace mtl::test {

// The first of what it says of `options`, and its exit code; 0 = it takes them.
inline Diagnostic refusal(const AgentOptions& options, int& code) {
  try {
    run_agent(options);
  } catch (const Error& error) {
    code = static_cast<int>(error.exit());
    return error.diagnostics().front();
  }
  code = 0;
  return {};
}

}  // namespace mtl::test
