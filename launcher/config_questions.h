// The two halves of the table of questions of config_wizard.h, and what both are made of.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/config_wizard.h"

namespace mtl {

using Check = std::function<std::optional<std::string>(const Answers&, const std::string&)>;
using Preset = std::function<std::string(const Answers&)>;

Check whole_number_from(int64_t least, int64_t most);
std::vector<Choice> yes_no(const Answers&);
Preset always(std::string value);
bool on_gpus(const Answers& answers);

// Rarely wanted: asked where "more settings" was chosen; else their presets count.
std::vector<QuestionRow> more_questions();

}  // namespace mtl
