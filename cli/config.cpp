// mtl config default | show | schema: where to run (accelerate's default_config.yaml) and what a
// train.yaml may say.
#include <cstdio>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "common/error.h"
#include "common/files.h"
#include "launcher/launch_config.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

namespace {

const char* const kDefaultPath = "accelerate's place, under $HF_HOME or ~/.cache/huggingface";

int config_default(const Arguments& args) {
  std::string path;
  std::optional<std::string> precision;
  CommandLine line({"config default [options]"},
                   "Writes the settings that suit this machine, without asking. The file is "
                   "accelerate's own: both programs read it. A file that exists is never "
                   "overwritten.");
  line.example("mtl config default",
               "write default_config.yaml where mtl and accelerate look for it");
  line.example("mtl config default --mixed_precision bf16 --config_file here.yaml",
               "another precision, another place");
  line.option("config_file", "FILE", path, "where to write", kDefaultPath);
  line.choice("mixed_precision", {"no", "fp16", "bf16", "fp8"}, precision, "the compute type",
              "no");
  if (!line.parse(args)) return 0;
  if (path.empty()) path = default_launch_config_path();

  if (std::filesystem::exists(path)) {
    fmt::print(stderr,
               "{} exists and is not overwritten: edit it, remove it, or name another file with "
               "--config_file\n",
               path);
    fmt::print("{}\n", path);
    return 0;
  }
  if (const auto parent = std::filesystem::path(path).parent_path(); !parent.empty()) {
    make_directories(parent);
  }
  write_file_atomic(path, launch_config_yaml(detect_launch_config(precision.value_or("no"))));
  fmt::print("{}\n", path);
  return 0;
}

int config_show(const Arguments& args) {
  std::string path;
  CommandLine line({"config show [options]"},
                   "Prints the launch settings that mtl launch would use, and what they decide of "
                   "a train.yaml.");
  line.option("config_file", "FILE", path, "the file to read", kDefaultPath);
  if (!line.parse(args)) return 0;
  const bool named = !path.empty();
  if (!named) path = default_launch_config_path();
  if (!named && !std::filesystem::exists(path)) {
    fmt::print("# no {}: what is built in is used (see: mtl config default)\n", path);
    return 0;
  }
  Diagnostics diagnostics;
  const LaunchConfig config = read_launch_config(path, diagnostics);
  diagnostics.throw_if_errors();
  fmt::print("# {}\n{}", path, launch_config_yaml(config));
  for (const auto& [key, value] : train_settings(config)) {
    fmt::print("# train.yaml: {}={}\n", key, value);
  }
  for (const IgnoredKey& ignored : config.ignored) {
    if (!ignored.neutral) fmt::print("# {} means nothing to mtl's own runtime\n", ignored.key);
  }
  return 0;
}

int config_schema(const Arguments& args) {
  CommandLine line({"config schema"},
                   "Prints the JSON Schema of train.yaml, for editors. In a train.yaml, the line "
                   "`# yaml-language-server: $schema=train.schema.json` turns it on.");
  line.example("mtl config schema > train.schema.json", "");
  if (!line.parse(args)) return 0;
  std::string schema = spec_json_schema();
  if (!schema.ends_with('\n')) schema += '\n';
  std::fputs(schema.c_str(), stdout);
  return 0;
}

}  // namespace

int command_config(const Arguments& args) {
  if (!args.empty()) {
    const Arguments rest(args.begin() + 1, args.end());
    if (args[0] == "default") return config_default(rest);
    if (args[0] == "show") return config_show(rest);
    if (args[0] == "schema") return config_schema(rest);
  }
  std::vector<std::string> words;
  CommandLine line({"config default | show | schema"},
                   "The settings of this machine, in accelerate's default_config.yaml: how many "
                   "processes, which precision, which parallel degrees.");
  line.example("mtl config default", "write what suits this machine");
  line.example("mtl config show", "print what mtl launch would use");
  line.example("mtl config schema", "print the JSON Schema of train.yaml");
  line.rest("default | show | schema", words, "what to do; each has its own --help");
  if (!line.parse(args)) return 0;
  if (words.empty()) {
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.missing",
                           .what = "mtl config wants one of default, show, schema",
                           .help = "mtl config default writes what suits this machine"});
  }
  const auto guess = did_you_mean(words[0], {"default", "show", "schema"});
  throw Error(Exit::usage,
              Diagnostic{.code = "usage.unknown_command",
                         .what = fmt::format("mtl config has no '{}'", words[0]),
                         .help = guess ? fmt::format("did you mean mtl config {}?", *guess)
                                       : "it knows default, show and schema"});
}

}  // namespace mtl
