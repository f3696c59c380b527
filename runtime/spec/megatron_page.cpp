// The reference page of Megatron-LM's flags.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/spec/megatron_command.h"
#include "runtime/spec/megatron_flags.h"

namespace mtl {

namespace {

using spec::MegatronFlag;
// What the key gets, and what else there is to say.
std::string becomes(const MegatronFlag& row) {
  std::vector<std::string> parts;
  if (row.how == spec::MegatronHow::truth) parts.push_back(fmt::format("`{}`", row.value));
  if (row.how == spec::MegatronHow::only) {
    parts.push_back(fmt::format("`{}` always holds here; another value is refused", row.value));
  }
  if (!row.words.empty()) {
    std::vector<std::string> words;
    for (const auto& [theirs, ours] : row.words) {
      words.push_back(ours.empty() || theirs == ours ? fmt::format("`{}`", theirs)
                                                     : fmt::format("`{}`: `{}`", theirs, ours));
    }
    parts.push_back(fmt::format("{}", fmt::join(words, ", ")));
  }
  if (row.how == spec::MegatronHow::by_hand) {
    parts.push_back(fmt::format("by hand: {}", row.note));
  } else if (!row.note.empty()) {
    parts.push_back(row.note);
  }
  if (!row.without.empty()) parts.push_back(fmt::format("without it `{}`", row.without));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string others_table(const std::vector<spec::MegatronOthers>& rows) {
  std::string text = "| flags | why |\n|---|---|\n";
  for (const spec::MegatronOthers& row : rows) {
    text += fmt::format("| `--{}` | {} |\n", fmt::join(row.flags, "` `--"), row.why);
  }
  return text;
}

}  // namespace

std::string megatron_reference_markdown() {
  std::string text =
      "# From Megatron-LM's flags to train.yaml\n\n"
      "<!-- Generated from runtime/spec/megatron_*.cpp by test_runtime_spec with "
      "MTL_UPDATE_DOCS=1. -->\n\n"
      "```\n"
      "mtl config import --train train.yaml train_gpt3.sh    # what to train\n"
      "mtl config import train_gpt3.sh                       # where to run: default_config.yaml\n"
      "mtl plan --gpus 64 train.yaml\n"
      "```\n\n"
      "The first command does what this page says, for a script or for a command behind `--`. "
      "Megatron's\n"
      "defaults are written out where mtl has others, so that the training is the same. What would "
      "make\n"
      "another model or another training is an error, all of it at once. What has no counterpart, "
      "and what the\n"
      "script computes, is named and stands as comments at the top of the file.\n\n"
      "Its data and checkpoints are read as they are: [prepare data]"
      "(../how-to/prepare-data.md#corpora-of-megatrons),\n"
      "[models in and out](../how-to/bring-models-in-and-out.md#from-megatron-lm). Flags are those "
      "of\n"
      "megatron-core 0.20.\n";
  for (const spec::MegatronGroup& group : spec::megatron_groups()) {
    text += fmt::format("\n## {}\n\n| Megatron-LM | train.yaml | |\n|---|---|---|\n", group.title);
    for (const MegatronFlag& row : group.flags) {
      text += fmt::format("| `--{}` | {} | {} |\n", row.flag,
                          row.key.empty() ? "" : fmt::format("`{}`", row.key), becomes(row));
    }
  }
  text += "\n## Not needed\n\n" + others_table(spec::megatron_needless());
  text +=
      "\n## Left out\n\nWhat mtl does not have, and a run is the same without it. An import names "
      "each.\n\n" +
      others_table(spec::megatron_left_out());
  text += "\n## Refused\n\nAn import with one of these ends with exit code 3.\n\n" +
          others_table(spec::megatron_refused());
  return text;
}

}  // namespace mtl
