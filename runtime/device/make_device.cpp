#include "runtime/device/make_device.h"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/device/load_cuda.h"

namespace mtl {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// As CUDA reads it: nothing, or something that is no device first, hides all of them.
bool hides_all(const char* visible) {
  if (visible == nullptr) return false;
  const std::string text = visible;
  return text.empty() || text.starts_with("-") || text == "none" || text == "void" ||
         text == "NoDevFiles";
}

}  // namespace

DeviceSigns device_signs() {
  const std::string use_cpu = variable("ACCELERATE_USE_CPU");
  return {.wanted = variable("MTL_DEVICE"),
          .use_cpu = use_cpu == "True" || use_cpu == "true" || use_cpu == "1",
          .gpu_files = access("/dev/nvidiactl", F_OK) == 0,
          .visible = std::getenv("CUDA_VISIBLE_DEVICES"),
          .library = has_cuda_library()};
}

std::optional<Error> wrong_device_name(const std::string& wanted) {
  for (const char* known : {"", "auto", "cpu", "cuda"}) {
    if (wanted == known) return std::nullopt;
  }
  return Error(Exit::usage, {.code = "device.name",
                             .what = fmt::format("MTL_DEVICE={} is no device", wanted),
                             .help = "it is auto, cpu or cuda"});
}

DeviceChoice choose_device(const DeviceSigns& signs, const DeviceRequest& request) {
  const bool threads = request.rank_threads && request.world > 1;
  if (signs.wanted == "cpu") return {};
  if (signs.wanted == "cuda") {
    if (!threads) return {.gpu = true, .why = {}};
    throw Error(Exit::environment,
                {.code = "gpu.ranks",
                 .what = "MTL_DEVICE=cuda, and the ranks are threads of one process",
                 .help = "use launch.spawn=processes: a rank on a GPU is a process"});
  }
  if (const std::optional<Error> wrong = wrong_device_name(signs.wanted)) throw *wrong;
  if (!signs.gpu_files) return {.gpu = false, .why = "no NVIDIA GPU here"};
  if (signs.use_cpu) return {};
  if (hides_all(signs.visible)) {
    return {.gpu = false, .why = "CUDA_VISIBLE_DEVICES hides the GPUs"};
  }
  if (threads) return {.gpu = false, .why = "no GPU: the ranks are threads of one process"};
  if (!signs.library) {
    return {.gpu = false, .why = "no GPU: libmtl_cuda.so is not installed, see mtl env"};
  }
  return {.gpu = true, .why = {}};
}

std::string MadeDevice::description() const {
  return device->description() + (why.empty() ? "" : " (" + why + ")");
}

std::string kind_of(const MadeDevice& made) {
  return made.cuda != nullptr ? "a GPU" : "the CPU";
}

void check_alike(const std::vector<std::string>& kinds, int rank, const MadeDevice& own) {
  const std::string mine = kind_of(own);
  const auto other = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const std::string& theirs) { return theirs != mine; });
  if (other == kinds.end()) return;
  throw Error(Exit::environment,
              {.code = "gpu.ranks",
               .what = fmt::format("rank {} computes on {} and rank {} on {}", rank, mine,
                                   other - kinds.begin(), *other),
               .notes = {fmt::format("rank {}: {}", rank, own.description())},
               .help = "mtl env on each machine says why; MTL_DEVICE=cpu (mtl launch --cpu) or "
                       "MTL_DEVICE=cuda makes them alike"});
}

MadeDevice make_device(const DeviceRequest& request) {
  const DeviceChoice choice = choose_device(device_signs(), request);
  if (!choice.gpu) return {.device = make_cpu_device(), .why = choice.why};
  const CudaPlugin& plugin = load_cuda();
  int index = request.local_rank;
  // Several ranks on one GPU, for tests on a machine that has only one (comm/nccl/environment.h).
  if (variable("MTL_SHARE_GPU") == "1") {
    const auto count = static_cast<int>(plugin.facts(false).devices.size());
    if (count > 0) index %= count;
  }
  return {.device = plugin.make_device(index), .why = {}, .cuda = &plugin, .index = index};
}

}  // namespace mtl
