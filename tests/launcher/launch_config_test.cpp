// accelerate's configuration files: all that it accepts are read, ours are what it would write,
// and mistakes are named with their line.
#include "launcher/launch_config.h"

#include <algorithm>
#include <cstdlib>
#include <rapidcheck.h>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/processes.h"
#include "launcher/train_settings.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

const fs::path kSamples = fs::path(MTL_SOURCE_DIR) / "../shared/data/accelerate";

// Written for this test in the manner of the wizard's files.
const char* const kMegatron = R"(compute_environment: LOCAL_MACHINE
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
const char* const kFsdp = R"(# by hand
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

LaunchConfig parsed(const std::string& text, Diagnostics& diagnostics) {
  return parse_launch_config(text, "default_config.yaml", diagnostics);
}

LaunchConfig good(const std::string& text) {
  Diagnostics diagnostics;
  LaunchConfig config = parsed(text, diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) FAIL_CHECK(render(diagnostic));
  return config;
}

Diagnostic bad(const std::string& text) {
  Diagnostics diagnostics;
  parsed(text, diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  return diagnostics.all().front();
}

bool ignores(const LaunchConfig& config, const std::string& key) {
  return std::any_of(config.ignored.begin(), config.ignored.end(),
                     [&](const IgnoredKey& ignored) { return ignored.key == key; });
}

void set_variable(const char* name, const char* value) {
  if (value != nullptr) {
    setenv(name, value, 1);
  } else {
    unsetenv(name);
  }
}

// The value of `key = value` in a record of what accelerate's launcher made of a file.
std::string recorded(const std::string& record, const std::string& key) {
  const size_t start = record.find("  " + key + " = ");
  if (start == std::string::npos) return "?";
  const size_t from = start + key.size() + 5;
  std::string value = record.substr(from, record.find('\n', from) - from);
  std::erase(value, '\'');
  return value;
}

// What of `value` the schema does not allow: places like "/fsdp_config/fsdp_versoin". Knows the
// words of JSON Schema that ours has.
void violations(const nlohmann::json& schema, const YamlValue& value, const std::string& at,
                std::vector<std::string>& found) {
  const std::string& text = value.text;
  const bool null =
      value.kind == YamlValue::Kind::null || (!value.quoted && (text == "null" || text == "~"));
  const bool number = !value.quoted && !text.empty() &&
                      text.find_first_not_of("0123456789.e+-") == std::string::npos;
  const bool whole = number && text.find_first_of(".e") == std::string::npos;
  const std::string type = null                                  ? "null"
                           : value.kind == YamlValue::Kind::map  ? "object"
                           : value.kind == YamlValue::Kind::list ? "array"
                           : whole                               ? "integer"
                           : number                              ? "number"
                           : text == "true" || text == "false"   ? "boolean"
                                                                 : "string";
  if (schema.contains("enum")) {
    const nlohmann::json word = null ? nlohmann::json() : nlohmann::json(text);
    const auto& words = schema.at("enum");
    if (std::find(words.begin(), words.end(), word) == words.end()) found.push_back(at);
  }
  if (schema.contains("type")) {
    const auto& types = schema.at("type");
    const auto has = [&](const std::string& name) {
      return types.is_array() ? std::find(types.begin(), types.end(), name) != types.end()
                              : types == name;
    };
    if (!has(type) && !(type == "integer" && has("number"))) found.push_back(at);
  }
  if (schema.contains("minimum") && number && std::stod(text) < schema.at("minimum")) {
    found.push_back(at);
  }
  for (const YamlValue::Entry& entry : value.entries) {
    const std::string name = at + "/" + entry.key;
    if (schema.contains("properties") && schema.at("properties").contains(entry.key)) {
      violations(schema.at("properties").at(entry.key), entry.value, name, found);
    } else if (schema.value("additionalProperties", true) == false) {
      found.push_back(name);
    }
  }
}

std::vector<std::string> violations(const std::string& yaml) {
  static const nlohmann::json schema = nlohmann::json::parse(launch_config_json_schema());
  Diagnostics diagnostics;
  std::vector<std::string> found;
  violations(schema, parse_yaml(yaml, "c.yaml", diagnostics), "", found);
  return found;
}

}  // namespace

TEST_CASE("the schema allows what is read and nothing else") {
  CHECK(violations(kMegatron).empty());
  CHECK(violations(kFsdp).empty());
  CHECK(violations("distributed_type: MULTI_TPU\nnum_procesess: 3\nnum_machines: 0\n"
                   "fsdp_config: {fsdp_versoin: 2}\nmegatron_lm_config: {mtl_hosts: a}\n"
                   "mixed_precision: fp32\ndebug: [1]\n") ==
        std::vector<std::string>{"/distributed_type", "/num_procesess", "/num_machines",
                                 "/fsdp_config/fsdp_versoin", "/mixed_precision", "/debug"});
  if (!fs::is_directory(kSamples)) {
    MESSAGE("accelerate's own files are not here (" << kSamples.string() << ")");
    return;
  }
  int allowed = 0;
  for (const char* folder : {"configs", "wizard"}) {
    for (const auto& entry : fs::directory_iterator(kSamples / folder)) {
      const std::string stem = entry.path().stem();
      CAPTURE(stem);
      Diagnostics diagnostics;
      read_launch_config(entry.path(), diagnostics);
      const std::vector<std::string> found = violations(content(entry.path()));
      for (const std::string& place : found) CAPTURE(place);
      CHECK(found.empty() != diagnostics.has_errors());
      if (!found.empty() && !diagnostics.has_errors()) MESSAGE(stem << " " << found.front());
      allowed += found.empty() ? 1 : 0;
    }
  }
  CHECK(allowed == 25);
}

TEST_CASE("every file that accelerate accepts is read as accelerate reads it") {
  if (!fs::is_directory(kSamples)) {
    MESSAGE("accelerate's own files are not here (" << kSamples.string()
                                                    << "): only the built-in samples are read");
    CHECK(good(kMegatron).num_processes == 8);
    CHECK(good(kFsdp).num_processes == 2);
    return;
  }
  int read = 0;
  for (const char* folder : {"configs", "wizard"}) {
    for (const auto& entry : fs::directory_iterator(kSamples / folder)) {
      const std::string stem = entry.path().stem();
      CAPTURE(stem);
      Diagnostics diagnostics;
      const LaunchConfig config = read_launch_config(entry.path(), diagnostics);
      if (stem == "invalid_keys") {
        REQUIRE(diagnostics.all().size() == 2);
        for (const Diagnostic& diagnostic : diagnostics.all()) {
          CHECK(diagnostic.code == "config.unknown_key");
          CHECK(diagnostic.place->line >= 14);
        }
        continue;
      }
      if (stem == "0_30_0_sagemaker") {
        CHECK(diagnostics.all().back().code == "config.sagemaker");
        continue;
      }
      for (const Diagnostic& diagnostic : diagnostics.all()) {
        if (diagnostic.severity == Diagnostic::Severity::error) FAIL_CHECK(render(diagnostic));
      }
      ++read;
      const std::string record = content(kSamples / "golden" / (stem + ".txt"));
      if (record.empty() || record.starts_with("Traceback")) continue;
      CHECK(recorded(record, "num_processes") == std::to_string(config.num_processes));
      CHECK(recorded(record, "num_machines") == std::to_string(config.num_machines));
      CHECK(recorded(record, "machine_rank") == std::to_string(config.machine_rank));
      CHECK(recorded(record, "mixed_precision") == config.mixed_precision);
      CHECK(recorded(record, "gpu_ids") == config.gpu_ids);
      CHECK(recorded(record, "use_cpu") == (config.use_cpu ? "True" : "False"));
      CHECK(recorded(record, "debug") == (config.debug ? "True" : "False"));
      const std::string ip = config.main_process_ip.empty() ? "None" : config.main_process_ip;
      CHECK(recorded(record, "main_process_ip") == ip);
    }
  }
  CHECK(read == 25);
}

TEST_CASE("the wizard's files are written back byte for byte") {
  CHECK(launch_config_yaml(good(kMegatron)) == kMegatron);
  if (!fs::is_directory(kSamples)) {
    MESSAGE("accelerate's own files are not here (" << kSamples.string() << ")");
    return;
  }
  for (const auto& entry : fs::directory_iterator(kSamples / "wizard")) {
    CAPTURE(entry.path().string());
    const std::string original = content(entry.path());
    CHECK(launch_config_yaml(good(original)) == original);
  }
}

TEST_CASE("values are read") {
  const LaunchConfig config = good(
      "distributed_type: MULTI_GPU\nmixed_precision: BF16\nnum_processes: 16\nnum_machines: 2\n"
      "machine_rank: 1\nuse_cpu: no\ndebug: 'yes'\ngpu_ids: 0,1\nmain_process_ip: fe80::1\n"
      "main_process_port: 29501\nrdzv_backend: c10d\nsame_network: true\n"
      "enable_cpu_affinity: on\ndowncast_bf16: 'no'\nmain_training_function: train\n");
  CHECK(config.path == "default_config.yaml");
  CHECK(config.distributed_type == "MULTI_GPU");
  CHECK(config.mixed_precision == "bf16");
  CHECK(config.num_processes == 16);
  CHECK(config.num_machines == 2);
  CHECK(config.machine_rank == 1);
  CHECK(!config.use_cpu);
  CHECK(config.debug);
  CHECK(config.gpu_ids == "0,1");
  CHECK(config.main_process_ip == "fe80::1");
  CHECK(config.main_process_port == 29501);
  CHECK(config.rdzv_backend == "c10d");
  CHECK(config.same_network);
  CHECK(config.enable_cpu_affinity);
  CHECK(config.main_training_function == "train");
}

TEST_CASE("what is absent has accelerate's meaning") {
  CHECK(good("distributed_type: NO\n").num_processes == 1);
  CHECK(good("distributed_type: MULTI_GPU\n").num_processes == -1);
  CHECK(good("distributed_type: MULTI_GPU\nnum_processes: -1\n").num_processes == -1);
  const LaunchConfig config = good("distributed_type: 'NO'\ngpu_ids: null\nmain_process_port:\n");
  CHECK(config.gpu_ids == "all");
  CHECK(config.main_process_port == 0);
  CHECK(config.num_machines == 1);
  CHECK(!config.mixed_precision_given);
  CHECK(train_settings(config).empty());
  CHECK(train_settings(LaunchConfig{}).empty());
}

TEST_CASE("old and awkward spellings") {
  CHECK(good("distributed_type: no\nmixed_precision: no\n").mixed_precision == "no");
  CHECK(good("distributed_type: false\nmixed_precision: false\n").distributed_type == "NO");
  CHECK(good("distributed_type: NO\nfp16: true\n").mixed_precision == "fp16");
  CHECK(good("distributed_type: NO\nfp16: false\n").mixed_precision == "no");
  CHECK(good("distributed_type: NO\nfp16: true\nmixed_precision: bf16\n").mixed_precision ==
        "bf16");
  CHECK(ignores(good("distributed_type: NO\ndynamo_backend: INDUCTOR\n"), "dynamo_backend"));
  CHECK(good("{\"distributed_type\": \"NO\", \"use_cpu\": true, \"num_processes\": 1}").use_cpu);
  CHECK(good("distributed_type: NO\ndynamo_config: {backend: INDUCTOR}\n"
             "fp8_config: {fp8_margin: 0}\nfsdp_config: {version: 2}\n")
            .ignored.size() == 3);
}

TEST_CASE("what accelerate's wizard writes where it is not wanted is not worth a word") {
  const LaunchConfig config = good(
      "distributed_type: MULTI_CPU\nnum_processes: 2\nipex_config: {ipex: false}\n"
      "tp_config: {tp_size: 2}\n");
  REQUIRE(config.ignored.size() == 2);
  CHECK(config.ignored[0].key == "ipex_config");
  CHECK(config.ignored[0].neutral);
  CHECK_FALSE(config.ignored[1].neutral);
}

TEST_CASE("unknown keys are errors with a place and a suggestion") {
  Diagnostic diagnostic = bad("distributed_type: 'NO'\nnum_procesess: 2\n");
  CHECK(diagnostic.code == "config.unknown_key");
  CHECK(diagnostic.place->line == 2);
  CHECK(diagnostic.place->column == 1);
  CHECK(diagnostic.help == "did you mean 'num_processes'?");

  diagnostic = bad("distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  tp_degree: 2\n");
  CHECK(diagnostic.place->line == 3);
  CHECK(diagnostic.what == "unknown key 'tp_degree' in megatron_lm_config");
  CHECK(diagnostic.help == "did you mean 'megatron_lm_tp_degree'?");

  diagnostic = bad("distributed_type: MEGATRON_LM\nmegatron_lm_tp_degree: 2\n");
  CHECK(diagnostic.help == "it belongs under megatron_lm_config:");

  diagnostic = bad("distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_parms: true\n");
  CHECK(diagnostic.help == "did you mean 'fsdp_offload_params'?");

  diagnostic = bad("distributed_type: DEEPSPEED\ndeepspeed_config:\n  xyzzy: 1\n");
  CHECK(diagnostic.help.find("zero_stage") != std::string::npos);

  CHECK(bad("distributed_type: NO\nmodel: gpt\n").help.find("train.yaml") != std::string::npos);
}

TEST_CASE("values that make no sense are errors") {
  const auto first = [](const std::string& line) {
    return bad("distributed_type: NO\n" + line + "\n");
  };
  CHECK(first("mixed_precision: bf6").help == "did you mean 'bf16'?");
  CHECK(first("num_processes: two").place->line == 2);
  CHECK(first("num_processes: 0").code == "config.bad_value");
  CHECK(first("num_processes: 99999999999999999999").code == "config.bad_value");
  CHECK(first("num_processes: 2.5").code == "config.bad_value");
  CHECK(first("num_processes: [2]").code == "config.bad_value");
  CHECK(first("num_machines: -3").code == "config.bad_value");
  CHECK(first("main_process_port: 99999999").code == "config.bad_value");
  CHECK(first("use_cpu: maybe").help == "it is true or false");
  CHECK(first("rdzv_backend: zookeeper").help.find("c10d") != std::string::npos);
  CHECK(first("fsdp_config: yes").what == "fsdp_config is a section");
  CHECK(first("megatron_lm_config: {megatron_lm_tp_degree: [2]}").code == "config.bad_value");
  CHECK(first("machine_rank: 1").help == "ranks count from 0");
  CHECK(first("num_machines: 2\nnum_processes: 7").place->line == 3);
  // No strategy is no ZeRO-3.
  for (const char* key : {"fsdp_sharding_strategy", "reshard_after_forward"}) {
    const Diagnostic stage =
        bad(fmt::format("distributed_type: FSDP\nfsdp_config:\n  {}: sometimes\n", key));
    CHECK(stage.code == "config.bad_value");
    CHECK(stage.what == fmt::format("{} cannot be 'sometimes'", key));
    CHECK(stage.place->line == 3);
  }
  CHECK(bad("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 7}\n").help ==
        "it is 0, 1, 2 or 3");
  CHECK(first("main_process_ip: 1234").severity == Diagnostic::Severity::warning);
  CHECK(bad("distributed_type: MULTI_GPUS\n").help == "did you mean 'MULTI_GPU'?");
  CHECK(bad("num_processes: 1\n").code == "config.missing_key");
  CHECK(bad("").code == "config.empty");
  CHECK(bad("- a\n- b\n").code == "config.empty");
  CHECK(bad("compute_environment: AMAZON_SAGEMAKER\nec2_instance_type: X\n").code ==
        "config.sagemaker");
}

TEST_CASE("all errors come at once") {
  Diagnostics diagnostics;
  parsed("distributed_type: X\nnum_processes: -7\nnonsense: 1\nuse_cpu: 3\n", diagnostics);
  CHECK(diagnostics.all().size() == 4);
}

TEST_CASE("FSDP and DeepSpeed become what a train.yaml calls them") {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const auto decided = [](const std::string& text) { return train_settings(good(text)); };
  CHECK(decided("distributed_type: FSDP\n") == Settings{{"parallel.zero", "3"}});
  CHECK(decided("distributed_type: FSDP\nfsdp_config:\n  sharding_strategy: NO_SHARD\n"
                "  activation_checkpointing: true\n") ==
        Settings{{"parallel.zero", "0"}, {"recompute.mode", "full"}});
  CHECK(decided("distributed_type: FSDP\nparallelism_config:\n  parallelism_config_tp_size: 2\n"
                "  parallelism_config_cp_size: 1\n") ==
        Settings{{"parallel.zero", "3"}, {"parallel.tp", "2"}});
  CHECK(decided("distributed_type: FSDP\nparallelism_config:\n  parallelism_config_cp_size: 2\n"
                "  parallelism_config_sp_size: 3\n") ==
        Settings{{"parallel.zero", "3"}, {"parallel.cp", "6"}});
  for (const char* way : {"cp", "sp"}) {
    CHECK(
        decided(std::string("distributed_type: FSDP\nparallelism_config:\n  parallelism_config_") +
                way + "_size: 4\n") == Settings{{"parallel.zero", "3"}, {"parallel.cp", "4"}});
  }
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n"
                "  gradient_clipping: 0.5\n") ==
        Settings{{"parallel.zero", "3"}, {"optimizer.clip", "0.5"}});
  // Offload: the optimizer's state, which is most of it, to the CPU.
  for (const auto& [device, offload] :
       Settings{{"cpu", "cpu"}, {"nvme", "cpu"}, {"none", "none"}}) {
    CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  offload_optimizer_device: " +
                  device + "\n") ==
          Settings{{"parallel.zero", "2"}, {"optimizer.offload", offload}});
  }
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  offload_optimizer_device: null\n"
                "  offload_param_device: cpu\n") == Settings{{"parallel.zero", "2"}});
  for (const auto& [truth, offload] : Settings{{"true", "cpu"}, {"false", "none"}}) {
    CHECK(decided("distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: " + truth + "\n") ==
          Settings{{"parallel.zero", "3"}, {"optimizer.offload", offload}});
    CHECK(decided("distributed_type: MEGATRON_LM\nmegatron_lm_config:\n"
                  "  megatron_lm_optimizer_cpu_offload: " +
                  truth + "\n") == Settings{{"optimizer.offload", offload}});
  }
  // Ulysses as it is configured for DeepSpeed, whose own file may say the rest.
  const std::string ulysses =
      "deepspeed_config:\n  deepspeed_config_file: ds.json\nparallelism_config:\n"
      "  parallelism_config_sp_size: 2\n  parallelism_config_sp_backend: deepspeed\n";
  CHECK(decided("distributed_type: DEEPSPEED\n" + ulysses) == Settings{{"parallel.cp", "2"}});
  CHECK(decided("distributed_type: MULTI_GPU\n" + ulysses).empty());
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 0\n") ==
        Settings{{"parallel.zero", "0"}});
  CHECK(decided("distributed_type: DEEPSPEED\n") == Settings{{"parallel.zero", "2"}});
  for (const auto& [strategy, zero] : Settings{{"FULL_SHARD", "3"},
                                               {"1", "3"},
                                               {"SHARD_GRAD_OP", "2"},
                                               {"2", "2"},
                                               {"3", "0"},
                                               {"HYBRID_SHARD", "3"},
                                               {"HYBRID_SHARD_ZERO2", "2"}}) {
    CAPTURE(strategy);
    CHECK(decided("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: " + strategy +
                  "\n") == Settings{{"parallel.zero", zero}});
  }
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_clipping: auto\n") ==
        Settings{{"parallel.zero", "2"}});
  // Hybrid shards are those of a machine, where the file says how many ranks it has.
  for (const auto& [strategy, zero] :
       Settings{{"HYBRID_SHARD", "3"}, {"hybrid_shard_zero2", "2"}, {"4", "3"}, {"5", "2"}}) {
    CAPTURE(strategy);
    const std::string hybrid =
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: " + strategy + "\n";
    CHECK(decided(hybrid + "num_machines: 2\nnum_processes: 16\n") ==
          Settings{{"parallel.zero", zero}, {"parallel.zero_ranks", "8"}});
    for (const char* counts : {"num_processes: 8\n", "num_machines: 2\nnum_processes: 2\n"}) {
      CHECK(decided(hybrid + counts) == Settings{{"parallel.zero", zero}});
    }
  }
  // FSDP 2 says it by degrees, which leave out those of tp and cp.
  const std::string mesh =
      "distributed_type: FSDP\nnum_processes: 32\nparallelism_config:\n"
      "  parallelism_config_dp_shard_size: 4\n  parallelism_config_tp_size: 2\n";
  CHECK(decided(mesh + "  parallelism_config_dp_replicate_size: 4\n") ==
        Settings{{"parallel.zero", "3"}, {"parallel.tp", "2"}, {"parallel.zero_ranks", "8"}});
  CHECK(decided(mesh) == Settings{{"parallel.zero", "3"}, {"parallel.tp", "2"}});
  for (const auto& [reshard, zero] : Settings{{"true", "3"}, {"false", "2"}, {"no", "2"}}) {
    CHECK(decided("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
                  "  fsdp_sharding_strategy: NO_SHARD\n  fsdp_reshard_after_forward: " +
                  reshard + "\n") == Settings{{"parallel.zero", zero}});
  }
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: a\n")
            .empty());
  CHECK(decided("distributed_type: NO\nfsdp_config:\n  fsdp_version: 2\n").empty());
}

TEST_CASE("lists in the sections are the words with commas that their flags have") {
  const std::string fp8 =
      "distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n";
  const std::string list = "  override_linear_precision:\n  - true\n  - false\n  - true\n";
  const auto precision = [&](const std::string& line) {
    return good(fp8 + "  " + line + "\n").plugins.at("fp8_override_linear_precision");
  };
  CHECK(precision("override_linear_precision: [true, false, true]") == "true,false,true");
  CHECK(precision("fp8_override_linear_precision: [no, off, yes]") == "no,off,yes");
  CHECK(good(fp8 + list).plugins.at("fp8_override_linear_precision") == "true,false,true");
  // accelerate takes them one by one out of a list, and letter by letter out of a text.
  for (const char* text : {"[true, false, true]", "true,false,true", "(True, False, True)"}) {
    CAPTURE(text);
    const LaunchConfig config = good(fp8 + "  override_linear_precision: " + text + "\n");
    const std::string written = launch_config_yaml(config);
    CHECK(written.find(fmt::format("fp8_config:\n  backend: TE\n{}", list)) != std::string::npos);
    CHECK(launch_config_yaml(good(written)) == written);
  }
  for (const char* text : {"[true, false]", "[1, 2, 3]", "true", "[[true], false, true]", "''"}) {
    CAPTURE(text);
    const Diagnostic wrong = bad(fp8 + "  override_linear_precision: " + text + "\n");
    CHECK(wrong.code == "config.bad_value");
    CHECK(wrong.place->line == 5);
  }
  const std::string fsdp = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n";
  const LaunchConfig config =
      good(fsdp + "  fsdp_ignored_modules: []\n  transformer_layer_cls_to_wrap: [A, B]\n");
  CHECK(config.plugins.at("fsdp_transformer_layer_cls_to_wrap") == "A,B");
  CHECK(config.plugins.count("fsdp_ignored_modules") == 0);
  // Of which accelerate makes "['A', 'B']", and looks for a class of that name.
  CHECK(launch_config_yaml(config).find("  transformer_layer_cls_to_wrap: A,B\n") !=
        std::string::npos);
  CHECK(good("distributed_type: DEEPSPEED\ndeepspeed_config:\n"
             "  deepspeed_moe_layer_cls_names:\n  - A\n")
            .plugins.at("deepspeed_moe_layer_cls_names") == "A");
  const Diagnostic modules = bad(fsdp + "  fsdp_ignored_modules: [a, b]\n");
  CHECK(modules.code == "config.bad_value");
  CHECK(modules.help.find("a|b") != std::string::npos);
  CHECK(bad(fsdp + "  fsdp_version: [2]\n").code == "config.bad_value");
  CHECK(bad(fsdp + "  fsdp_transformer_layer_cls_to_wrap: {a: b}\n").code == "config.bad_value");
  CHECK(violations(fp8 + list).empty());
  CHECK(violations(fsdp + "  fsdp_ignored_modules: [a]\n").size() == 1);
}

TEST_CASE("keys and values of older wizards are read") {
  const LaunchConfig mpi = good(
      "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\n"
      "mpirun_config:\n  mpirun_ccl: '1'\n  mpirun_hostfile: hosts\n");
  CHECK(mpi.plugins.at("mpirun_hostfile") == "hosts");
  CHECK(launch_config_yaml(mpi).find("  mpirun_ccl: '1'\n") != std::string::npos);
  const LaunchConfig fsdp = good(
      "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
      "  fsdp_backward_prefetch_policy: BACKWARD_POST\n");
  CHECK(fsdp.plugins.at("fsdp_backward_prefetch") == "BACKWARD_POST");
  CHECK(good(launch_config_yaml(fsdp)).plugins == fsdp.plugins);
  // One line for one setting, whatever it was called.
  const std::string written = launch_config_yaml(
      good("distributed_type: FSDP\nfsdp_config:\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
           "  fsdp_backward_prefetch_policy: BACKWARD_POST\n"));
  CHECK(written.find("fsdp_backward_prefetch: BACKWARD_POST\n") != std::string::npos);
  CHECK(written.find("policy") == std::string::npos);
  for (const char* backend : {"etcd", "etcd-v2"}) {
    const std::string text = fmt::format("distributed_type: 'NO'\nrdzv_backend: {}\n", backend);
    Diagnostics diagnostics;
    CHECK(parsed(text, diagnostics).rdzv_backend == "static");
    REQUIRE(diagnostics.all().size() == 1);
    CHECK(diagnostics.all()[0].code == "launch.ignored_key");
    CHECK(diagnostics.all()[0].what.find("mtl's own rendezvous") != std::string::npos);
    CHECK(diagnostics.all()[0].place->line == 2);
    CHECK_FALSE(diagnostics.has_errors());
    CHECK(violations(text).empty());
  }
  CHECK(good("distributed_type: 'NO'\nrdzv_backend: ''\n").rdzv_backend == "static");
  CHECK(bad("distributed_type: 'NO'\nrdzv_backend: etcdv2\n").code == "config.bad_value");
}

TEST_CASE("a port of 0 stays one: without it accelerate takes 29500") {
  const LaunchConfig config = good("distributed_type: 'NO'\nmain_process_port: 0\n");
  CHECK(launch_config_yaml(config).find("main_process_port: 0\n") != std::string::npos);
  CHECK(launch_config_yaml(good("distributed_type: 'NO'\n")).find("port") == std::string::npos);
  CHECK(
      launch_config_yaml(good("distributed_type: 'NO'\nmain_process_port: null\n")).find("port") ==
      std::string::npos);
}

TEST_CASE("a missing file is named") {
  Diagnostics diagnostics;
  read_launch_config("/no/such/config.yaml", diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].code == "file.missing");
}

TEST_CASE("what means nothing here is kept with its place") {
  const LaunchConfig config = good(kFsdp);
  REQUIRE(config.ignored.size() == 3);
  CHECK(config.ignored[0].key == "fsdp_config");
  CHECK(config.ignored[0].place.line == 3);
  CHECK(!config.ignored[0].neutral);
  CHECK(config.ignored[2].key == "commands");
  CHECK(config.ignored[2].neutral);
  const LaunchConfig again = good(launch_config_yaml(config));
  CHECK(again.ignored[0].key == "fp8_config");
  // Python's text becomes the list that it stands for: accelerate reads nothing else.
  CHECK(again.ignored[0].value.find("override_linear_precision")->items.size() == 3);
  CHECK(again.ignored[1].value.find("fsdp_version")->text == "2");
  CHECK(again.ignored[1].value.find("fsdp_ignored_modules")->kind == YamlValue::Kind::null);
  CHECK(launch_config_yaml(again) == launch_config_yaml(config));
}

TEST_CASE("the keys of train.yaml that the file decides") {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const LaunchConfig config = good(kMegatron);
  CHECK(train_settings(config) == Settings{{"precision.dtype", "bf16"},
                                           {"parallel.tp", "4"},
                                           {"parallel.pp", "2"},
                                           {"optimizer.clip", "0.5"}});
  CHECK(ignores(config, "megatron_lm_config.megatron_lm_num_micro_batches"));
  CHECK(!ignores(config, "megatron_lm_config.megatron_lm_tp_degree"));
  // accelerate writes truth values as words, strings or booleans.
  std::string more = kMegatron;
  more.replace(more.find("  megatron_lm_num_micro_batches: 2\n"), 35,
               "  megatron_lm_recompute_activations: true\n"
               "  megatron_lm_sequence_parallelism: 'yes'\n"
               "  megatron_lm_use_distributed_optimizer: false\n");
  CHECK(train_settings(good(more)) == Settings{{"precision.dtype", "bf16"},
                                               {"parallel.tp", "4"},
                                               {"parallel.pp", "2"},
                                               {"parallel.sp", "auto"},
                                               {"parallel.zero", "0"},
                                               {"recompute.mode", "selective"},
                                               {"optimizer.clip", "0.5"}});
  CHECK(!ignores(good(more), "megatron_lm_config.megatron_lm_recompute_activations"));
  for (const auto& [from, to] :
       Settings{{"no", "fp32"}, {"bf16", "bf16"}, {"fp16", "fp16"}, {"fp8", "fp8"}}) {
    CHECK(train_settings(good("distributed_type: NO\nmixed_precision: " + from + "\n")) ==
          Settings{{"precision.dtype", to}});
  }
  // Without the type, accelerate does not look at the section, and neither do we; but it is said.
  std::string other = kMegatron;
  other.replace(other.find("MEGATRON_LM"), 11, "MULTI_GPU");
  CHECK(train_settings(good(other)) == Settings{{"precision.dtype", "bf16"}});
  CHECK(ignores(good(other), "megatron_lm_config"));
  CHECK(launch_config_yaml(good(other)) == other);
}

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

TEST_CASE("what is written is read back the same") {
  for (const char* word :
       {"0",          "0,1,2,3", "10.0.0.1", "::1", "fe80::1%eth0", "1:30", "0x1f", "1e3",
        "2024-01-01", "~",       "null",     "y",   "it's",         "a: b", "a #b", " x",
        "-",          "*a",      "&a",       "!t",  "%x",           "@x",   "`x",   "[1]",
        "{a}",        "|",       ">",        "?",   "\"q\"",        "ä",    "a\tb", "a\\b"}) {
    CAPTURE(word);
    LaunchConfig config;
    config.gpu_ids = word;
    config.main_training_function = word;
    const LaunchConfig again = good(launch_config_yaml(config));
    CHECK(again.gpu_ids == word);
    CHECK(again.main_training_function == word);
  }
  // What a YAML 1.1 reader would take for a number has to be quoted: accelerate calls .split on it.
  LaunchConfig config;
  config.gpu_ids = "0";
  CHECK(launch_config_yaml(config).find("gpu_ids: '0'\n") != std::string::npos);
  CHECK(rc::check("any configuration", [] {
    LaunchConfig made;
    made.num_machines = *rc::gen::inRange(1, 9);
    made.num_processes = made.num_machines * *rc::gen::inRange(1, 9);
    made.machine_rank = *rc::gen::inRange(0, made.num_machines);
    made.use_cpu = *rc::gen::arbitrary<bool>();
    made.debug = *rc::gen::arbitrary<bool>();
    made.distributed_type =
        *rc::gen::element<std::string>("NO", "MULTI_GPU", "MEGATRON_LM", "FSDP");
    made.mixed_precision = *rc::gen::element<std::string>("no", "bf16", "fp16", "fp8");
    made.main_process_port = *rc::gen::inRange(0, 65536);
    made.megatron_lm_config["megatron_lm_tp_degree"] = std::to_string(*rc::gen::inRange(1, 9));
    made.megatron_lm_config["megatron_lm_recompute_method"] =
        *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange<char>(' ', '~')));
    Diagnostics diagnostics;
    const LaunchConfig again = parsed(launch_config_yaml(made), diagnostics);
    RC_ASSERT(!diagnostics.has_errors());
    RC_ASSERT(again.megatron_lm_config == made.megatron_lm_config);
    RC_ASSERT(again.num_processes == made.num_processes);
    RC_ASSERT(again.distributed_type == made.distributed_type);
    RC_ASSERT(again.main_process_port == made.main_process_port);
    RC_ASSERT(launch_config_yaml(again) == launch_config_yaml(made));
  }));
}

TEST_CASE("real accelerate and PyYAML load what is written") {
  TempDir folder;
  LaunchConfig config = good(kMegatron);
  config.gpu_ids = "0";
  config.main_process_ip = "10.0.0.1";
  write(folder / "config.yaml", launch_config_yaml(config));
  write(folder / "load.py", R"(
import sys
try:
    from accelerate.commands.config.config_args import load_config_from_file
    config = vars(load_config_from_file(sys.argv[1]))
except ImportError:
    try:
        import yaml
    except ImportError:
        sys.exit(44)
    config = yaml.safe_load(open(sys.argv[1]))
assert config["gpu_ids"] == "0", config
assert config["mixed_precision"] == "bf16"
assert config["downcast_bf16"] == "no"
assert config["main_process_ip"] == "10.0.0.1"
assert config["megatron_lm_config"]["megatron_lm_tp_degree"] == 4
assert config["megatron_lm_config"]["megatron_lm_gradient_clipping"] == 0.5
assert config["use_cpu"] is False
assert config["num_processes"] == 8
sys.exit(43 if "accelerate" in sys.modules else 42)
)");
  const std::string command = "python3 " + (folder / "load.py").string() + " " +
                              (folder / "config.yaml").string() + " 2>" + (folder / "err").string();
  const int code = WEXITSTATUS(std::system(command.c_str()));
  if (code == 127 || code == 44) {
    MESSAGE("no python3 with accelerate or PyYAML here: compared with the expected text only");
  } else {
    INFO(content(folder / "err"));
    if (code == 42) MESSAGE("no accelerate here: loaded with PyYAML, on which it stands");
    CHECK((code == 42 || code == 43));
  }
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
