// cli/launch_flags: the table as options, and the reference page that is written from it.
#include "cli/launch_flags.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

#include "common/error.h"
#include "common/terminal.h"
#include "launcher/settings/train_settings.h"
#include "support/text.h"

using namespace mtl;

namespace {

using Words = std::vector<std::string>;

FlagValues parsed(const Words& args) {
  FlagValues values;
  std::string program;
  Words rest;
  CommandLine line({"launch [options] PROGRAM [args ...]"}, "Starts a program.");
  line.positional("PROGRAM", program, "what to start");
  line.rest("ARGS", rest, "its arguments");
  declare_launch_flags(line, values);
  line.parse(args);
  return values;
}

}  // namespace

TEST_CASE("flags land under their first name whatever they are called") {
  const FlagValues values =
      parsed({"--node-rank", "1", "--master_addr=a", "--no-cpu", "--env", "A=1", "--env=B=2", "-n",
              "3", "--num-processes", "4", "-m", "--tpu_cluster=false", "p"});
  CHECK(values.at("machine_rank").texts == Words{"1"});
  CHECK(values.at("machine_rank").origin == "--machine_rank");
  CHECK(values.at("main_process_ip").texts == Words{"a"});
  CHECK(values.at("cpu").texts == Words{"false"});
  CHECK(values.at("env").texts == Words{"A=1", "B=2"});
  CHECK(values.at("num_processes").texts == Words{"4"});
  CHECK(values.at("module").texts == Words{"true"});
  CHECK(values.at("tpu_cluster").texts == Words{"false"});
}

TEST_CASE("every setting is an option of its kind") {
  for (const LaunchFlag& flag : launch_flags()) {
    CAPTURE(flag.name);
    if (flag.kind == FlagKind::truth) {
      CHECK(parsed({"--" + flag.name, "p"}).at(flag.name).texts == Words{"true"});
      CHECK(parsed({"--no-" + flag.name, "p"}).at(flag.name).texts == Words{"false"});
      continue;
    }
    const std::string text =
        flag.kind == FlagKind::choice ? flag.value.substr(0, flag.value.find('|'))
        : flag.name == "fp8_override_linear_precision" || flag.name == "dynamo_backend"
            ? flag.built_in
            : std::string("3");
    CHECK(parsed({"--" + flag.name, text, "p"}).at(flag.name).texts == Words{text});
    if (flag.kind == FlagKind::text || flag.kind == FlagKind::list) continue;
    CHECK_THROWS_AS(parsed({"--" + flag.name, "nonsense", "p"}), Error);
  }
}

TEST_CASE("truth flags of engines take the word that accelerate wants behind them") {
  int count = 0;
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.kind != FlagKind::truth || flag.group < FlagGroup::megatron) continue;
    CAPTURE(flag.name);
    for (const auto& [word, value] :
         {std::pair("true", "true"), {"False", "false"}, {"1", "true"}, {"no", "false"}}) {
      const FlagValues values = parsed({"--" + flag.name, word, "-n", "2", "p", "true"});
      CHECK(values.at(flag.name).texts == Words{value});
      CHECK(values.at("num_processes").texts == Words{"2"});
    }
    // No word of truth: the program.
    CHECK(parsed({"--" + flag.name, "truth.py"}).at(flag.name).texts == Words{"true"});
    CHECK(parsed({"--no-" + flag.name, "true"}).at(flag.name).texts == Words{"false"});
    ++count;
  }
  CHECK(count > 25);
  // Others may be followed by a program of that name.
  CHECK(parsed({"--cpu", "false"}).at("cpu").texts == Words{"true"});
}

TEST_CASE("a backend that PyTorch has not is refused, in whatever case it is written") {
  const auto wanted = [](const std::string& word) {
    for (const LaunchFlag& flag : launch_flags()) {
      if (flag.name == "dynamo_backend") return flag_value_wanted(flag, word);
    }
    return std::optional<std::string>("a flag of that name");
  };
  CHECK_FALSE(wanted("inductor"));
  CHECK_FALSE(wanted("INDUCTOR"));
  CHECK(wanted("Inductr").value_or("").starts_with("one of no, eager, "));
}

TEST_CASE("the text of all flags fits and leaves none out") {
  for (int columns : {60, 80, 100}) {
    std::istringstream lines(launch_flags_text(columns));
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      CHECK(display_width(line) <= columns);
    }
  }
  const std::string text = launch_flags_text(80);
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.name != "dry_run") CHECK(text.find("--" + flag.name) != std::string::npos);
  }
  for (const char* name : {"--fresh", "--json"}) CHECK(text.find(name) != std::string::npos);
}

TEST_CASE("a Megatron flag names the key of a train.yaml that it sets, and else none") {
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.group != FlagGroup::megatron) continue;
    CAPTURE(flag.name);
    const std::string value = flag.kind == FlagKind::truth    ? "true"
                              : flag.kind == FlagKind::choice ? "full"
                                                              : "3";
    const TrainSettings settings = train_settings({{flag.name, {{value}, "--" + flag.name}}});
    const bool named =
        settings.size() == 1 && flag.help.find(settings.front().first) != std::string::npos;
    CHECK(named == !settings.empty());
    CHECK((flag.help.find('.') != std::string::npos) == named);
  }
}

TEST_CASE("docs/reference/launch-flags.md is written from the table") {
  const std::string path = std::string(MTL_SOURCE_DIR) + "/docs/reference/launch-flags.md";
  const std::string expected = launch_flags_reference();
  if (const char* update = std::getenv("MTL_UPDATE_DOCS"); update && std::string(update) == "1") {
    std::ofstream(path, std::ios::binary) << expected;
    return;
  }
  CHECK_MESSAGE(test::file_text(path) == expected,
                "it differs from the table; regenerate it: MTL_UPDATE_DOCS=1 test_cli");
}
