#include "cli/command_description.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "cli/commands.h"
#include "common/terminal.h"

namespace mtl {

namespace {

constexpr int kMaxColumns = 100;
constexpr int kMaxOptionColumn = 30;

bool is_called(const OptionDeclaration& option, const std::string& wanted) {
  return wanted == underscored(option.name) ||
         std::any_of(option.aliases.begin(), option.aliases.end(),
                     [&](const std::string& alias) { return wanted == underscored(alias); });
}

// Rows of two columns; a left side that is too long has a line of its own.
class RowsText {
 public:
  RowsText(int width, int column) : width_(width), column_(column) {}

  std::string row(const std::string& left, const std::string& right) const {
    std::string text = "  " + left;
    if (right.empty()) return text + '\n';
    const int used = 2 + display_width(left);
    text += used + 2 > column_ ? '\n' + std::string(static_cast<size_t>(column_), ' ')
                               : std::string(static_cast<size_t>(column_ - used), ' ');
    return text + wrap_text(right, width_, column_, column_) + '\n';
  }

 private:
  int width_, column_;
};

std::string rows_text(const std::string& title, const CommandDescription::Rows& rows, int width,
                      int most) {
  if (rows.empty()) return {};
  int column = 0;
  for (const auto& [left, right] : rows) column = std::max(column, 2 + display_width(left) + 2);
  const RowsText text(width, std::min(column, most));
  std::string all = fmt::format("\n{}:\n", title);
  for (const auto& [left, right] : rows) all += text.row(left, right);
  return all;
}

}  // namespace

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string option_words(const OptionDeclaration& option) {
  std::string words = option.short_name != '\0' ? fmt::format("-{}, ", option.short_name) : "";
  words += "--" + option.name;
  return option.value_name.empty() ? words : words + ' ' + option.value_name;
}

std::string spelling_words(const CommandDescription& description) {
  const auto found = std::find_if(
      description.options.begin(), description.options.end(), [](const OptionDeclaration& option) {
        return !option.hidden && option.name.find('_') != std::string::npos;
      });
  if (found == description.options.end()) return {};
  return fmt::format("--{}, --{}", found->name, dashed(found->name));
}

std::string CommandDescription::command() const {
  std::string text;
  size_t begin = 0;
  while (begin < usage[0].size()) {
    const size_t end = std::min(usage[0].find(' ', begin), usage[0].size());
    const std::string word = usage[0].substr(begin, end - begin);
    const bool plain = std::all_of(
        word.begin(), word.end(), [](unsigned char c) { return std::islower(c) != 0 || c == '-'; });
    if (!plain || word.starts_with('-')) break;
    text += (text.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return text;
}

const OptionDeclaration* CommandDescription::option(const std::string& name, bool& negated) const {
  const std::string plain = underscored(name);
  negated = false;
  for (const OptionDeclaration& option : options) {
    if (is_called(option, plain)) return &option;
  }
  for (const OptionDeclaration& option : options) {
    if (!plain.starts_with("no_")) break;
    negated = option.is_flag && is_called(option, plain.substr(3));
    if (negated) return &option;
  }
  // Cut short, as torchrun takes it.
  const std::vector<const OptionDeclaration*> possible = options_beginning(name);
  if (possible.size() != 1) return nullptr;
  const std::vector<std::string>& names = possible[0]->shortened;
  const bool may_be = std::any_of(names.begin(), names.end(), [&](const std::string& called) {
    return underscored(called).starts_with(plain);
  });
  return may_be ? possible[0] : nullptr;
}

const OptionDeclaration* CommandDescription::option(char short_name) const {
  const auto found = std::find_if(
      options.begin(), options.end(),
      [&](const OptionDeclaration& option) { return option.short_name == short_name; });
  return found == options.end() ? nullptr : &*found;
}

std::vector<const OptionDeclaration*> CommandDescription::options_beginning(
    const std::string& name) const {
  const std::string plain = underscored(name);
  std::vector<const OptionDeclaration*> found;
  const auto begins = [&](const std::string& other) {
    return underscored(other).starts_with(plain);
  };
  for (const OptionDeclaration& option : options) {
    const std::vector<std::string>& others = option.aliases;
    if (begins(option.name) || std::any_of(others.begin(), others.end(), begins)) {
      found.push_back(&option);
    }
  }
  return found;
}

std::string CommandDescription::help(int columns) const {
  const int width = std::clamp(columns, 40, kMaxColumns);
  std::string text;
  for (const std::string& line : usage) {
    text += (text.empty() ? "usage: mtl " : "       mtl ") + wrap_text(line, width, 11, 11) + '\n';
  }
  text += '\n' + wrap_text(about, width, 0, 0) + '\n';

  Rows commands;
  for (const auto& [name, what] : members) {
    commands.emplace_back(fmt::format("mtl {} {}", command(), name), what);
  }
  text += rows_text("Commands", commands, width, width / 2);
  text += rows_text("Examples", examples, width, width / 2);
  Rows arguments;
  for (const PositionalDeclaration& positional : positionals) {
    arguments.emplace_back(positional.name, positional.help);
  }
  text += rows_text("Arguments", arguments, width, kMaxOptionColumn);

  int column = 2 + 10 + 2;
  size_t last = 0;  // group that has an option to show
  for (const OptionDeclaration& option : options) {
    if (option.hidden) continue;
    column = std::max(column, 2 + display_width(option_words(option)) + 2);
    last = std::max(last, option.group);
  }
  const RowsText rows(width, std::min({column, kMaxOptionColumn, width / 3}));
  for (size_t group = 0; group <= last; ++group) {
    const auto belongs = [&](const OptionDeclaration& option) {
      return option.group == group && !option.hidden;
    };
    if (group != last && std::none_of(options.begin(), options.end(), belongs)) continue;
    text += '\n' + groups[group] + ":\n";
    for (const OptionDeclaration& option : options) {
      if (!belongs(option)) continue;
      std::string right = option.help;
      if (!option.shown_default.empty()) right += " [default: " + option.shown_default + ']';
      text += rows.row(option_words(option), right);
    }
    if (group == last) text += rows.row("-h, --help", "print this text");
  }
  for (const std::string& note : footnotes) text += '\n' + wrap_text(note, width, 0, 0) + '\n';
  if (const std::string spelled = spelling_words(*this); !spelled.empty()) {
    text += '\n' +
            wrap_text("Options may be written with underscores or dashes: " + spelled + '.', width,
                      0, 0) +
            '\n';
  }
  return text;
}

CommandDescription describe(const std::vector<std::string>& command) {
  CommandDescription description;
  Arguments words(command, &description);
  words.emplace_back("--help");
  run_program(words);
  // They refer to what the command had while it ran.
  for (OptionDeclaration& option : description.options) option.set = nullptr;
  return description;
}

}  // namespace mtl
