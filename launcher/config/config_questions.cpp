#include "launcher/config/config_questions.h"

#include <utility>

#include <fmt/format.h>

#include "common/text.h"

namespace mtl {

Check whole_number_from(int64_t least, int64_t most) {
  return [=](const Answers&, const std::string& text) -> std::optional<std::string> {
    const auto number = to_number<int64_t>(text);
    if (!number) return fmt::format("'{}' is no whole number.", text);
    if (*number < least) return fmt::format("{} is too small: at least {}.", *number, least);
    if (*number > most) return fmt::format("{} is too large: at most {}.", *number, most);
    return std::nullopt;
  };
}

std::vector<Choice> yes_no(const Answers&) {
  return {{"true", "yes"}, {"false", "no"}};
}

Preset always(std::string value) {
  return [value = std::move(value)](const Answers&) { return value; };
}

bool everybody(const Answers&) {
  return true;
}

bool on_this_machine(const Answers& a) {
  return a.is("place", "here");
}

bool on_gpus(const Answers& a) {
  if (a.is("type", "NO")) return !a.yes("use_cpu");
  return a.is("type", "MULTI_GPU");
}

std::string gpus_here(const Answers& a) {
  const MachineFacts& facts = a.facts;
  if (facts.gpus == 0) return "no NVIDIA GPU is visible here";
  return fmt::format("{} GPU{} visible here{}", facts.gpus, facts.gpus == 1 ? " is" : "s are",
                     facts.gpu_name.empty() ? "" : ": " + facts.gpu_name);
}

const std::vector<QuestionRow>& question_rows() {
  static const std::vector<QuestionRow> rows = [] {
    std::vector<QuestionRow> all = place_questions();
    for (QuestionRow& row : process_questions()) all.push_back(std::move(row));
    for (QuestionRow& row : more_questions()) {
      row.more = true;
      all.push_back(std::move(row));
    }
    return all;
  }();
  return rows;
}

}  // namespace mtl
