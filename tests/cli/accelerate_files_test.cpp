// accelerate's own 20 configuration files: the dry run field by field and variable by variable
// against what its launcher made of them.
#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "launcher/node/generation.h"

using namespace mtl::test;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

struct Record {
  std::map<std::string, std::string> arguments, environment;
};

// "  key = 'value'" and "   ENV NAME = value".
Record read_record(const fs::path& path) {
  Record record;
  std::istringstream lines(file_text(path));
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    std::string value = line.substr(equals + 3);
    if (line.starts_with("   ENV ")) {
      record.environment[line.substr(7, equals - 7)] = value;
    } else if (line.starts_with("  ") && line[2] != ' ') {
      std::erase(value, '\'');
      record.arguments[line.substr(2, equals - 2)] = value;
    }
  }
  return record;
}

// As Python prints it.
std::string python(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

// Where we differ on purpose: accelerate's launcher ignores these keys of its own file, or means
// something else by them.
const std::set<std::string> kIgnoredByAccelerate = {"rdzv_backend", "same_network",
                                                    "enable_cpu_affinity", "downcast_bf16"};

}  // namespace

TEST_CASE("accelerate's files: the dry run has its arguments and its workers' environment") {
  if (!fs::is_directory(kAccelerateSamples)) {
    MESSAGE("accelerate's own files are not here (" << kAccelerateSamples.string() << ")");
    return;
  }
  Shell shell;
  shell.write("hosts", "m0 slots=4\nm1 slots=4\nm2 slots=4\nm3 slots=4\n");
  int same = 0;
  std::vector<std::string> refused;
  for (const auto& entry : fs::directory_iterator(kAccelerateSamples / "configs")) {
    const std::string stem = entry.path().stem();
    CAPTURE(stem);
    std::vector<std::string> argv = {"launch",
                                     "--dry-run",
                                     "--json",
                                     "--config_file",
                                     entry.path().string(),
                                     "--num_cpu_threads_per_process",
                                     "1"};
    if (stem == "0_28_0_mpi") argv.insert(argv.end(), {"--mpirun_hostfile", "hosts"});
    Outcome outcome = shell.mtl(
        [&] {
          auto all = argv;
          all.insert(all.end(), {"--", "x.py"});
          return all;
        }(),
        {{"CUDA_VISIBLE_DEVICES", ""}});
    CAPTURE(outcome.err);
    if (stem == "fsdp_config") {  // as accelerate: the number has to be given
      CHECK(outcome.code == 3);
      CHECK(outcome.err.find("num_processes") != std::string::npos);
      argv.insert(argv.end(), {"--num_processes", "2", "--", "x.py"});
      outcome = shell.mtl(argv);
      CHECK(outcome.code == 0);
      CHECK(Json::parse(outcome.out)["ranks"].size() == 2);
      ++same;
      continue;
    }
    // A document there is also where this machine has too few GPUs.
    if (outcome.code != 0 && outcome.code != 4) {
      refused.push_back(stem);
      if (stem == "invalid_keys") {
        CHECK(outcome.err.find("'invalid_key'") != std::string::npos);
        CHECK(outcome.err.find("'another_invalid_key'") != std::string::npos);
      } else if (stem == "0_30_0_sagemaker") {
        CHECK(outcome.err.find("SageMaker") != std::string::npos);
      } else if (stem == "multi_xpu") {
        CHECK(outcome.err.find("MULTI_XPU") != std::string::npos);
      }
      CHECK(outcome.code == 3);
      continue;
    }
    const Json json = Json::parse(outcome.out);
    const Record record = read_record(kAccelerateSamples / "golden" / (stem + ".txt"));
    REQUIRE(record.arguments.size() > 15);
    for (const auto& [key, value] : record.arguments) {
      if (!json["settings"].contains(key) || kIgnoredByAccelerate.count(key) != 0) continue;
      CAPTURE(key);
      CHECK(python(json["settings"][key]) == value);
    }
    CHECK(json["settings"]["num_machines"].get<int>() >= 1);
    const Json& env = json["ranks"][0]["env"];
    for (const auto& [name, value] : record.environment) {
      // The workers' own meeting: an address that they reach, and a port of its own.
      if (name == "MASTER_ADDR" || name == "MASTER_PORT") continue;
      // The recorder stopped before the step that fills it; accelerate's launcher does as we do.
      if (name == "ACCELERATE_CONFIG_DS_FIELDS") continue;
      CAPTURE(name);
      REQUIRE(env.contains(name));
      // What accelerate would stumble over: it looks for a device where there is none.
      const bool cpu = name == "ACCELERATE_USE_CPU" && mtl::config_here({}).use_cpu;
      CHECK(env[name].get<std::string>() == (cpu ? "True" : value));
    }
    const int here = json["settings"]["num_processes"].get<int>() /
                     (json["mode"] == "member" ? json["settings"]["num_machines"].get<int>() : 1);
    CHECK(static_cast<int>(json["ranks"].size()) == here);
    ++same;
  }
  std::sort(refused.begin(), refused.end());
  CHECK(refused == std::vector<std::string>{"0_30_0_sagemaker", "invalid_keys", "multi_xpu"});
  CHECK(same == 17);  // with the two for fp8, which a program may be able to do
}

TEST_CASE("accelerate's file for fp8 is precision.dtype of a train.yaml and its recipe nothing") {
  Shell shell;
  shell.write("fp8.yaml",
              "distributed_type: NO\nmixed_precision: fp8\n"
              "fp8_config: {backend: TE, fp8_format: E4M3}\n");
  shell.write("t.txt", std::string(10'000, 'x'));
  shell.write("train.yaml",
              "model: {layers: 2, hidden: 64, heads: 4}\n"
              "train: {global_batch: 2, seq_len: 32, steps: 3}\n"
              "data: {train: t.txt, tokenizer: {type: bytes}}\n");
  Outcome outcome = shell.mtl({"launch", "--dry-run", "--config_file", "fp8.yaml", "train.yaml"});
  CHECK(outcome.code == 0);
  CHECK((outcome.out + outcome.err).find("fp8 in the linears of 2 of 2 layers, else bf16") !=
        std::string::npos);
  CHECK(outcome.err.find("'fp8_config' means nothing to mtl's own runtime") != std::string::npos);
  // And by flags.
  outcome = shell.mtl(
      {"launch", "--dry-run", "--mixed_precision", "fp8", "--fp8_format", "E4M3", "train.yaml"});
  CHECK(outcome.code == 0);
  CHECK((outcome.out + outcome.err).find("fp8 in the linears of 2 of 2 layers") !=
        std::string::npos);
  CHECK(outcome.err.find("--fp8_format (a train.yaml's fp8 has one recipe") != std::string::npos);
  // It trains, and says in what.
  outcome = shell.mtl({"launch", "--mixed_precision", "fp8", "train.yaml"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err.find(", fp8 in the linears, else bf16; ") != std::string::npos);
}

TEST_CASE("hybrid shards are those of a machine, where a run has them") {
  Shell shell;
  shell.write("hybrid.yaml",
              "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
              "num_machines: 2\nnum_processes: 4\nmachine_rank: 0\nuse_cpu: true\n"
              "main_process_ip: 127.0.0.1\nmain_process_port: 29500\n");
  shell.write("text.txt", std::string(5000, 'a'));
  shell.write("train.yaml",
              "model: {layers: 2, hidden: 32, heads: 4}\ndata: {train: text.txt}\n"
              "train: {global_batch: 8, seq_len: 16, steps: 1}\n");
  const auto dry = [&](std::vector<std::string> flags, std::vector<std::string> settings) {
    std::vector<std::string> argv = {"launch", "--dry-run", "--config_file", "hybrid.yaml"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.push_back("train.yaml");
    argv.insert(argv.end(), settings.begin(), settings.end());
    return shell.mtl(argv);
  };
  const auto ranks = [](const Outcome& outcome) {
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    const size_t at = outcome.out.find("  zero_ranks: ");
    return at == std::string::npos
               ? ""
               : outcome.out.substr(at + 14, outcome.out.find(' ', at + 14) - at - 14);
  };
  CHECK(ranks(dry({}, {})) == "2");
  CHECK(ranks(dry({"--num_machines", "4", "--num_processes", "8"}, {})) == "2");
  CHECK(ranks(dry({"--num_processes", "8"}, {})) == "4");
  CHECK(ranks(dry({"--fsdp_sharding_strategy", "FULL_SHARD"}, {})) == "auto");
  CHECK(ranks(dry({}, {"parallel.zero=0"})) == "auto");
  CHECK(ranks(dry({"--num_machines", "1", "--num_processes", "2"}, {})) == "auto");
  CHECK(ranks(dry({}, {"parallel.zero_ranks=4"})) == "4");
  // Nothing is divided inside of a machine.
  const Outcome wide = dry({}, {"parallel.tp=2"});
  CHECK(ranks(wide) == "auto");
  CHECK(wide.err.find("warning[mesh.zero_ranks]") != std::string::npos);
  CHECK(dry({}, {"parallel.zero_ranks=3"}).code == 3);
  // Of a file for larger machines; all ranks are no word worth.
  const Outcome more = dry({}, {"parallel.zero_ranks=16"});
  CHECK(more.code == 0);
  CHECK(more.err.find("zero_ranks 16 are more than a stage has ranks (4)") != std::string::npos);
  CHECK(dry({}, {"parallel.zero_ranks=4"}).err.find("zero_ranks") == std::string::npos);
}

TEST_CASE("the flags of accelerate's own test of its launcher win over the file") {
  if (!fs::is_directory(kAccelerateSamples)) return;
  Shell shell;
  const Outcome outcome = shell.mtl(
      {"launch", "--dry-run", "--json", "--num-processes", "2", "--deepspeed_config_file",
       "path/to/be/accepted", "--config-file",
       (kAccelerateSamples / "configs/validate_launch_cmd.yaml").string(), "--", "test.py"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const Json json = Json::parse(outcome.out);
  CHECK(json["settings"]["num_processes"] == 2);
  CHECK(json["settings"]["debug"] == true);
}

TEST_CASE("a setting with TOKEN in its name is no secret of the dry run") {
  Shell shell;
  shell.write("m.yaml",
              "distributed_type: MEGATRON_LM\nnum_processes: 1\nuse_cpu: true\n"
              "megatron_lm_config:\n  megatron_lm_calculate_per_token_loss: true\n");
  const Outcome words = shell.mtl({"launch", "--dry-run", "--config_file", "m.yaml", "--", "x.py"});
  CHECK(words.out.find("MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS=true") != std::string::npos);
  const Outcome json =
      shell.mtl({"launch", "--dry-run", "--json", "--config_file", "m.yaml", "--", "x.py"});
  REQUIRE(json.code == 0);
  CHECK(Json::parse(json.out)["ranks"][0]["env"]["MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS"] == "true");
}
