// The environment of a rank: torchrun's and accelerate's variables.
#include "launcher/ranks/worker_env.h"

#include <set>

#include <doctest/doctest.h>

#include "launcher/processes.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

TEST_CASE("one node: torchrun's variables") {
  NodeLayout layout;
  layout.local_ranks = 4;
  layout.world = 4;
  layout.cores = 9;
  layout.run_id = "job7";
  layout.restart_count = 2;
  layout.max_restarts = 3;
  const auto env = worker_environment(LaunchConfig{}, layout, 3);
  const std::map<std::string, std::string> expected = {
      {"RANK", "3"},
      {"LOCAL_RANK", "3"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", "3"},
      {"ROLE_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_RUN_ID", "job7"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"OMP_NUM_THREADS", "2"},
      {"ACCELERATE_MIXED_PRECISION", "no"},
      {"ACCELERATE_USE_CPU", "False"},
  };
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    REQUIRE(env.count(name) == 1);
    CHECK(env.at(name) == value);
  }
  CHECK(env.count("CUDA_VISIBLE_DEVICES") == 0);
  CHECK(env.count("ACCELERATE_DEBUG_MODE") == 0);
}

TEST_CASE("ranks are numbered node by node, each once") {
  NodeLayout layout;
  layout.num_nodes = 3;
  layout.local_ranks = 5;
  layout.world = 15;
  std::set<int> ranks;
  for (layout.node_rank = 0; layout.node_rank < 3; ++layout.node_rank) {
    layout.first_rank = layout.node_rank * 5;
    for (int local = 0; local < 5; ++local) {
      const auto env = worker_environment(LaunchConfig{}, layout, local);
      const int rank = std::stoi(env.at("RANK"));
      CHECK(rank == layout.node_rank * 5 + local);
      CHECK(env.at("GROUP_RANK") == std::to_string(layout.node_rank));
      CHECK(env.at("WORLD_SIZE") == "15");
      ranks.insert(rank);
    }
  }
  CHECK(ranks.size() == 15);
}

TEST_CASE("threads: the node's cores shared out, at least one, or as asked") {
  NodeLayout layout;
  const auto threads = [&] {
    return worker_environment(LaunchConfig{}, layout, 0).at("OMP_NUM_THREADS");
  };
  layout.cores = 2;
  layout.local_ranks = 8;
  layout.world = 8;
  CHECK(threads() == "1");
  layout.cores = 64;
  CHECK(threads() == "8");
  layout.omp_threads = 3;
  CHECK(threads() == "3");
  CHECK(allowed_cores() >= 1);
}

TEST_CASE("accelerate's variables follow the configuration") {
  Diagnostics diagnostics;
  const LaunchConfig config = parse_launch_config(
      "distributed_type: MEGATRON_LM\nmixed_precision: bf16\ndebug: true\ngpu_ids: 2,3\n"
      "enable_cpu_affinity: true\ndynamo_config:\n  dynamo_backend: inductor\n"
      "  dynamo_use_fullgraph: true\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n"
      "  megatron_lm_sequence_parallelism: true\n",
      "c.yaml", diagnostics);
  REQUIRE(!diagnostics.has_errors());
  const auto env = worker_environment(config, NodeLayout{}, 0);
  CHECK(env.at("ACCELERATE_MIXED_PRECISION") == "bf16");
  CHECK(env.at("ACCELERATE_DEBUG_MODE") == "true");
  CHECK(env.at("ACCELERATE_CPU_AFFINITY") == "1");
  CHECK(env.at("CUDA_VISIBLE_DEVICES") == "2,3");
  CHECK(env.at("ACCELERATE_DYNAMO_BACKEND") == "INDUCTOR");
  CHECK(env.at("ACCELERATE_DYNAMO_USE_FULLGRAPH") == "True");
  CHECK(env.at("ACCELERATE_DYNAMO_USE_DYNAMIC") == "False");
  CHECK(env.at("ACCELERATE_USE_MEGATRON_LM") == "true");
  CHECK(env.at("MEGATRON_LM_TP_DEGREE") == "2");
  CHECK(env.at("MEGATRON_LM_PP_DEGREE") == "1");
  CHECK(env.at("MEGATRON_LM_GRADIENT_CLIPPING") == "1.0");
  CHECK(env.at("MEGATRON_LM_SEQUENCE_PARALLELISM") == "true");
}

TEST_CASE("as accelerate's launcher sets them for its own files") {
  const fs::path samples = fs::path(MTL_SOURCE_DIR) / "../shared/data/accelerate";
  if (!fs::is_directory(samples)) {
    MESSAGE("accelerate's own files are not here (" << samples.string()
                                                    << "): only the cases above are compared");
    return;
  }
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(samples / "golden")) {
    std::ifstream record(entry.path());
    const fs::path source = samples / "configs" / (entry.path().stem().string() + ".yaml");
    Diagnostics diagnostics;
    const LaunchConfig config = read_launch_config(source, diagnostics);
    if (diagnostics.has_errors()) continue;
    const auto env = worker_environment(config, NodeLayout{}, 0);
    std::string line;
    while (std::getline(record, line)) {
      const size_t equals = line.find(" = ");
      if (!line.starts_with("   ENV ") || equals == std::string::npos) continue;
      const std::string name = line.substr(7, equals - 7);
      // Ours to choose: threads, where rank 0 is; and a list that those records leave out.
      if (name == "OMP_NUM_THREADS" || name.starts_with("MASTER_") ||
          name == "ACCELERATE_CONFIG_DS_FIELDS") {
        continue;
      }
      CAPTURE(source.string());
      CAPTURE(name);
      REQUIRE(env.count(name) == 1);
      CHECK(env.at(name) == line.substr(equals + 3));
      ++compared;
    }
  }
  CHECK(compared > 150);
}

TEST_CASE("fp8: which passes run in higher precision, however they are written") {
  const auto passes = [](const std::string& text) {
    Diagnostics diagnostics;
    const LaunchConfig config = parse_launch_config(
        "distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config:\n"
        "  override_linear_precision: " +
            text + "\n",
        "c.yaml", diagnostics);
    CHECK(diagnostics.all().empty());
    const auto env = worker_environment(config, {}, 0);
    return env.at("ACCELERATE_FP8_OVERRIDE_FPROP") + env.at("ACCELERATE_FP8_OVERRIDE_DGRAD") +
           env.at("ACCELERATE_FP8_OVERRIDE_WGRAD");
  };
  CHECK(passes("[true, false, true]") == "TrueFalseTrue");
  CHECK(passes("\n  - false\n  - true\n  - false") == "FalseTrueFalse");
  CHECK(passes("(True, False, True)") == "TrueFalseTrue");
  CHECK(passes("false,false,true") == "FalseFalseTrue");
  CHECK(passes("null") == "FalseFalseFalse");
}
