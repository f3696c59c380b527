// mtl config import: default_config.yaml, or a train.yaml, from what people have.
#include "launcher/config/config_import.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_line.h"
#include "cli/config/config_file.h"
#include "cli/run_request.h"
#include "common/error.h"
#include "common/files.h"
#include "launcher/config/config_edit.h"
#include "launcher/config/shell_script.h"
#include "runtime/spec/megatron_command.h"

namespace mtl {

namespace {

// Before anything is read of what would be lost.
void keep_what_is_there(const std::string& target, bool force, const char* elsewhere) {
  if (force || !std::filesystem::exists(target)) return;
  throw Error(Exit::config,
              {.code = "config.exists",
               .what = fmt::format("{} is there already", target),
               .help = fmt::format("--force replaces it; {} writes elsewhere", elsewhere)});
}

// A script gets the address where machines meet from its scheduler or its caller, and so may the
// launches of the file: that it is not there is no error.
void check_imported(const LaunchConfig& config, bool is_command, Diagnostics& diagnostics) {
  Diagnostics found;
  check_launch_config(config, found);
  for (Diagnostic diagnostic : found.all()) {
    if (is_command && diagnostic.code == "launch.address") {
      diagnostic.severity = Diagnostic::Severity::warning;
    }
    diagnostics.add(std::move(diagnostic));
  }
}

// What the flags of pretrain_gpt.py say, as a train.yaml.
int write_train_yaml(const std::vector<std::string>& words, const std::string& from,
                     const std::string& target, bool force) {
  Diagnostics diagnostics;
  const MegatronSettings settings = settings_of_megatron(words, diagnostics);
  diagnostics.throw_if_errors();
  keep_what_is_there(target, force, "--train FILE");
  write_file_atomic(target, megatron_train_yaml(settings, from));
  fmt::print("{}\n", target);
  std::fflush(stdout);
  for (const std::string& sentence : settings.open) fmt::print(stderr, "{}\n", sentence);
  return 0;
}

}  // namespace

int config_import(const Arguments& args) {
  std::string path, train, file;
  bool force = false;
  CommandLine line({"config import [options] FILE", "config import [options] -- COMMAND ..."},
                   "Writes our file from another: accelerate's default_config.yaml, or a shell "
                   "script or command line of torchrun, accelerate launch or Megatron-LM. What "
                   "could not be taken over is named. With --train it writes a train.yaml of what "
                   "the flags of Megatron-LM's pretrain_gpt.py say, and nothing else.");
  line.example("mtl config import ~/.cache/huggingface/accelerate/default_config.yaml", "");
  line.example("mtl config import train_gpt3.sh",
               "where to run, of its torchrun and Megatron flags");
  line.example("mtl config import --train train.yaml train_gpt3.sh", "and what to train");
  line.option("config_file", "FILE", path, "where to write", kOwnConfigPlace);
  line.option("train", "FILE", train, "write this train.yaml instead");
  line.flag("force", force, "replace a file that is there");
  line.positional("FILE", file, "what to read");
  const auto separator = std::find(args.begin(), args.end(), "--");
  Arguments own({args.begin(), separator}, args.description);
  const bool command = separator != args.end();
  if (command) own.emplace_back("-");
  if (!line.parse(own)) return 0;
  Diagnostics diagnostics;
  LaunchConfig config;
  ImportedCommand imported;
  const std::string text =
      command ? fmt::format("{}", fmt::join(separator + 1, args.end(), " ")) : config_text(file);
  const bool is_command = command || looks_like_command(text);
  const std::vector<std::string> words =
      command ? std::vector(separator + 1, args.end()) : command_of_script(text);
  if (!train.empty()) {
    if (!is_command || words.empty()) {
      throw Error(Exit::config, {.code = "config.import",
                                 .what = fmt::format("{} has no command of Megatron-LM", file),
                                 .help = "give the command itself: mtl config import --train "
                                         "train.yaml -- pretrain_gpt.py --num-layers ..."});
    }
    return write_train_yaml(words, command ? "a command of Megatron-LM" : file, train, force);
  }
  if (is_command) {
    imported = import_command(words, diagnostics);
    if (!diagnostics.has_errors()) config = config_of_flags(imported.flags, diagnostics);
  } else {
    config = read_launch_config(file, diagnostics);
  }
  if (!diagnostics.has_errors()) check_imported(config, is_command, diagnostics);
  diagnostics.throw_if_errors();
  const std::string target = config_target(path);
  keep_what_is_there(target, force, "--config_file");
  print_warnings(diagnostics.all());
  config.path = target;
  write_config(target, config);
  for (const std::string& decision : config_decisions(config)) {
    fmt::print(stderr, "{}\n", decision);
  }
  if (!imported.left.empty()) {
    fmt::print(stderr,
               "not about where to run, so not taken over (--train FILE writes a train.yaml of "
               "them): {}\n",
               fmt::join(imported.left, " "));
  }
  return 0;
}

}  // namespace mtl
