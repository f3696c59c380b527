// A configuration made from what this machine has, and where the default file lies.
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include "launcher/processes.h"
#include "launcher/settings/launch_config.h"
#include "launcher/settings/launch_config_place.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

void set_variable(const char* name, const char* value) {
  if (value != nullptr) {
    setenv(name, value, 1);
  } else {
    unsetenv(name);
  }
}

}  // namespace

TEST_CASE("detection looks at the devices") {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string saved = visible != nullptr ? visible : "";
  unsetenv("CUDA_VISIBLE_DEVICES");
  TempDir devices;
  for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia", "null"}) write(devices / name, "");
  const auto detected = [&] { return detect_launch_config("bf16", devices.path()); };
  CHECK(detected().distributed_type == "NO");
  CHECK(detected().num_processes == 1);
  CHECK(detected().use_cpu);
  CHECK(detected().mixed_precision == "bf16");
  write(devices / "nvidia0", "");
  CHECK(detected().distributed_type == "NO");
  CHECK(!detected().use_cpu);
  write(devices / "nvidia1", "");
  write(devices / "nvidia10", "");
  CHECK(detected().distributed_type == "MULTI_GPU");
  CHECK(detected().num_processes == 3);
  for (const auto& [list, count, cpu] :
       std::vector<std::tuple<const char*, int, bool>>{{"0,1", 2, false},
                                                       {"1", 1, false},
                                                       {"", 1, true},
                                                       {"-1", 1, true},
                                                       {"0,-1,1", 1, false},
                                                       {"0,1,2,3,4", 3, false}}) {
    CAPTURE(list);
    set_variable("CUDA_VISIBLE_DEVICES", list);
    CHECK(detected().num_processes == count);
    CHECK(detected().use_cpu == cpu);
  }
  set_variable("CUDA_VISIBLE_DEVICES", visible != nullptr ? saved.c_str() : nullptr);
  CHECK(detect_launch_config("no", (devices / "gone").string()).num_processes == 1);
}

TEST_CASE("a detected configuration has the keys of `accelerate config default`") {
  TempDir nothing;
  CHECK(launch_config_yaml(detect_launch_config("no", nothing.path())) ==
        "compute_environment: LOCAL_MACHINE\n"
        "debug: false\n"
        "distributed_type: 'NO'\n"
        "downcast_bf16: false\n"
        "enable_cpu_affinity: false\n"
        "machine_rank: 0\n"
        "main_training_function: main\n"
        "mixed_precision: 'no'\n"
        "num_machines: 1\n"
        "num_processes: 1\n"
        "rdzv_backend: static\n"
        "same_network: false\n"
        "tpu_use_cluster: false\n"
        "tpu_use_sudo: false\n"
        "use_cpu: true\n");
}

TEST_CASE("where the default file lies") {
  std::vector<std::pair<const char*, std::optional<std::string>>> saved;
  for (const char* name : {"HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"}) {
    const char* value = std::getenv(name);
    saved.emplace_back(name, value != nullptr ? std::optional<std::string>(value) : std::nullopt);
  }
  set_variable("HOME", "/home/x");
  set_variable("HF_HOME", nullptr);
  set_variable("XDG_CACHE_HOME", nullptr);
  CHECK(accelerate_config_path() == "/home/x/.cache/huggingface/accelerate/default_config.yaml");
  set_variable("XDG_CACHE_HOME", "/cache");
  CHECK(accelerate_config_path() == "/cache/huggingface/accelerate/default_config.yaml");
  set_variable("HF_HOME", "~/hf");
  CHECK(accelerate_config_path() == "/home/x/hf/accelerate/default_config.yaml");
  set_variable("XDG_CONFIG_HOME", nullptr);
  CHECK(own_config_path() == "/home/x/.config/mtl/default_config.yaml");
  set_variable("XDG_CONFIG_HOME", "not/absolute");
  CHECK(own_config_path() == "/home/x/.config/mtl/default_config.yaml");
  // Ours, else accelerate's, else none.
  TempDir folder;
  set_variable("XDG_CONFIG_HOME", folder.path().c_str());
  set_variable("HF_HOME", (folder / "hf").c_str());
  CHECK(default_launch_config_path().empty());
  fs::create_directories(folder / "hf/accelerate");
  write(folder / "hf/accelerate/default_config.yaml", "x");
  CHECK(default_launch_config_path() == accelerate_config_path());
  fs::create_directories(folder / "mtl");
  write(folder / "mtl/default_config.yaml", "x");
  CHECK(default_launch_config_path() == own_config_path());
  for (const auto& [name, value] : saved) set_variable(name, value ? value->c_str() : nullptr);
}
