#include "runtime/spec/megatron_reader.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/text.h"
#include "runtime/spec/load_text.h"
#include "runtime/spec/scalars.h"
#include "runtime/spec/schema.h"

namespace mtl::spec {

namespace {

const std::string* reason(const std::vector<MegatronOthers>& rows, const std::string& flag) {
  for (const MegatronOthers& row : rows) {
    if (std::find(row.flags.begin(), row.flags.end(), flag) != row.flags.end()) return &row.why;
  }
  return nullptr;
}

bool known_flag(const std::string& flag) {
  return find_megatron_flag(flag) != nullptr || reason(megatron_needless(), flag) != nullptr ||
         reason(megatron_left_out(), flag) != nullptr ||
         reason(megatron_refused(), flag) != nullptr;
}

bool holds_text(const Row& row) {
  TrainSpec any;
  const Field field = row.field(any);
  return std::holds_alternative<std::string*>(field) ||
         std::holds_alternative<TextOrSources>(field);
}

}  // namespace

std::string yaml_scalar(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyz"
                                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_./+-") == std::string::npos;
  return plain && text.front() != '-' ? text : nlohmann::json(text).dump();
}

MegatronReader::MegatronReader(const std::vector<std::string>& command, Diagnostics& diagnostics)
    : diagnostics_(diagnostics) {
  const auto program = std::find_if(command.begin(), command.end(),
                                    [](const std::string& word) { return word.ends_with(".py"); });
  std::vector<std::string>* values = nullptr;
  bool takes_variable = false;  // which may be the value of the flag before it
  for (auto word = program == command.end() ? command.begin() : program + 1; word != command.end();
       ++word) {
    if (!word->starts_with("--")) {
      if (!is_shell_variable(*word)) {
        if (values != nullptr) values->push_back(*word);
      } else if (!takes_variable) {
        open(
            fmt::format("{} is computed by the script, given to it, or added under a condition: "
                        "see whether it holds flags",
                        *word));
      }
      takes_variable = false;
      continue;
    }
    const size_t equals = word->find('=');
    std::string flag = word->substr(2, equals == std::string::npos ? equals : equals - 2);
    std::string dashed = flag;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    if (!known_flag(flag) && known_flag(dashed)) flag = dashed;
    if (!has(flag)) order_.push_back(flag);
    values = &given_[flag];
    values->clear();  // the last one counts
    const MegatronFlag* const row = find_megatron_flag(flag);
    // Of a flag that is not translated nobody here knows whether it takes a value.
    takes_variable =
        row != nullptr && row->how != MegatronHow::truth && equals == std::string::npos;
    if (equals == std::string::npos) continue;
    const std::string value = word->substr(equals + 1);
    if (!value.empty() && !is_shell_variable(value)) values->push_back(value);
  }
}

MegatronSettings MegatronReader::translate() {
  for (const std::string& flag : order_) judge(flag);
  for (const std::string& flag : order_) {
    if (text(flag).find_first_of("$`") == std::string::npos) continue;
    open(fmt::format("--{} has a variable of the script in it: {}", flag, text(flag)));
  }
  for (const MegatronGroup& group : megatron_groups()) {
    for (const MegatronFlag& row : group.flags) take(row);
  }
  model();
  experts();
  positions();
  latents();
  layout();
  recomputes();
  batch();
  schedules();
  precision();
  data();
  checkpoints();
  MegatronSettings result;
  result.open = open_;
  for (const Row& row : schema()) {
    const auto found = settings_.find(row.key);
    if (found != settings_.end()) result.settings.emplace_back(*found);
  }
  check(result);
  return result;
}

std::optional<std::string> MegatronReader::value(const std::string& flag) const {
  const auto found = given_.find(flag);
  if (found == given_.end() || found->second.empty()) return std::nullopt;
  return found->second.front();
}

std::string MegatronReader::text(const std::string& flag) const {
  return has(flag) ? fmt::format("{}", fmt::join(given_.at(flag), " ")) : std::string();
}

std::optional<int64_t> MegatronReader::whole(const std::string& flag) {
  const auto word = value(flag);
  int64_t number = 0;
  if (!word) return std::nullopt;
  if (!read_integer(flag, *word, false, number) && number >= 0) return number;
  wrong(flag, "a whole number");
  return std::nullopt;
}

std::optional<double> MegatronReader::number(const std::string& flag) {
  const auto word = value(flag);
  double number = 0;
  if (!word) return std::nullopt;
  if (!read_double(flag, *word, number)) return number;
  wrong(flag, "a number");
  return std::nullopt;
}

std::optional<int64_t> MegatronReader::steps_of(const std::string& flag) {
  const auto samples = whole(flag);
  if (!samples) return std::nullopt;
  const int64_t batch = whole("global-batch-size").value_or(0);
  if (batch > 0 && has("rampup-batch-size")) {
    open(
        fmt::format("--{} became steps of the whole batch, and those of the ramp have less", flag));
  }
  if (batch > 0) return (*samples + batch - 1) / batch;
  open(fmt::format("--{} counts samples, and --global-batch-size is not given: write it in steps",
                   flag));
  return std::nullopt;
}

void MegatronReader::wrong(const std::string& flag, const std::string& wanted) {
  const std::string what = fmt::format("--{} wants {}, got '{}'", flag, wanted, text(flag));
  for (const Diagnostic& known : diagnostics_.all()) {
    if (known.what == what) return;
  }
  diagnostics_.add({.code = "config.import", .what = what, .help = "repair it in the command"});
}

void MegatronReader::refuse(const std::string& flag, const std::string& why) {
  diagnostics_.add(
      {.code = "config.import",
       .what = fmt::format("--{} is not available here: {}", flag, why),
       .help = "without it, it is another model or training; take it out to import the rest"});
}

void MegatronReader::set(const std::string& key, const std::string& yaml, const std::string& flag) {
  settings_[key] = yaml;
  origins_[key] = flag;
}

std::string MegatronReader::setting(const std::string& key) const {
  const auto found = settings_.find(key);
  return found == settings_.end() ? std::string() : found->second;
}

void MegatronReader::drop(const std::string& prefix) {
  std::erase_if(settings_, [&](const auto& entry) {
    return entry.first == prefix || (prefix.ends_with('.') && entry.first.starts_with(prefix));
  });
}

void MegatronReader::judge(const std::string& flag) {
  if (const std::string* why = reason(megatron_refused(), flag)) {
    refuse(flag, *why);
  } else if (const std::string* left = reason(megatron_left_out(), flag)) {
    open(fmt::format("--{} is left out: {}", flag, *left));
  } else if (!known_flag(flag)) {
    open(fmt::format("--{} is not known here: see whether it changes the model or the training",
                     flag));
  }
}

void MegatronReader::take(const MegatronFlag& row) {
  if (!has(row.flag)) {
    if (!row.without.empty()) set(row.key, row.without);
    return;
  }
  const auto word = value(row.flag);
  const bool alone = row.how != MegatronHow::only && !row.value.empty();
  if (!word && !alone) {
    // Both are usually one variable of the script.
    if (row.flag == "load" && has("save") && !value("save")) return;
    open(fmt::format("--{} has no value in this command: the script is given it, or computes it{}",
                     row.flag, row.key.empty() ? "" : fmt::format("; write {}", row.key)));
    named_.insert(row.key);
    return;
  }
  switch (row.how) {
    case MegatronHow::same:
      set(row.key, holds_text(*find_row(row.key)) ? yaml_scalar(*word) : *word, row.flag);
      break;
    case MegatronHow::truth:
      set(row.key, row.value, row.flag);
      break;
    case MegatronHow::words: {
      std::vector<std::string> all;
      for (const auto& [theirs, ours] : row.words) {
        if (theirs == *word && !ours.empty()) set(row.key, ours, row.flag);
        if (theirs == *word) return;
        all.push_back(theirs);
      }
      refuse(fmt::format("{} {}", row.flag, *word), fmt::format("{} can be", fmt::join(all, ", ")));
      break;
    }
    case MegatronHow::only: {
      double given = 0, always = 0;
      const bool numbers = !read_double("", *word, given) && !read_double("", row.value, always);
      if (numbers ? given != always : *word != row.value) {
        refuse(fmt::format("{} {}", row.flag, *word), fmt::format("it is always {}", row.value));
      }
      break;
    }
    case MegatronHow::by_hand:
      open(fmt::format("--{} is not taken over: for {} {}", row.flag, row.key, row.note));
      break;
    case MegatronHow::computed:
      break;  // of several: the rules
  }
}

// What the schema says of the values, by the flags that they come from.
void MegatronReader::check(MegatronSettings& result) {
  MegatronSettings bare;
  bare.settings = result.settings;
  Diagnostics problems;
  load_spec_text(megatron_train_yaml(bare, ""), "train.yaml", problems);
  for (Diagnostic problem : problems.all()) {
    if (problem.code == "config.missing") {
      const std::string key = problem.what.substr(0, problem.what.find_first_of(" ,"));
      if (!named_.contains(key)) {
        result.open.push_back(fmt::format("{} in this command", problem.what));
      }
      continue;
    }
    if (problem.severity != Diagnostic::Severity::error) continue;
    for (const auto& [key, flag] : origins_) {
      if (flag.empty() || problem.what.find(key) == std::string::npos) continue;
      problem.what = fmt::format("--{}: {}", flag, problem.what);
      break;
    }
    problem.code = "config.import";
    problem.place.reset();
    diagnostics_.add(problem);
  }
}

}  // namespace mtl::spec
