// The table of questions of `mtl config` (config_wizard.h) in its parts, and what these are made
// of. The order is that of accelerate's wizard, and so are the defaults, where this machine does
// not know better.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/config/config_wizard.h"

namespace mtl {

using Check = std::function<std::optional<std::string>(const Answers&, const std::string&)>;
using Preset = std::function<std::string(const Answers&)>;

// Of ranks, more than there are anywhere.
inline constexpr int64_t kManyRanks = 1'000'000;

Check whole_number_from(int64_t least, int64_t most);
std::vector<Choice> yes_no(const Answers&);
Preset always(std::string value);
bool everybody(const Answers&);
bool on_this_machine(const Answers& answers);
bool on_gpus(const Answers& answers);
std::string gpus_here(const Answers& answers);

// On which machines it runs.
std::vector<QuestionRow> place_questions();
// With which processes, and what they share.
std::vector<QuestionRow> process_questions();
// Rarely wanted: asked where "more settings" was chosen; else their presets count.
std::vector<QuestionRow> more_questions();

}  // namespace mtl
