// mtl ckpt: checkpoints as files; one file per member.
#include "cli/ckpt/ckpt.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/group.h"
#include "common/error.h"
#include "common/text.h"
#include "runtime/metrics/format.h"

namespace mtl {

int command_ckpt(const Arguments& args) {
  static const std::vector<Command> kMembers = {
      {"ls", "the checkpoints of a run: size, layout, losses, and why each stays", command_ckpt_ls},
      {"show", "what is in one: state, tensors, files", command_ckpt_show},
      {"verify", "reads every byte and names what is damaged", command_ckpt_verify},
      {"prune", "deletes all but those that some rules keep", command_ckpt_prune},
      {"diff", "what two of them differ in", command_ckpt_diff},
      {"average", "the mean of the weights of several", command_ckpt_average},
      {"merge", "all weights in one safetensors file", command_ckpt_merge},
      {"reshard", "the same checkpoint in the files of another layout", command_ckpt_reshard},
      {"export", "a Hugging Face folder, or Megatron's split", command_ckpt_export},
      {"import", "a run from a Hugging Face folder or a Megatron checkpoint", command_ckpt_import},
  };
  return run_group("ckpt",
                   "Looks into checkpoints, checks them, thins them out, and brings models into "
                   "and out of the formats of others. Nothing here needs the run to be stopped, "
                   "or a GPU.",
                   kMembers, args);
}

std::string layout_words(const nlohmann::json& state) {
  const auto layout = state.is_object() ? state.find("layout") : state.end();
  if (layout == state.end() || !layout->is_object()) return "?";
  std::string words;
  for (const char* axis : {"tp", "cp", "ep", "dp", "pp"}) {
    const auto found = layout->find(axis);
    if (found == layout->end() || !found->is_number_integer() || found->get<int64_t>() == 1) {
      continue;
    }
    words += fmt::format("{}{}{}", words.empty() ? "" : " ", axis, found->get<int64_t>());
  }
  return words.empty() ? "1 rank" : words;
}

std::string size_words(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

int64_t parse_bytes(const std::string& text, const std::string& option) {
  static const std::pair<const char*, double> kUnits[] = {
      {"", 1},      {"B", 1},       {"KB", 1e3},       {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  size_t end = 0;
  double value = -1;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
  }
  std::string unit = text.substr(std::min(end, text.size()));
  unit.erase(std::remove(unit.begin(), unit.end(), ' '), unit.end());
  for (const auto& [name, bytes] : kUnits) {
    if (lower(unit) == lower(name) && value * bytes >= 1 && value * bytes < 0x1p62) {
      return static_cast<int64_t>(value * bytes);
    }
  }
  throw Error(Exit::usage, {.code = "usage.value",
                            .what = fmt::format("--{}: '{}' is no size", option, text),
                            .help = "give one like 5GB, 500MB or 2GiB"});
}

void fail_missing_option(const std::string& command, const std::string& option) {
  throw Error(Exit::usage, {.code = "usage.missing",
                            .what = fmt::format("mtl ckpt {} wants {}", command, option),
                            .help = fmt::format("see: mtl ckpt {} --help", command)});
}

}  // namespace mtl
