// Our files are what accelerate's wizard would write, and are read back the same by it and by us.
#include <cstdlib>
#include <rapidcheck.h>

#include <doctest/doctest.h>

#include "launcher/launch_config_files.h"
#include "launcher/processes.h"
#include "launcher/settings/launch_config.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

TEST_CASE("the wizard's files are written back byte for byte") {
  CHECK(launch_config_yaml(good(kMegatron)) == kMegatron);
  if (!fs::is_directory(kSamples)) {
    MESSAGE("accelerate's own files are not here (" << kSamples.string() << ")");
    return;
  }
  for (const auto& entry : fs::directory_iterator(kSamples / "wizard")) {
    CAPTURE(entry.path().string());
    const std::string original = file_text(entry.path());
    CHECK(launch_config_yaml(good(original)) == original);
  }
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
    made.own["anything"] =
        *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange<char>(' ', '~')));
    Diagnostics diagnostics;
    const LaunchConfig again = parsed(launch_config_yaml(made), diagnostics);
    RC_ASSERT(!diagnostics.has_errors());
    RC_ASSERT(again.megatron_lm_config == made.megatron_lm_config);
    RC_ASSERT(again.own == made.own);
    RC_ASSERT(again.num_processes == made.num_processes);
    RC_ASSERT(again.distributed_type == made.distributed_type);
    RC_ASSERT(again.main_process_port == made.main_process_port);
    RC_ASSERT(launch_config_yaml(again) == launch_config_yaml(made));
  }));
}

TEST_CASE("a port of 0 stays one: without it accelerate takes 29500") {
  const LaunchConfig config = good("distributed_type: 'NO'\nmain_process_port: 0\n");
  CHECK(launch_config_yaml(config).find("main_process_port: 0\n") != std::string::npos);
  CHECK(launch_config_yaml(good("distributed_type: 'NO'\n")).find("port") == std::string::npos);
  CHECK(
      launch_config_yaml(good("distributed_type: 'NO'\nmain_process_port: null\n")).find("port") ==
      std::string::npos);
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
    INFO(file_text(folder / "err"));
    if (code == 42) MESSAGE("no accelerate here: loaded with PyYAML, on which it stands");
    CHECK((code == 42 || code == 43));
  }
}
