#include "launcher/settings/launch_flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/text.h"
#include "launcher/settings/launch_config_keys.h"
#include "launcher/settings/launch_flags_table.h"

namespace mtl {

namespace {

std::optional<double> leading_number(const std::string& text, std::string& unit) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  unit = std::string(end, text.data() + text.size());
  return number;
}

}  // namespace

const char* group_title(FlagGroup group) {
  switch (group) {
    case FlagGroup::ranks:
      return "Where to run";
    case FlagGroup::machines:
      return "Several machines";
    case FlagGroup::slurm:
      return "SLURM";
    case FlagGroup::kubernetes:
      return "Kubernetes";
    case FlagGroup::program:
      return "A program";
    case FlagGroup::workers:
      return "Placement and environment of the ranks";
    case FlagGroup::logs:
      return "Output";
    case FlagGroup::failures:
      return "Failures";
    case FlagGroup::other:
      return "Other";
    case FlagGroup::paradigm:
      return "Engine of a program";
    case FlagGroup::megatron:
      return "Megatron-LM, and the layout of a train.yaml";
    case FlagGroup::fsdp:
      return "FSDP";
    case FlagGroup::deepspeed:
      return "DeepSpeed";
    case FlagGroup::fp8:
      return "FP8";
    case FlagGroup::parallelism:
      return "ParallelismConfig";
    case FlagGroup::dynamo:
      return "torch.compile";
    case FlagGroup::torchrun:
      return "More of torchrun's";
    case FlagGroup::elsewhere:
      return "Accepted, without meaning here";
  }
  return "";
}

const std::vector<LaunchFlag>& launch_flags() {
  static const std::vector<LaunchFlag> flags = [] {
    std::vector<LaunchFlag> all = launch_core_flags();
    for (const auto& more :
         {launch_slurm_flags(), launch_kubernetes_flags(), launch_family_flags()}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }();
  return flags;
}

const LaunchFlag* find_launch_flag(std::string_view name) {
  static const std::unordered_map<std::string_view, const LaunchFlag*> index = [] {
    std::unordered_map<std::string_view, const LaunchFlag*> names;
    for (const LaunchFlag& flag : launch_flags()) {
      names.emplace(flag.name, &flag);
      for (const std::string& alias : flag.aliases) names.emplace(alias, &flag);
    }
    return names;
  }();
  const auto found = index.find(name);
  return found == index.end() ? nullptr : found->second;
}

std::optional<bool> truth_of(const std::string& text) {
  const std::string word = upper(text);
  for (const char* yes : {"TRUE", "YES", "ON", "1", "Y", "T"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"FALSE", "NO", "OFF", "0", "N", "F"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

std::string canonical_value(const LaunchFlag& flag, const std::string& text) {
  if (flag.kind != FlagKind::truth) return text;
  return truth_of(text).value_or(false) ? "true" : "false";
}

std::optional<std::string> flag_value_wanted(const LaunchFlag& flag, const std::string& text) {
  std::string unit;
  switch (flag.kind) {
    case FlagKind::truth:
      if (truth_of(text)) return std::nullopt;
      return "true or false";
    case FlagKind::whole: {
      const auto number = to_number<int64_t>(text);
      if (number && static_cast<double>(*number) >= flag.minimum && *number <= 2'000'000'000) {
        return std::nullopt;
      }
      return fmt::format("a whole number >= {}", flag.minimum);
    }
    case FlagKind::number:
      if (const auto number = leading_number(text, unit);
          number && unit.empty() && *number >= flag.minimum) {
        return std::nullopt;
      }
      return fmt::format("a number >= {}", flag.minimum);
    case FlagKind::seconds:
      if (const auto number = leading_number(text, unit);
          number && *number >= flag.minimum && *number < 1e9 &&
          (unit.empty() || unit == "s" || unit == "m" || unit == "h" || unit == "ms")) {
        return std::nullopt;
      }
      return fmt::format("seconds >= {} (or 500ms, 2m, 1h)", flag.minimum);
    case FlagKind::size:
      if (const auto number = leading_number(text, unit);
          number && *number >= flag.minimum && *number < 1e18 &&
          (unit.empty() || upper(unit) == "K" || upper(unit) == "M" || upper(unit) == "G")) {
        return std::nullopt;
      }
      return "a size in bytes (or 64K, 100M, 2G)";
    case FlagKind::choice: {
      size_t start = 0;
      while (start <= flag.value.size()) {
        const size_t end = std::min(flag.value.find('|', start), flag.value.size());
        if (flag.value.compare(start, end - start, text) == 0) return std::nullopt;
        start = end + 1;
      }
      std::string words = flag.value;
      for (size_t at = 0; (at = words.find('|', at)) != std::string::npos; at += 3) {
        words.replace(at, 1, " | ");
      }
      return words;
    }
    case FlagKind::text:
      if (flag.name == "dynamo_backend" && !among(dynamo_backends(), lower(text))) {
        return fmt::format("one of {}", fmt::join(dynamo_backends(), ", "));
      }
      if (flag.name != "fp8_override_linear_precision" || linear_precision(text)) {
        return std::nullopt;
      }
      return "three truth values, like false,false,true";
    case FlagKind::list:
      return std::nullopt;
  }
  return std::nullopt;
}

FlagValues flags_in_environment(const char* const* environment, Diagnostics& diagnostics) {
  std::map<std::string_view, std::string_view> variables;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (name.starts_with("MTL_") || name.starts_with("PET_")) {
      variables.emplace(name, entry.substr(equals + 1));
    }
  }
  FlagValues values;
  if (variables.empty()) return values;
  for (const LaunchFlag& flag : launch_flags()) {
    std::vector<std::string> names = {flag.name};
    names.insert(names.end(), flag.aliases.begin(), flag.aliases.end());
    for (const char* prefix : {"MTL_", "PET_"}) {
      for (const std::string& name : names) {
        const std::string variable = prefix + upper(name);
        const auto found = variables.find(variable);
        if (found == variables.end() || found->second.empty() || values.count(flag.name) != 0) {
          continue;
        }
        const std::string text(found->second);
        if (const auto wanted = flag_value_wanted(flag, text)) {
          diagnostics.add({.code = "config.environment",
                           .what = fmt::format("{} wants {}, got '{}'", variable, *wanted, text),
                           .help = fmt::format("correct or unset {}", variable)});
          continue;
        }
        values[flag.name] = {{text}, variable};
      }
    }
  }
  return values;
}

}  // namespace mtl
