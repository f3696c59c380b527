// Other people's programs under mtl launch: where they are, and when their tests are skipped.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "cli/program.h"

namespace mtl::test {

// Ends the program, so nothing may be open that has to be closed: asked before anything else.
[[noreturn]] inline void skip(const std::string& why) {
  std::printf("skipped: %s\n", why.c_str());
  std::exit(77);  // SKIP_RETURN_CODE in tests/CMakeLists.txt
}

inline std::string client(const std::string& script) {
  return std::string(MTL_SOURCE_DIR) + "/tests/clients/" + script;
}

// PATH with Debian's python3 first, which knows Debian's torch.
inline std::map<std::string, std::string> torch_environment() {
  if (std::system("/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null") != 0) {
    skip("no PyTorch for /usr/bin/python3 (Debian: python3-torch)");
  }
  // On the loopback, whatever name and addresses this machine has.
  return {{"PATH", "/usr/bin:/bin"}, {"GLOO_SOCKET_IFNAME", "lo"}};
}

// The same with accelerate.
inline std::map<std::string, std::string> accelerate_environment() {
  const char* given = std::getenv("MTL_CLIENT_VENV");
  const std::string venv = given != nullptr ? given : MTL_CLIENT_VENV;
  if (!std::filesystem::exists(venv + "/requirements.txt")) {
    skip("no accelerate: make it with scripts/client-venv " + venv);
  }
  const std::string path = venv + "/bin:/usr/bin:/bin";
  std::map<std::string, std::string> env = {{"PATH", path}, {"HF_HUB_OFFLINE", "1"}};
  env.merge(torch_environment());
  return env;
}

// Not every mtl has every flag; a test of one that is not there yet says so.
inline void need_flag(const std::string& flag) {
  const std::string help = Shell().mtl({"launch", "--help"}).out;
  if (help.find("--" + flag) == std::string::npos) skip("mtl launch has no --" + flag + " yet");
}

// What these programs do now and then whoever starts them, and what says nothing of the launcher:
//  - accelerate's test_sync draws its data anew each time, and two ranks' gradients may come out as
//    close as if they had been synchronised;
//  - PyTorch's threads may still want the interpreter when it has ended, and abort (one run of
//    accelerate's test_script with four processes in 25, started by hand or by us).
inline bool is_chance(int code, const std::string& err) {
  return code != 0 &&
         (err.find("Gradients in sync when they should not be") != std::string::npos ||
          err.find("terminate called without an active exception") != std::string::npos);
}

// The outcome of `run`, or outcomes, run again where it is of that kind; the fourth counts.
template <typename Run>
auto without_chance(Run run) {
  auto outcome = run();
  const auto unlucky = [&] {
    if constexpr (requires { outcome.code; }) {
      return is_chance(outcome.code, outcome.err);
    } else {
      return std::any_of(outcome.begin(), outcome.end(),
                         [](const auto& end) { return is_chance(end.code, end.err); });
    }
  };
  for (int again = 0; again < 3 && unlucky(); ++again) outcome = run();
  return outcome;
}

// Lines of `text` that begin with `prefix`.
inline std::string lines(const std::string& text, std::string_view prefix) {
  std::istringstream in(text);
  std::string line, found;
  while (std::getline(in, line)) {
    if (line.starts_with(prefix)) found += line + "\n";
  }
  return found;
}

}  // namespace mtl::test
