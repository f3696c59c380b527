#include "cli/launch_flags.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "common/error.h"
#include "common/terminal.h"

namespace mtl {

namespace {

// Behind `mtl help launch-flags`: too many for one screen, and seldom typed.
bool is_family(FlagGroup group) {
  return group >= FlagGroup::slurm;
}

// Shown by `mtl launch --help`: of the rest, what people type often.
bool is_frequent(const LaunchFlag& flag) {
  static const std::array<std::string_view, 13> rare = {
      "multi_gpu",       "rdzv_conf",  "join_timeout", "remote_program",     "forward_env",
      "run_path",        "role",       "debug",        "local_ranks_filter", "enable_cpu_affinity",
      "mpirun_hostfile", "standalone", "templates_dir"};
  return !is_family(flag.group) && flag.group != FlagGroup::paradigm &&
         std::find(rare.begin(), rare.end(), flag.name) == rare.end();
}

// torchrun's names, which its parser (Python's argparse) also takes cut short: --nproc, --nno.
// accelerate's has that switched off.
std::vector<std::string> names_of_torchrun(const LaunchFlag& flag) {
  static const std::array<std::string_view, 25> theirs = {"nnodes",
                                                          "nproc_per_node",
                                                          "rdzv_backend",
                                                          "rdzv_endpoint",
                                                          "rdzv_id",
                                                          "rdzv_conf",
                                                          "standalone",
                                                          "max_restarts",
                                                          "monitor_interval",
                                                          "start_method",
                                                          "role",
                                                          "module",
                                                          "no_python",
                                                          "run_path",
                                                          "log_dir",
                                                          "redirects",
                                                          "tee",
                                                          "node_rank",
                                                          "local_ranks_filter",
                                                          "master_addr",
                                                          "master_port",
                                                          "local_addr",
                                                          "logs_specs",
                                                          "numa_binding",
                                                          "signals_to_handle"};
  std::vector<std::string> names = {flag.name};
  names.insert(names.end(), flag.aliases.begin(), flag.aliases.end());
  std::erase_if(names, [](const std::string& name) {
    return std::find(theirs.begin(), theirs.end(), name) == theirs.end();
  });
  return names;
}

// As it is written: the one of ours that people know with a dash.
std::string spelled(const LaunchFlag& flag) {
  return flag.name == "dry_run" ? std::string("dry-run") : flag.name;
}

// For the help, not too wide.
std::string shown_value(const LaunchFlag& flag) {
  return flag.name == "numa_binding" ? "none|numa|core" : flag.value;
}

void declare_one(CommandLine& line, const LaunchFlag& flag, FlagValues& values, bool hidden,
                 const std::string& alias = {}, const char* help = nullptr) {
  OptionDeclaration declaration;
  declaration.name = spelled(flag);
  declaration.aliases = flag.aliases;
  if (!alias.empty()) declaration.aliases.push_back(alias);
  declaration.short_name = flag.short_name;
  declaration.is_flag = flag.kind == FlagKind::truth;
  // accelerate's truth flags of engines want a value: --fsdp_offload_params true.
  declaration.takes_word = declaration.is_flag && is_family(flag.group);
  if (flag.kind != FlagKind::truth) declaration.value_name = shown_value(flag);
  declaration.help = help != nullptr ? help : flag.help;
  declaration.shown_default = flag.built_in;
  declaration.hidden = hidden;
  declaration.shortened = names_of_torchrun(flag);
  declaration.set = [&flag, &values](const std::string& text) -> std::optional<std::string> {
    if (auto wanted = flag_value_wanted(flag, text)) return wanted;
    // --config_file "$UNSET" must not mean the default one.
    if (text.empty() && (flag.value == "FILE" || flag.value == "DIR")) return "a path";
    FlagValue& value = values[flag.name];
    value.origin = fmt::format("--{}", spelled(flag));
    if (flag.kind != FlagKind::list) value.texts.clear();
    value.texts.push_back(text);
    return std::nullopt;
  };
  line.declare(std::move(declaration));
}

std::string left_side(const LaunchFlag& flag) {
  const std::string shorter =
      flag.short_name != '\0' ? fmt::format("-{}, ", flag.short_name) : std::string();
  if (flag.kind == FlagKind::truth) return fmt::format("{}--{}", shorter, spelled(flag));
  return fmt::format("{}--{} {}", shorter, spelled(flag), shown_value(flag));
}

std::string aliases_of(const LaunchFlag& flag) {
  std::string text;
  for (const std::string& alias : flag.aliases) {
    if (alias.find('-') != std::string::npos) continue;
    text += fmt::format("{}--{}", text.empty() ? "" : ", ", alias);
  }
  return text;
}

// Table cells: a | would end them.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, 1, '\\');
  }
  return text;
}

constexpr const char* kCommandTitle = "On the command line only";
constexpr CommandFlag kCommandFlags[] = {
    {kFreshFlag.name,
     "for a train.yaml: start a new run instead of continuing the newest one of that name"},
    kJsonFlag};

const char* note_of(FlagGroup group) {
  if (group != FlagGroup::megatron) return nullptr;
  return "Those that name a key of a train.yaml set it there; the others are for PyTorch programs "
         "alone.";
}

template <typename Visit>
void for_each_group(const Visit& visit) {
  for (int group = 0; group <= static_cast<int>(FlagGroup::elsewhere); ++group) {
    std::vector<const LaunchFlag*> flags;
    for (const LaunchFlag& flag : launch_flags()) {
      if (flag.group == static_cast<FlagGroup>(group)) flags.push_back(&flag);
    }
    if (!flags.empty()) visit(static_cast<FlagGroup>(group), flags);
  }
}

// A check has no program of the user's, and shows what is: it has nothing to show beforehand.
bool is_launch_only(const LaunchFlag& flag) {
  return flag.group == FlagGroup::program || flag.name == "dry_run";
}

template <typename Shown, typename Declare>
void declare_in_groups(CommandLine& line, const Shown& shown, const Declare& declare) {
  for (const LaunchFlag& flag : launch_flags()) {
    if (!shown(flag)) declare(flag, true);
  }
  for_each_group([&](FlagGroup group, const std::vector<const LaunchFlag*>& flags) {
    if (std::none_of(flags.begin(), flags.end(),
                     [&](const LaunchFlag* flag) { return shown(*flag); })) {
      return;
    }
    line.group(group_title(group));
    for (const LaunchFlag* flag : flags) {
      if (shown(*flag)) declare(*flag, false);
    }
  });
}

}  // namespace

void declare_launch_flags(CommandLine& line, FlagValues& values, bool submits) {
  const auto shown = [&](const LaunchFlag& flag) {
    const bool machines = flag.group == FlagGroup::machines;
    if (!submits) return is_frequent(flag);
    if (flag.group == FlagGroup::slurm || flag.name == "templates_dir") return true;
    // How machines meet is SLURM's affair.
    return is_frequent(flag) && (!machines || flag.name == "num_machines" || flag.name == "nnodes");
  };
  const auto declare = [&](const LaunchFlag& flag, bool hidden) {
    std::string alias;
    if (submits && flag.group == FlagGroup::slurm) alias = flag.name.substr(std::strlen("slurm_"));
    const bool taken =
        std::find(flag.aliases.begin(), flag.aliases.end(), alias) != flag.aliases.end();
    const bool nodes = submits && flag.name == "num_machines";
    declare_one(line, flag, values, hidden, taken ? std::string() : alias,
                nodes ? "nodes of the job" : nullptr);
  };
  declare_in_groups(line, shown, declare);
}

void declare_check_flags(CommandLine& line, FlagValues& values) {
  declare_in_groups(
      line, [](const LaunchFlag& flag) { return is_frequent(flag) && !is_launch_only(flag); },
      [&](const LaunchFlag& flag, bool hidden) { declare_one(line, flag, values, hidden); });
}

void refuse_launch_only_flags(const LaunchGiven& given, const std::string& command) {
  const auto refuse = [&](const FlagValues& values, const LaunchFlag& flag) {
    const auto found = values.find(flag.name);
    if (found == values.end() || !truth_of(found->second.texts.back()).value_or(false)) return;
    throw Error(Exit::usage,
                {.code = "usage.option",
                 .what = fmt::format("{} is for mtl launch, and mtl {} does not take it",
                                     found->second.origin, command),
                 .help = "leave it out"});
  };
  for (const LaunchFlag& flag : launch_flags()) {
    if (!is_launch_only(flag)) continue;
    refuse(given.flags, flag);
    // Of a program, the environment may say things to other commands.
    if (flag.name == "dry_run") refuse(given.environment, flag);
  }
}

namespace {

bool is_of_plan(const LaunchFlag& flag) {
  static const std::array<std::string_view, 6> shown = {"num_processes", "nproc_per_node",
                                                        "config_file",   "mixed_precision",
                                                        "num_machines",  "nnodes"};
  return std::find(shown.begin(), shown.end(), flag.name) != shown.end();
}

}  // namespace

void declare_plan_flags(CommandLine& line, FlagValues& values) {
  line.group("Where to run");
  for (const LaunchFlag& flag : launch_flags()) {
    const bool accepted = flag.group == FlagGroup::megatron || flag.name == "use_megatron_lm" ||
                          flag.name == "hosts" || flag.name == "hostfile" || flag.name == "cpu";
    if (is_of_plan(flag) || accepted) declare_one(line, flag, values, !is_of_plan(flag));
  }
}

void declare_config_flags(CommandLine& line, FlagValues& values) {
  line.group("Where to run");
  for (const LaunchFlag& flag : launch_flags()) declare_one(line, flag, values, !is_of_plan(flag));
}

std::string launch_flags_text(int columns) {
  const int width = std::clamp(columns, 40, 100);
  std::string text =
      wrap_text(
          "Every flag of mtl launch: accelerate's, torchrun's and its own. Names may be written "
          "with underscores or dashes; --x, --x=true, --x=false and --no-x are the same for every "
          "flag without a value; torchrun's may be cut short where no other begins so (--nproc 4). "
          "Each but the last two can also stand in the environment, as MTL_ and its name in "
          "capitals (MTL_NUM_PROCESSES=4; torchrun's PET_NNODES and its like are read too), and "
          "most in the config file. Built in < file < environment < flags.",
          width, 0, 0) +
      '\n';
  const int column = std::min(34, width / 2);
  const auto add = [&](const std::string& left, const std::string& right) {
    const int used = display_width(left);
    text += left;
    if (used + 2 > column) text += '\n';
    text.append(static_cast<size_t>(used + 2 > column ? column : column - used), ' ');
    text += wrap_text(right, width, column, column) + '\n';
  };
  for_each_group([&](FlagGroup group, const std::vector<const LaunchFlag*>& flags) {
    text += fmt::format("\n{}:\n", group_title(group));
    if (const char* note = note_of(group)) text += "  " + wrap_text(note, width, 2, 2) + '\n';
    for (const LaunchFlag* flag : flags) {
      std::string right = flag->help;
      if (!flag->built_in.empty()) right += fmt::format(" [default: {}]", flag->built_in);
      add(fmt::format("  {}", left_side(*flag)), right);
    }
  });
  text += fmt::format("\n{}:\n", kCommandTitle);
  for (const CommandFlag& flag : kCommandFlags) add(fmt::format("  --{}", flag.name), flag.help);
  return text;
}

std::string launch_flags_reference() {
  std::string text =
      "# Flags of `mtl launch`\n\n"
      "<!-- Written from the table in launcher/settings/launch_flags_*.cpp: MTL_UPDATE_DOCS=1 "
      "test_cli -->\n\n"
      "accelerate's flags, torchrun's and mtl's own, with their meanings. Names may be written "
      "with\n"
      "underscores or dashes. A flag without a value is `--x`, `--x=true`, `--x=false` or "
      "`--no-x`;\n"
      "those of an engine (`--fsdp_...`, `--zero3_...`, `--megatron_lm_...`) may be followed by "
      "`true` or `false`.\n"
      "The first word that is no flag is the program or the `train.yaml`; everything after a "
      "program\n"
      "is its own, but for a `--` right behind it, which Python's argparse drops under torchrun "
      "and\n"
      "accelerate too. torchrun's flags may be cut short where no other begins so: `--nproc 4`, "
      "`--stand`.\n\n"
      "Each setting may be given, weakest first, in the config file, in the environment, and as a\n"
      "flag. In the environment it is `MTL_` and its name in capitals (`MTL_NUM_PROCESSES=4`);\n"
      "torchrun's variables (`PET_NNODES=2`) are read as well. The last column says where the "
      "config\n"
      "file (accelerate's `default_config.yaml`) has it; `mtl_...` keys are mtl's own and stand "
      "in\n"
      "`megatron_lm_config`, the one place where accelerate tolerates them.\n";
  for_each_group([&](FlagGroup group, const std::vector<const LaunchFlag*>& flags) {
    text += fmt::format("\n## {}\n\n", group_title(group));
    if (const char* note = note_of(group)) text += fmt::format("{}\n\n", note);
    text += "| flag | means | config file |\n|---|---|---|\n";
    for (const LaunchFlag* flag : flags) {
      std::string name = fmt::format("`{}`", left_side(*flag));
      if (const std::string others = aliases_of(*flag); !others.empty()) {
        name += fmt::format(", `{}`", others);
      }
      std::string means = flag->help;
      if (!flag->built_in.empty()) means += fmt::format(" [{}]", flag->built_in);
      const std::string key = flag->file_key == "-"    ? std::string()
                              : flag->file_key.empty() ? fmt::format("`mtl_{}`", flag->name)
                                                       : fmt::format("`{}`", flag->file_key);
      text += fmt::format("| {} | {} | {} |\n", cell(name), cell(means), key);
    }
  });
  text += fmt::format("\n## {}\n\n| flag | means |\n|---|---|\n", kCommandTitle);
  for (const CommandFlag& flag : kCommandFlags) {
    text += fmt::format("| `--{}` | {} |\n", flag.name, flag.help);
  }
  return text;
}

}  // namespace mtl
