// cuDNN's plans for attention on an H200, made without one: cuDNN takes a description of the GPU in
// place of the GPU, and a stand-in for the driver (support/fake_driver.cpp) loads what it compiles.
// That cuDNN has an engine for our graphs, that the engine is deterministic, and what workspace it
// needs, is all that this can show: nothing runs. Without cuDNN 9.8 or its compiler it says so.
#include "runtime/device/cuda/cudnn_sdpa.h"

#include <array>
#include <cstdio>
#include <dlfcn.h>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/wait.h>

#include <doctest/doctest.h>

using namespace mtl;
using namespace mtl::cudnn;

namespace {

constexpr const char* kH200 =
    R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
    R"("regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,)"
    R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
    R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
    R"("supportCoopLaunch":1,"totalGlobalMem":150754820096,"smClockRateKHz":1980000,)"
    R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"cudaDeviceId":0,"deviceVer":900,)"
    R"("driverVer":13000,"deviceName":"NVIDIA H200"})";

using Pass = SdpaPlan::Pass;

// "ok BYTES" or "none WHY".
std::string plan_words(const Api& api, const SdpaForm& form, Pass pass) {
  try {
    const TargetDevice device(api, kH200);
    return "ok " + std::to_string(SdpaPlan(api, device, form, pass).workspace_bytes());
  } catch (const Failure& failure) {
    return "none " + failure.why;
  }
}

// In a process of its own: no other test shall find the stand-in for a driver.
std::vector<std::string> in_child(const std::vector<std::pair<SdpaForm, Pass>>& wanted) {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string text;
    if (::dlopen(MTL_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      text = "skip the stand-in for the driver cannot be opened\n";
    } else {
      try {
        const Api& api = load_api();
        for (const auto& [form, pass] : wanted) text += plan_words(api, form, pass) + "\n";
      } catch (const Failure& failure) {
        text = "skip " + failure.why + "\n";
      }
    }
    (void)!::write(pipe[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(pipe[0], buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status));
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("cuDNN: has deterministic plans for our attention on an H200") {
  // Grouped queries, and a length that is no multiple of any tile.
  const SdpaForm form = {2, 1000, 8, 2, 128, DType::bf16};
  SdpaForm impossible = form;
  impossible.kv_heads = 3;
  const auto lines =
      in_child({{form, Pass::forward}, {form, Pass::backward}, {impossible, Pass::backward}});
  REQUIRE_FALSE(lines.empty());
  if (lines[0].starts_with("skip ") || lines[0].find("RUNTIME_PREREQ") != std::string::npos) {
    MESSAGE("NOT CHECKED, for there is no cuDNN to ask: " << lines[0]);
    return;
  }
  REQUIRE(lines.size() == 3);
  CAPTURE(lines[0]);
  CAPTURE(lines[1]);
  REQUIRE(lines[0].starts_with("ok "));
  REQUIRE(lines[1].starts_with("ok "));
  // The gradient of the queries is a product of its own: dS of all heads is kept.
  CHECK(std::stoll(lines[0].substr(3)) < 1 << 20);
  CHECK(std::stoll(lines[1].substr(3)) >= int64_t{2} * 8 * 1000 * 1000 * 2);
  CAPTURE(lines[2]);
  // What it does not have is a reason in words.
  CHECK(lines[2].starts_with("none cuDNN"));
  CHECK(lines[2].find("CUDNN_STATUS_") != std::string::npos);
  MESSAGE("cuDNN's workspace: forward " << lines[0] << ", backward " << lines[1]);
}

TEST_CASE("cuDNN: is asked for values narrower than keys, and has them or says why not") {
  SdpaForm form = {2, 1000, 8, 8, 192, DType::bf16};
  form.value_dim = 128;
  const auto lines = in_child({{form, Pass::forward}, {form, Pass::backward}});
  REQUIRE_FALSE(lines.empty());
  if (lines[0].starts_with("skip ") || lines[0].find("RUNTIME_PREREQ") != std::string::npos) {
    MESSAGE("NOT CHECKED, for there is no cuDNN to ask: " << lines[0]);
    return;
  }
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK((line.starts_with("ok ") || line.find("CUDNN_STATUS_") != std::string::npos ||
           line.find("no engine") != std::string::npos));
    MESSAGE("heads of 192 and 128: " << line);
  }
}

TEST_CASE("cuDNN: starting it without a driver is a reason, not an end") {
  try {
    const Api& api = load_api();
    Handle handle = nullptr;
    const int status = api.create(&handle);
    if (status == kSuccess) {
      api.destroy(handle);
      MESSAGE("NOT CHECKED: there is a GPU here");
      return;
    }
    try {
      check(api, status, "starting");
      FAIL("not noticed");
    } catch (const Failure& failure) {
      CHECK(failure.why.find("cuDNN, starting: CUDNN_STATUS_") == 0);
    }
  } catch (const Failure& failure) {
    MESSAGE("NOT CHECKED, for there is no cuDNN here: " << failure.why);
    CHECK_FALSE(failure.why.empty());
  }
  CHECK(version_text(91900) == "9.19.0");
}
