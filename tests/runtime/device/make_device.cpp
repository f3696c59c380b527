// Which engine a rank gets, and what it says about the other.
#include "runtime/device/make_device.h"

#include <doctest/doctest.h>

#include "common/error.h"

using namespace mtl;

namespace {

DeviceSigns machine_with_gpu() {
  return {
      .wanted = "auto", .use_cpu = false, .gpu_files = true, .visible = nullptr, .library = true};
}

std::string code_of(const DeviceSigns& signs, const DeviceRequest& request) {
  try {
    choose_device(signs, request);
  } catch (const Error& error) {
    return error.diagnostics().front().code;
  }
  return {};
}

}  // namespace

TEST_CASE("device: auto takes the GPU where there is one and the library") {
  CHECK(choose_device(machine_with_gpu(), {}).gpu);
  CHECK(choose_device(machine_with_gpu(), {.world = 8}).gpu);
  DeviceSigns signs = machine_with_gpu();
  CHECK(choose_device(signs, {}).why.empty());
  signs.visible = "0";
  CHECK(choose_device(signs, {}).gpu);

  CHECK(choose_device({}, {}).why == "no NVIDIA GPU here");
  signs = machine_with_gpu();
  signs.library = false;
  CHECK(!choose_device(signs, {}).gpu);
  CHECK(choose_device(signs, {}).why.find("libmtl_cuda.so") != std::string::npos);
  for (const char* nothing : {"", "-1", "NoDevFiles"}) {
    signs = machine_with_gpu();
    signs.visible = nothing;
    CHECK(!choose_device(signs, {}).gpu);
    CHECK(choose_device(signs, {}).why.find("CUDA_VISIBLE_DEVICES") != std::string::npos);
  }
  const DeviceChoice threads =
      choose_device(machine_with_gpu(), {.world = 2, .rank_threads = true});
  CHECK(!threads.gpu);
  CHECK(threads.why.find("threads") != std::string::npos);
  CHECK(choose_device(machine_with_gpu(), {.rank_threads = true}).gpu);
}

TEST_CASE("device: who asks for nothing gets what auto takes") {
  DeviceSigns signs = machine_with_gpu();
  signs.wanted = "";
  CHECK(choose_device(signs, {}).gpu);
  signs.library = false;
  CHECK(!choose_device(signs, {}).gpu);
}

TEST_CASE("device: who asks for the CPU gets it without a word") {
  DeviceSigns signs = machine_with_gpu();
  signs.use_cpu = true;
  CHECK(!choose_device(signs, {}).gpu);
  CHECK(choose_device(signs, {}).why.empty());
  signs = machine_with_gpu();
  signs.wanted = "cpu";
  CHECK(!choose_device(signs, {}).gpu);
  CHECK(choose_device(signs, {}).why.empty());
}

TEST_CASE("device: who asks for the GPU gets it or an error") {
  DeviceSigns signs;  // nothing is there
  signs.wanted = "cuda";
  CHECK(choose_device(signs, {}).gpu);
  signs.use_cpu = true;
  CHECK(choose_device(signs, {}).gpu);
  CHECK(code_of(signs, {.world = 2, .rank_threads = true}) == "gpu.ranks");
  signs.wanted = "gpu";
  CHECK(code_of(signs, {}) == "device.name");
}

TEST_CASE("device: the description says why it is not the other") {
  MadeDevice made{.device = make_cpu_device(1), .why = ""};
  CHECK(made.description() == made.device->description());
  made.why = "no NVIDIA GPU here";
  CHECK(made.description() == made.device->description() + " (no NVIDIA GPU here)");
}

TEST_CASE("device: ranks that compute on different things are told apart") {
  const CudaPlugin plugin{};
  const MadeDevice cpu{.device = make_cpu_device(1), .why = "no NVIDIA GPU here"};
  const MadeDevice gpu{.device = make_cpu_device(1), .why = "", .cuda = &plugin};
  CHECK_NOTHROW(check_alike({kind_of(cpu), kind_of(cpu)}, 1, cpu));
  CHECK_NOTHROW(check_alike({kind_of(gpu), kind_of(gpu)}, 0, gpu));
  try {
    check_alike({kind_of(cpu), kind_of(cpu), kind_of(gpu)}, 1, cpu);
    FAIL("not noticed");
  } catch (const Error& error) {
    const Diagnostic& why = error.diagnostics().front();
    CHECK(why.code == "gpu.ranks");
    CHECK(why.what == "rank 1 computes on the CPU and rank 2 on a GPU");
    CHECK(why.notes.front().find("no NVIDIA GPU here") != std::string::npos);
  }
}
