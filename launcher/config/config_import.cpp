#include "launcher/config/config_import.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text.h"

namespace mtl {

namespace {

// Megatron-LM's names, and what they are here.
struct MegatronName {
  const char* theirs;
  const char* flag;
  const char* value = "";  // of a flag without one
};
constexpr MegatronName kMegatron[] = {
    {"tensor_model_parallel_size", "megatron_lm_tp_degree"},
    {"pipeline_model_parallel_size", "megatron_lm_pp_degree"},
    {"context_parallel_size", "megatron_lm_context_parallel_size"},
    {"expert_model_parallel_size", "megatron_lm_expert_model_parallel_size"},
    {"expert_tensor_parallel_size", "megatron_lm_expert_tensor_parallel_size"},
    {"sequence_parallel", "megatron_lm_sequence_parallelism", "true"},
    {"use_distributed_optimizer", "megatron_lm_use_distributed_optimizer", "true"},
    {"recompute_activations", "megatron_lm_recompute_activations", "true"},
    {"recompute_granularity", "megatron_lm_recompute_granularity"},
    {"recompute_method", "megatron_lm_recompute_method"},
    {"recompute_num_layers", "megatron_lm_recompute_num_layers"},
    {"clip_grad", "megatron_lm_gradient_clipping"},
    {"bf16", "mixed_precision", "bf16"},
    {"fp16", "mixed_precision", "fp16"},
};

std::string underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace

ImportedCommand import_command(const std::vector<std::string>& words, Diagnostics& diagnostics) {
  ImportedCommand imported;
  const auto fail = [&](const std::string& what, const std::string& help) {
    diagnostics.add({.code = "config.import", .what = what, .help = help});
  };
  if (words.empty()) {
    fail("no command of torchrun, accelerate launch or Megatron-LM is in it",
         "give the command itself: mtl config import -- torchrun --nproc_per_node 8 ...");
    return imported;
  }
  const auto set = [&](const std::string& name, const std::string& value,
                       const std::string& origin) {
    const LaunchFlag* flag = find_launch_flag(name);
    if (flag == nullptr) return;
    if (value.empty() || value.find_first_of("$`") != std::string::npos) {
      diagnostics.add({.code = "config.import",
                       .what = fmt::format("{} is left out: the script does not say what {} is",
                                           origin, value.empty() ? "it" : value),
                       .help = "give the file its value: mtl config set",
                       .severity = Diagnostic::Severity::warning});
      return;
    }
    if (const auto wanted = flag_value_wanted(*flag, value)) {
      fail(fmt::format("{} wants {}, got '{}'", origin, *wanted, value),
           "a value that the script computes can be given as a flag: mtl config --no-input");
      return;
    }
    FlagValue& target = imported.flags[flag->name];
    target.origin = origin;
    if (flag->kind != FlagKind::list) target.texts.clear();
    target.texts.push_back(value);
  };
  const auto value_of = [&](size_t& i, const std::string& inline_value) {
    if (!inline_value.empty()) return inline_value;
    // A variable that is not known was no word.
    if (i + 1 < words.size() && !words[i + 1].starts_with("--")) return words[++i];
    return std::string();
  };
  bool in_program = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with("--")) {
      if (word.ends_with(".py") || word.ends_with(".yaml")) in_program = true;
      if (!in_program && is_shell_variable(word)) {
        diagnostics.add({.code = "config.import",
                         .what = fmt::format("{} is left out: the script is given it, or computes "
                                             "it",
                                             word),
                         .help = "see which flags it holds, and give the file them: mtl config set",
                         .severity = Diagnostic::Severity::warning});
      }
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = underscores(word.substr(2, equals - 2));
    const std::string inline_value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const std::string origin = word.substr(0, equals);
    const auto megatron = std::find_if(std::begin(kMegatron), std::end(kMegatron),
                                       [&](const MegatronName& row) { return name == row.theirs; });
    if (megatron != std::end(kMegatron)) {
      const bool has_value = *megatron->value == '\0';
      set(megatron->flag, has_value ? value_of(i, inline_value) : megatron->value, origin);
      continue;
    }
    const LaunchFlag* flag = in_program ? nullptr : find_launch_flag(name);
    if (flag == nullptr) {
      imported.left.push_back(word);
      const bool value_follows =
          equals == std::string::npos && i + 1 < words.size() && !words[i + 1].starts_with("--");
      if (value_follows && in_program) ++i;
      continue;
    }
    if (flag->file_key == "-") {
      if (flag->kind != FlagKind::truth) value_of(i, inline_value);
      continue;
    }
    if (flag->kind == FlagKind::truth) {
      set(flag->name, inline_value.empty() ? "true" : inline_value, origin);
    } else {
      set(flag->name, value_of(i, inline_value), origin);
    }
  }
  // torchrun starts nothing on GPUs itself; the program does.
  set("cpu", "false", "");
  if (imported.flags.size() == 1) {
    fail("the command says nothing of where to run", "mtl config asks");
  }
  return imported;
}

}  // namespace mtl
