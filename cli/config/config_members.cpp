// mtl config default | show | set | update | validate | schema: the file without questions.
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/config/config_file.h"
#include "cli/run_request.h"
#include "common/error.h"
#include "launcher/config/config_edit.h"
#include "launcher/settings/launch_config_place.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

namespace {

const char* const kInUse = "mtl's own, else accelerate's";

// What changed, on stderr; nothing if nothing did.
void print_changes(const std::string& before, const std::string& after) {
  for (const std::string& line : line_changes(before, after)) {
    if (!line.starts_with("  ")) fmt::print(stderr, "{}\n", line);
  }
}

}  // namespace

int config_default(const Arguments& args) {
  std::string path;
  std::optional<std::string> precision;
  CommandLine line({"config default [options]"},
                   "Writes the settings that suit this machine, without asking. The file is "
                   "accelerate's own: both programs read it. A file that exists is never "
                   "overwritten.");
  line.example("mtl config default", "write default_config.yaml where mtl looks for it");
  line.example("mtl config default --mixed_precision bf16 --config_file here.yaml",
               "another precision, another place");
  line.option("config_file", "FILE", path, "where to write", kOwnConfigPlace);
  line.choice("mixed_precision", {"no", "fp16", "bf16", "fp8"}, precision, "the compute type",
              "no");
  if (!line.parse(args)) return 0;
  if (path.empty()) path = own_config_path();
  if (std::filesystem::exists(path)) {
    fmt::print(stderr,
               "{} exists and is not overwritten: change it with mtl config or mtl config set, "
               "remove it, or name another file with --config_file\n",
               path);
    fmt::print("{}\n", path);
    return 0;
  }
  write_config(config_target(path), detect_launch_config(precision.value_or("no")));
  return 0;
}

int config_show(const Arguments& args) {
  std::string path;
  CommandLine line({"config show [options]"},
                   "Prints the launch settings that mtl launch would use, and what they decide of "
                   "a train.yaml.");
  line.option("config_file", "FILE", path, "the file to read", kInUse);
  if (!line.parse(args)) return 0;
  if (means_no_config(path)) {
    fmt::print("# no file: what is built in is used\n");
    return 0;
  }
  if (path.empty()) path = default_launch_config_path();
  if (path.empty()) {
    fmt::print("# no {}, and none of accelerate's: what is built in is used (see: mtl config)\n",
               own_config_path());
    return 0;
  }
  const LaunchConfig config = load_config(path);
  fmt::print("# {}\n{}", path, launch_config_yaml(config));
  for (const std::string& decision : config_decisions(config)) fmt::print("# {}\n", decision);
  return 0;
}

int config_set(const Arguments& args) {
  std::string path;
  std::vector<std::string> words;
  CommandLine line({"config set [options] key=value ..."},
                   "Changes keys of the file that mtl launch reads: all of them, or none if one "
                   "cannot be. An empty value takes a key out.");
  line.example("mtl config set num_processes=8 mixed_precision=bf16", "two keys");
  line.example("mtl config set megatron_lm_config.megatron_lm_tp_degree=4",
               "of a section; megatron_lm_tp_degree alone is the same");
  line.example("mtl config set hosts=a,b", "a setting of mtl's own, see mtl help launch-flags");
  line.option("config_file", "FILE", path, "the file to change", kInUse);
  line.rest("key=value", words, "what to change");
  if (!line.parse(args)) return 0;
  std::vector<std::pair<std::string, std::string>> changes;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw Error(Exit::usage, {.code = "usage.override",
                                .what = fmt::format("'{}' is not key=value", word),
                                .help = "for instance: mtl config set num_processes=8"});
    }
    changes.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  if (changes.empty()) {
    throw Error(Exit::usage, {.code = "usage.missing",
                              .what = "mtl config set wants key=value",
                              .help = "for instance: mtl config set num_processes=8"});
  }
  if (path.empty()) path = default_launch_config_path();
  std::error_code ignored;
  const bool exists = !path.empty() && std::filesystem::exists(path, ignored);
  const std::string target = config_target(path);
  LaunchConfig before = exists ? load_config(path) : detect_launch_config("no");
  before.path = target;
  Diagnostics diagnostics;
  const LaunchConfig after = edit_launch_config(before, changes, diagnostics);
  diagnostics.throw_if_errors();
  print_warnings(diagnostics.all());
  // Of a file that was not there, all of it: this machine is in what was not asked for.
  print_changes(exists ? launch_config_yaml(before) : "", launch_config_yaml(after));
  write_config(target, after);
  return 0;
}

int config_update(const Arguments& args) {
  std::string path;
  CommandLine line({"config update [options]"},
                   "Reads the file and writes it again: sorted, old names as today's, defaults of "
                   "newer versions added. No setting is lost; comments are.");
  line.option("config_file", "FILE", path, "the file to rewrite", kInUse);
  if (!line.parse(args)) return 0;
  path = config_in_use(path);
  const std::string before = config_text(path);
  const LaunchConfig config = load_config(path);
  const std::string target = config_target(path);
  print_changes(before, launch_config_yaml(config));
  write_config(target, config);
  return 0;
}

int config_validate(const Arguments& args) {
  std::string path;
  CommandLine line({"config validate [FILE]", "config validate --config_file FILE"},
                   "Checks a file as a launch would and prints every problem with its place. "
                   "Exit code 3 if there is an error.");
  std::vector<std::string> files;
  line.option("config_file", "FILE", path, "the file to check", kInUse);
  line.rest("FILE", files, "the file to check, without its option");
  if (!line.parse(args)) return 0;
  if (!path.empty()) files.push_back(path);
  if (files.size() > 1) {
    throw Error(Exit::usage, {.code = "usage.extra",
                              .what = fmt::format("mtl config validate takes one file, and got {}",
                                                  files.size()),
                              .help = "see: mtl config validate --help"});
  }
  if (!files.empty()) path = files.front();
  path = config_in_use(path);
  Diagnostics diagnostics;
  const LaunchConfig config = read_launch_config(path, diagnostics);
  if (!config.path.empty() && !diagnostics.has_errors()) check_launch_config(config, diagnostics);
  diagnostics.throw_if_errors();
  print_warnings(diagnostics.all());
  fmt::print("{}: no errors{}\n", path,
             diagnostics.all().empty() ? std::string()
                                       : fmt::format(", {} warning{}", diagnostics.all().size(),
                                                     diagnostics.all().size() == 1 ? "" : "s"));
  return 0;
}

int config_schema(const Arguments& args) {
  std::optional<std::string> of;
  CommandLine line({"config schema [options]"},
                   "Prints the JSON Schema of train.yaml, or of default_config.yaml, for editors. "
                   "In a train.yaml, the line `# yaml-language-server: $schema=train.schema.json` "
                   "turns it on.");
  line.example("mtl config schema > train.schema.json", "");
  line.choice("of", {"train", "config"}, of, "of which file: train.yaml, default_config.yaml",
              "train");
  if (!line.parse(args)) return 0;
  std::string schema = of == "config" ? launch_config_json_schema() : spec_json_schema();
  if (!schema.ends_with('\n')) schema += '\n';
  std::fputs(schema.c_str(), stdout);
  return 0;
}

}  // namespace mtl
