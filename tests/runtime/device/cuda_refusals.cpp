// Why a GPU cannot be used: the words for what CUDA and the system may say, and, where the library
// was built, what the real one says on a machine without a GPU.
#include <filesystem>
#include <fstream>
#include <functional>

#include <doctest/doctest.h>

#include "common/version.h"
#include "runtime/device/cuda/refusals.h"
#include "runtime/device/load_cuda.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/variable.h"

using namespace mtl;
using namespace mtl::cuda;
using mtl::test::refusal_of;
using mtl::test::Variable;

namespace {

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE("not in it: " << part << "\n" << text);
  return false;
}
bool says(const Diagnostic& diagnostic, const std::string& part) {
  return says(render(diagnostic), part);
}

DriverSigns working() {
  return {.kernel_module = "580.65.06",
          .control_file = true,
          .may_open = true,
          .in_container = false,
          .visible = nullptr};
}

}  // namespace

TEST_CASE("cuda refusals: no driver, or not here") {
  Diagnostic why = start_refusal(kInsufficientDriver, "insufficient", 0, 13000, {});
  CHECK(why.code == "gpu.no_driver");
  CHECK(says(why, "there is no NVIDIA driver"));
  CHECK(says(why, "580 or newer"));
  CHECK(says(why, "MTL_DEVICE=cpu"));
  DriverSigns signs;
  signs.in_container = true;
  CHECK(says(start_refusal(kNoDevice, "", 0, 13000, signs), "--gpus all"));
  signs = working();
  signs.in_container = true;
  why = start_refusal(kInsufficientDriver, "", 0, 13000, signs);
  CHECK(says(why, "580.65.06, but its library libcuda.so.1 is not here"));
  CHECK(says(why, "--gpus all"));
  signs.in_container = false;
  CHECK(says(start_refusal(kInsufficientDriver, "", 0, 13000, signs), "libcuda1"));
  CHECK(says(start_refusal(kStubLibrary, "", 13000, 13000, working()), "stub"));
}

TEST_CASE("cuda refusals: a driver that is too old, with both versions and what is needed") {
  DriverSigns signs = working();
  signs.kernel_module = "550.54";
  const Diagnostic why = start_refusal(kInsufficientDriver, "", 12040, 13000, signs);
  CHECK(why.code == "gpu.driver_old");
  CHECK(says(why, "550.54 supports CUDA 12.4"));
  CHECK(says(why, "built with CUDA 13.0"));
  CHECK(says(why, "580 or newer"));
  CHECK(says(why, "toolkit of CUDA 12"));
  // What another error hides is said all the same.
  CHECK(start_refusal(999, "unknown", 11080, 12020, signs).code == "gpu.driver_old");
  CHECK(says(start_refusal(999, "unknown", 11080, 12020, signs), "525 or newer"));
  // An older minor version of the same major one is enough.
  CHECK(start_refusal(999, "unknown", 13000, 13010, working()).code == "gpu.driver");
}

TEST_CASE("cuda refusals: no device, and why") {
  DriverSigns signs = working();
  CHECK(start_refusal(kNoDevice, "", 13000, 13000, signs).code == "gpu.no_device");
  signs.visible = "";
  CHECK(says(start_refusal(kNoDevice, "", 13000, 13000, signs), "CUDA_VISIBLE_DEVICES is ''"));
  signs.visible = "7";
  CHECK(says(start_refusal(kNoDevice, "", 13000, 13000, signs), "CUDA_VISIBLE_DEVICES is '7'"));
  signs.visible = nullptr;
  signs.may_open = false;
  CHECK(says(start_refusal(kNoDevice, "", 13000, 13000, signs), "may not open /dev/nvidiactl"));
  signs.control_file = false;
  CHECK(says(start_refusal(kNoDevice, "", 13000, 13000, signs), "nvidia-modprobe"));
  signs.in_container = true;
  CHECK(says(start_refusal(kNoDevice, "", 13000, 13000, signs), "--gpus all"));
}

TEST_CASE("cuda refusals: other ways not to start") {
  const auto why = [](int error) {
    return start_refusal(error, "the words", 13000, 13000, working());
  };
  for (const int error :
       {int{kInitialization}, int{kOperatingSystem}, int{kDevicesUnavailable}, int{kSystemNotReady},
        int{kDriverMismatch}, int{kCompatNotSupported}, 999}) {
    CHECK(why(error).code == "gpu.driver");
    CHECK(says(why(error), "CUDA does not start: the words"));
    CHECK(says(why(error), "driver 580.65.06 for CUDA 13.0, mtl built with CUDA 13.0"));
  }
  CHECK(says(why(kSystemNotReady), "nvidia-fabricmanager"));
  CHECK(says(why(kDriverMismatch), "reboot"));
  CHECK(says(why(kDevicesUnavailable), "another process has the GPU"));
  CHECK(says(why(kCompatNotSupported), "LD_LIBRARY_PATH"));
  DriverSigns closed = working();
  closed.may_open = false;
  CHECK(says(start_refusal(kOperatingSystem, "", 13000, 13000, closed), "group video"));
}

TEST_CASE("cuda refusals: a local rank without a GPU, parts of GPUs, old GPUs") {
  Diagnostic why = index_refusal(4, 4, false, nullptr);
  CHECK(why.code == "gpu.index");
  CHECK(says(why, "local rank 4 has no GPU: 4 are visible"));
  CHECK(says(why, "start 4 ranks"));
  CHECK(says(index_refusal(1, 1, false, "3"), "CUDA_VISIBLE_DEVICES is '3'"));
  why = index_refusal(1, 1, true, "MIG-x");
  CHECK(says(why, "MIG"));
  CHECK(says(why, "an instance of its own"));

  const int usual[] = {80, 90, 100}, one[] = {90};
  CHECK(says(capability_refusal("Tesla T4", 7, 5, usual), "Tesla T4 has compute capability 7.5"));
  CHECK(says(capability_refusal("Tesla T4", 7, 5, usual), "is for 8.0, 9.0, 10.0"));
  for (const auto& [major, minor] : {std::pair(8, 0), {8, 9}, {9, 0}, {10, 3}, {12, 0}, {15, 1}}) {
    CHECK(capability_refusal("x", major, minor, usual).empty());
  }
  CHECK(!capability_refusal("A100", 8, 0, one).empty());
  CHECK(!capability_refusal("L40S", 8, 9, one).empty());
  CHECK(capability_refusal("H200", 9, 0, one).empty());
  CHECK(capability_refusal("B200", 10, 0, one).empty());  // by its PTX
}

TEST_CASE("cuda refusals: memory, and failures of later calls") {
  constexpr int64_t kGiB = int64_t{1} << 30;
  Diagnostic why = memory_refusal(
      {.name = "NVIDIA H200", .asked = 150 * kGiB, .free = 138 * kGiB, .total = 140 * kGiB});
  CHECK(why.code == "device.out_of_memory");
  CHECK(says(why, "NVIDIA H200 gives no 150.0 GiB: 138.0 GiB of 140.0 GiB are free"));
  CHECK(says(why, "mtl plan"));
  CHECK(why.notes.empty());
  why = memory_refusal({.name = "x", .asked = 60 * kGiB, .free = 20 * kGiB, .total = 80 * kGiB});
  CHECK(says(why, "others use memory"));
  why = memory_refusal({.name = "x MIG 1g.10gb",
                        .mig = true,
                        .asked = 20 * kGiB,
                        .free = 9 * kGiB,
                        .total = 9 * kGiB + kGiB / 2});
  CHECK(says(why, "a larger instance"));

  CHECK(says(why, "optimizer.offload=cpu"));
  why = pinned_refusal(84 * kGiB);
  CHECK(why.code == "device.pinned_memory");
  CHECK(says(why, "the host gives no 84.0 GiB of pinned memory"));
  CHECK(says(why, "optimizer.offload=none"));

  why = failure(700, "an illegal memory access", "the work on the GPU");
  CHECK(why.code == "device.cuda");
  CHECK(says(why, "the work on the GPU: CUDA says: an illegal memory access (700)"));
  CHECK(says(failure(kNoKernelImage, "", ""), "update the driver"));
  CHECK(says(failure(kEccUncorrectable, "", ""), "faulty"));
}

TEST_CASE("cuda library: not there, not loadable, not of this version") {
  const test::TempDir folder;
  const auto path = (folder.path() / "libmtl_cuda.so").string();
  const Variable named("MTL_CUDA_LIBRARY", path);
  CHECK(!has_cuda_library());
  Diagnostic why = refusal_of([] { load_cuda(); }, Exit::environment);
  CHECK(why.code == "gpu.library");
  CHECK(says(why, "looked for " + path));
  CHECK(says(why, "MTL_CUDA=ON"));
  std::ofstream(path) << "no library";
  CHECK(has_cuda_library());
  why = refusal_of([] { load_cuda(); }, Exit::environment);
  CHECK(why.code == "gpu.library");
  CHECK(says(why, "cannot be loaded"));

  const char* const loader =
      "libcublasLt.so.13: cannot open shared object file: No such file or directory";
  CHECK(library_refusal("x", loader).code == "gpu.cublas");
  CHECK(says(library_refusal("x", loader), "LD_LIBRARY_PATH"));

  // A library that is none of ours.
  const Variable other("MTL_CUDA_LIBRARY", "/lib/x86_64-linux-gnu/libm.so.6");
  if (!has_cuda_library()) return;
  why = refusal_of([] { load_cuda(); }, Exit::environment);
  CHECK(why.code == "gpu.library_version");
  CHECK(says(why, "is of mtl unknown, and this is mtl " + version()));
}

TEST_CASE("cuda library: looked for beside the program and where it is installed") {
  const Variable none("MTL_CUDA_LIBRARY", "");
  const std::vector<std::string> places = cuda_library_places();
  REQUIRE(places.size() == 2);
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  CHECK(places[0] == (folder / "libmtl_cuda.so").string());
  CHECK(places[1] == (folder.parent_path() / "lib/mtl/libmtl_cuda.so").string());
}

#ifdef MTL_TEST_CUDA_LIBRARY
TEST_CASE("cuda library: the real one is loaded, and its errors arrive") {
  const Variable named("MTL_CUDA_LIBRARY", MTL_TEST_CUDA_LIBRARY);
  const CudaPlugin& plugin = load_cuda();
  CHECK(plugin.version == version());
  CHECK(&load_cuda() == &plugin);
  if (driver_signs().control_file) return;  // here is a GPU, or nearly
  const Diagnostic why = refusal_of([&] { plugin.make_device(0); }, Exit::environment);
  MESSAGE(render(why));
  CHECK((why.code == "gpu.no_driver" || why.code == "gpu.no_device"));
  CHECK(refusal_of([&] { plugin.facts(true); }, Exit::environment).code == why.code);
}
#endif

TEST_CASE("FP8 is there from Ada and Hopper on") {
  for (const auto& [major, minor] : {std::pair(8, 9), {9, 0}, {10, 0}, {12, 0}}) {
    CHECK(cuda::multiplies_float8(major, minor));
  }
  for (const auto& [major, minor] : {std::pair(7, 5), {8, 0}, {8, 6}, {8, 7}}) {
    CHECK_FALSE(cuda::multiplies_float8(major, minor));
  }
}
