// accelerate's configuration files for the tests that read, write and judge them.
#pragma once

#include <algorithm>
#include <filesystem>

#include <doctest/doctest.h>

#include "launcher/settings/launch_config.h"

namespace mtl::test {

inline const std::filesystem::path kSamples =
    std::filesystem::path(MTL_SOURCE_DIR) / "../shared/data/accelerate";

// Written for this test in the manner of the wizard's files.
inline const char* const kMegatron = R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MEGATRON_LM
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
megatron_lm_config:
  megatron_lm_gradient_clipping: 0.5
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_tp_degree: 4
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)";
inline const char* const kFsdp = R"(# by hand
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  offload_params: false
  fsdp_ignored_modules: null
fp8_config:
  backend: TE
  override_linear_precision: (false, false, false)
mixed_precision: fp8
num_processes: 2
commands: null
)";

inline LaunchConfig parsed(const std::string& text, Diagnostics& diagnostics) {
  return parse_launch_config(text, "default_config.yaml", diagnostics);
}

inline LaunchConfig good(const std::string& text) {
  Diagnostics diagnostics;
  LaunchConfig config = parsed(text, diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) FAIL_CHECK(render(diagnostic));
  return config;
}

inline Diagnostic bad(const std::string& text) {
  Diagnostics diagnostics;
  parsed(text, diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  return diagnostics.all().front();
}

inline bool ignores(const LaunchConfig& config, const std::string& key) {
  return std::any_of(config.ignored.begin(), config.ignored.end(),
                     [&](const IgnoredKey& ignored) { return ignored.key == key; });
}

}  // namespace mtl::test
