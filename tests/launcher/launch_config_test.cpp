// accelerate's configuration files: all that it accepts are read, and mistakes are named with their
// line.
#include "launcher/settings/launch_config.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/launch_config_files.h"
#include "launcher/processes.h"
#include "launcher/settings/train_settings.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

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
      const std::vector<std::string> found = violations(file_text(entry.path()));
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
      const std::string record = file_text(kSamples / "golden" / (stem + ".txt"));
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
  CHECK(good("distributed_type: MULTI_GPU\ndynamo_backend: INDUCTOR\n")
            .plugins.at("dynamo_backend") == "INDUCTOR");
  // Its ranks would all end with a ValueError.
  for (const char* file : {"dynamo_backend: Inductr\n", "dynamo_config: {backend: Inductr}\n"}) {
    CHECK(bad(std::string("distributed_type: MULTI_GPU\n") + file).help ==
          "did you mean 'inductor'?");
  }
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
  CHECK(first("main_process_port: 65536").code == "config.bad_value");
  CHECK(good("distributed_type: NO\nmain_process_port: 65535\n").main_process_port == 65535);
  CHECK(first("use_cpu: maybe").help == "it is true or false");
  CHECK(first("rdzv_backend: zookeeper").help.find("c10d") != std::string::npos);
  CHECK(first("fsdp_config: yes").what == "fsdp_config is a section");
  CHECK(first("megatron_lm_config: {megatron_lm_tp_degree: [2]}").code == "config.bad_value");
  // Of sections too, though programs read them.
  for (const char* line :
       {"dynamo_config: {dynamo_use_fullgraph: treu}", "dynamo_config: {dynamo_use_dynamic: 2}",
        "fsdp_config: {fsdp_offload_params: treu}", "fsdp_config: {fsdp_min_num_params: many}",
        "parallelism_config: {parallelism_config_tp_size: 2x}",
        "megatron_lm_config: {megatron_lm_tp_degree: 2x}",
        "megatron_lm_config: {megatron_lm_sequence_parallelism: treu}"}) {
    CAPTURE(std::string(line));
    CHECK(first(line).code == "config.bad_value");
    CHECK(first(line).what.find(" wants ") != std::string::npos);
  }
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

TEST_CASE("a train.yaml in place of a configuration is one error") {
  const Diagnostic wrong = bad("run: {name: a}\nmodel:\n  layers: 2\ntrain: {steps: 2}\n");
  CHECK(wrong.code == "config.train_yaml");
  CHECK(wrong.help.starts_with("check it with: mtl launch --dry-run "));
}

TEST_CASE("all errors come at once") {
  Diagnostics diagnostics;
  parsed("distributed_type: X\nnum_processes: -7\nnonsense: 1\nuse_cpu: 3\n", diagnostics);
  CHECK(diagnostics.all().size() == 4);
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

TEST_CASE("a missing file is named") {
  Diagnostics diagnostics;
  read_launch_config("/no/such/config.yaml", diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].code == "file.missing");
}
