// A configuration from what this machine has.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "launcher/ranks/placement.h"
#include "launcher/settings/launch_config.h"

namespace mtl {

namespace {

int gpu_files_in(const std::string& devices) {
  constexpr std::string_view kNode = "nvidia";  // nvidia0, nvidia1; not nvidiactl, nvidia-uvm
  size_t count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(devices, ignored)) {
    const std::string name = entry.path().filename();
    const bool numbered = name.size() > kNode.size() && name.starts_with(kNode) &&
                          name.find_first_not_of("0123456789", kNode.size()) == std::string::npos;
    count += numbered ? 1 : 0;
  }
  const std::vector<GpuDevice> installed(count);
  return static_cast<int>(visible_gpus(installed, std::getenv("CUDA_VISIBLE_DEVICES")).size());
}

}  // namespace

LaunchConfig detect_launch_config(const std::string& mixed_precision, const std::string& devices) {
  LaunchConfig config;
  const int gpus = gpu_files_in(devices);
  config.mixed_precision = mixed_precision;
  config.mixed_precision_given = true;
  config.num_processes = std::max(gpus, 1);
  config.use_cpu = gpus == 0;
  config.distributed_type = gpus > 1 ? "MULTI_GPU" : "NO";
  return config;
}

}  // namespace mtl
