// mtl ckpt: checkpoints as files; one file per member.
#include "cli/ckpt.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/group.h"
#include "common/error.h"
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

void fail_missing_option(const std::string& command, const std::string& option) {
  throw Error(Exit::usage, {.code = "usage.missing",
                            .what = fmt::format("mtl ckpt {} wants {}", command, option),
                            .help = fmt::format("see: mtl ckpt {} --help", command)});
}

}  // namespace mtl
