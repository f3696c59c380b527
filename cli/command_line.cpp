#include "cli/command_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "common/error.h"
#include "common/terminal.h"

namespace mtl {

namespace {

constexpr int kMaxColumns = 100;
constexpr int kMaxOptionColumn = 30;

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string joined(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

template <typename T>
bool read_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

struct CommandLine::Impl {
  struct Option {
    std::string name;
    char short_name = '\0';
    std::string value_name;  // empty = a flag
    std::string help;
    std::string shown_default;
    size_t group = 0;
  };
  struct Positional {
    std::string name;
    std::string help;
    std::string* target = nullptr;  // nullptr: takes the rest
  };
  using Setter = std::function<void(const std::string&)>;

  std::vector<std::string> usage;
  std::string about;
  std::vector<std::pair<std::string, std::string>> examples;
  std::vector<std::string> groups = {"Options"};
  std::vector<Option> options;
  std::vector<Positional> positionals;
  std::vector<std::string>* rest = nullptr;
  std::vector<std::string> words;  // what is left after the options
  bool help_asked = false;
  CLI::App app;

  std::string see_help() const { return "see: mtl " + help_command() + " --help"; }

  // The words of the usage line before the first placeholder: "config default".
  std::string help_command() const {
    std::string text;
    size_t begin = 0;
    while (begin < usage[0].size()) {
      const size_t end = std::min(usage[0].find(' ', begin), usage[0].size());
      const std::string word = usage[0].substr(begin, end - begin);
      const bool plain = std::all_of(word.begin(), word.end(),
                                     [](unsigned char c) { return std::islower(c) != 0; });
      if (!plain) break;
      text += (text.empty() ? "" : " ") + word;
      begin = end + 1;
    }
    return text;
  }

  [[noreturn]] void fail(const std::string& code, const std::string& what,
                         const std::string& hint = "") const {
    throw Error(Exit::usage,
                Diagnostic{.code = code, .what = what, .help = hint.empty() ? see_help() : hint});
  }

  std::string spellings(const Option& option) const {
    std::string text = "--" + dashed(option.name);
    if (underscored(option.name) != dashed(option.name)) text += ",--" + underscored(option.name);
    if (option.short_name != '\0') text += std::string(",-") + option.short_name;
    return text;
  }

  void add(const std::string& names, std::string value_name, std::string help,
           std::string shown_default, bool is_flag, bool* flag_target, Setter setter) {
    Option option;
    option.name = names.substr(0, names.find(','));
    if (option.name.size() < names.size()) option.short_name = names.back();
    option.value_name = std::move(value_name);
    option.help = std::move(help);
    option.shown_default = std::move(shown_default);
    option.group = groups.size() - 1;
    if (is_flag) {
      app.add_flag_callback(spellings(option), [flag_target] { *flag_target = true; });
    } else {
      const std::string flag = "--" + option.name;
      app.add_option_function<std::string>(
             spellings(option),
             [this, flag, setter = std::move(setter)](const std::string& value) {
               if (value.rfind("--", 0) == 0) {
                 fail("usage.value",
                      fmt::format("{} wants a value, but {} follows it", flag, value));
               }
               setter(value);
             })
          ->take_last();
    }
    options.push_back(std::move(option));
  }

  // `flag` as typed, perhaps with =value.
  [[noreturn]] void unknown_option(const std::string& typed) const {
    const std::string flag = typed.substr(0, typed.find('='));
    std::vector<std::string> candidates = {"--help"};
    for (const Option& option : options) {
      candidates.push_back("--" + underscored(option.name));
      candidates.push_back("--" + dashed(option.name));
    }
    const auto guess = did_you_mean(flag, candidates);
    fail("usage.unknown_option", fmt::format("mtl {} has no option '{}'", help_command(), flag),
         guess ? fmt::format("did you mean {}?", *guess) : "");
  }

  const Option* find(const std::string& argument) const {
    const std::string flag = argument.substr(0, argument.find('='));
    for (const Option& option : options) {
      if (flag == "--" + underscored(option.name) || flag == "--" + dashed(option.name))
        return &option;
      if (option.short_name != '\0' && flag == std::string("-") + option.short_name) return &option;
    }
    return nullptr;
  }
};

CommandLine::CommandLine(std::vector<std::string> usage, std::string about)
    : impl_(std::make_unique<Impl>()) {
  impl_->usage = std::move(usage);
  impl_->about = std::move(about);
  impl_->app.set_help_flag();
  impl_->app.add_flag_callback("-h,--help", [this] { impl_->help_asked = true; });
  impl_->app.allow_extras();
}

CommandLine::~CommandLine() = default;

void CommandLine::example(std::string command, std::string what) {
  impl_->examples.emplace_back(std::move(command), std::move(what));
}

void CommandLine::group(std::string title) {
  impl_->groups.push_back(std::move(title));
}

void CommandLine::flag(const std::string& name, bool& target, std::string help) {
  impl_->add(name, "", std::move(help), "", true, &target, {});
}

void CommandLine::option(const std::string& name, std::string value_name, std::string& target,
                         std::string help, std::string shown_default) {
  impl_->add(name, std::move(value_name), std::move(help), std::move(shown_default), false, nullptr,
             [&target](const std::string& value) { target = value; });
}

void CommandLine::choice(const std::string& name, std::vector<std::string> choices,
                         std::optional<std::string>& target, std::string help,
                         std::string shown_default) {
  std::string value_name = joined(choices, "|");
  impl_->add(name, std::move(value_name), std::move(help), std::move(shown_default), false, nullptr,
             [this, name, choices = std::move(choices), &target](const std::string& value) {
               if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
                 const auto guess = did_you_mean(value, choices);
                 impl_->fail(
                     "usage.value",
                     fmt::format("--{} wants {}, got '{}'", name, joined(choices, " | "), value),
                     guess ? fmt::format("did you mean {}?", *guess) : "");
               }
               target = value;
             });
}

template <typename Target>
void CommandLine::whole_number(const std::string& name, std::string value_name, Target& target,
                               int64_t minimum, std::string help, std::string shown_default) {
  impl_->add(name, std::move(value_name), std::move(help), std::move(shown_default), false, nullptr,
             [this, name, minimum, &target](const std::string& value) {
               int64_t number = 0;
               if (!read_number(value, number) || number < minimum) {
                 impl_->fail("usage.value", fmt::format("--{} wants a whole number >= {}, got '{}'",
                                                        name, minimum, value));
               }
               target = number;
             });
}

void CommandLine::option(const std::string& name, std::string value_name,
                         std::optional<int64_t>& target, int64_t minimum, std::string help,
                         std::string shown_default) {
  whole_number(name, std::move(value_name), target, minimum, std::move(help),
               std::move(shown_default));
}

void CommandLine::option(const std::string& name, std::string value_name, int64_t& target,
                         int64_t minimum, std::string help, std::string shown_default) {
  whole_number(name, std::move(value_name), target, minimum, std::move(help),
               std::move(shown_default));
}

void CommandLine::option(const std::string& name, std::string value_name, double& target,
                         double minimum, std::string help, std::string shown_default) {
  impl_->add(name, std::move(value_name), std::move(help), std::move(shown_default), false, nullptr,
             [this, name, minimum, &target](const std::string& value) {
               double number = 0;
               if (!read_number(value, number) || !std::isfinite(number) || number < minimum) {
                 impl_->fail("usage.value", fmt::format("--{} wants a number >= {}, got '{}'", name,
                                                        minimum, value));
               }
               target = number;
             });
}

void CommandLine::positional(std::string name, std::string& target, std::string help) {
  impl_->positionals.push_back({std::move(name), std::move(help), &target});
}

void CommandLine::rest(std::string name, std::vector<std::string>& target, std::string help) {
  impl_->positionals.push_back({std::move(name), std::move(help), nullptr});
  impl_->rest = &target;
}

bool CommandLine::parse(const std::vector<std::string>& args) {
  Impl& s = *impl_;
  // CLI11 2.1.2 loses the order of what follows `--`, so that part never reaches it.
  const auto separator = std::find(args.begin(), args.end(), "--");
  std::vector<std::string> reversed(std::make_reverse_iterator(separator),
                                    std::make_reverse_iterator(args.begin()));
  for (const std::string& arg : reversed) {
    // CLI11 would take the next argument as the value of `--option=`.
    const Impl::Option* option = arg.ends_with('=') ? s.find(arg) : nullptr;
    if (option != nullptr && !option->value_name.empty()) {
      s.fail("usage.value", fmt::format("--{} wants a value, got none", option->name));
    }
  }
  try {
    s.app.parse(reversed);
  } catch (const CLI::ArgumentMismatch&) {
    const std::string& last = *std::prev(separator);
    const Impl::Option* option = s.find(last);
    if (option != nullptr && !option->value_name.empty()) {
      s.fail("usage.value",
             fmt::format("--{} wants a value: {}", option->name, option->value_name));
    }
    s.fail("usage.value", fmt::format("'{}' is not understood", last));
  } catch (const CLI::ParseError& error) {
    s.fail("usage.value", error.what());
  }
  if (s.help_asked) {
    const std::string text = help(terminal_columns(1));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return false;
  }
  std::vector<std::string> words = s.app.remaining();
  for (const std::string& word : words) {
    if (word.size() > 1 && word[0] == '-') s.unknown_option(word);
  }
  if (separator != args.end()) words.insert(words.end(), std::next(separator), args.end());

  size_t next = 0;
  for (const Impl::Positional& positional : s.positionals) {
    if (positional.target == nullptr) {
      s.rest->assign(words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
      next = words.size();
    } else if (next < words.size()) {
      *positional.target = words[next++];
    } else {
      s.fail("usage.missing", fmt::format("mtl {} wants {}: {}", s.help_command(), positional.name,
                                          positional.help));
    }
  }
  if (next < words.size()) {
    s.fail("usage.extra", fmt::format("mtl {} does not take '{}'", s.help_command(), words[next]));
  }
  return true;
}

SplitArguments CommandLine::split(const std::vector<std::string>& args) const {
  SplitArguments split;
  size_t i = 0;
  for (; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--") {
      split.after_separator = true;
      ++i;
      break;
    }
    if (arg.size() < 2 || arg[0] != '-') break;
    split.own.push_back(arg);
    const Impl::Option* option = impl_->find(arg);
    const bool takes_next =
        option != nullptr && !option->value_name.empty() && arg.find('=') == std::string::npos;
    if (takes_next && i + 1 < args.size()) split.own.push_back(args[++i]);
  }
  if (i < args.size()) {
    split.program = args[i];
    split.rest.assign(args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
  }
  return split;
}

std::string CommandLine::help(int columns) const {
  const Impl& s = *impl_;
  const int width = std::clamp(columns, 40, kMaxColumns);
  std::string text;
  for (const std::string& usage : s.usage) {
    text += (text.empty() ? "usage: mtl " : "       mtl ") + wrap_text(usage, width, 11, 11) + '\n';
  }
  text += '\n' + wrap_text(s.about, width, 0, 0) + '\n';

  // A row of two columns; a left side that is too long has a line of its own.
  const auto row = [&](const std::string& left, const std::string& right, int column) {
    text += "  " + left;
    const int used = 2 + display_width(left);
    if (right.empty()) {
      text += '\n';
      return;
    }
    text += used + 2 > column ? '\n' + std::string(static_cast<size_t>(column), ' ')
                              : std::string(static_cast<size_t>(column - used), ' ');
    text += wrap_text(right, width, column, column) + '\n';
  };

  if (!s.examples.empty()) {
    int column = 0;
    for (const auto& [command, what] : s.examples) {
      column = std::max(column, 2 + display_width(command) + 2);
    }
    column = std::min(column, width / 2);
    text += "\nExamples:\n";
    for (const auto& [command, what] : s.examples) row(command, what, column);
  }

  if (!s.positionals.empty()) {
    int column = 0;
    for (const Impl::Positional& positional : s.positionals) {
      column = std::max(column, 2 + display_width(positional.name) + 2);
    }
    text += "\nArguments:\n";
    for (const Impl::Positional& positional : s.positionals) {
      row(positional.name, positional.help, std::min(column, kMaxOptionColumn));
    }
  }

  const auto left_of = [](const Impl::Option& option) {
    std::string left = option.short_name != '\0' ? fmt::format("-{}, ", option.short_name) : "";
    left += "--" + option.name;
    return option.value_name.empty() ? left : left + ' ' + option.value_name;
  };
  int column = 2 + 10 + 2;
  for (const Impl::Option& option : s.options) {
    column = std::max(column, 2 + display_width(left_of(option)) + 2);
  }
  column = std::min({column, kMaxOptionColumn, width / 3});
  for (size_t group = 0; group < s.groups.size(); ++group) {
    const auto belongs = [&](const Impl::Option& option) { return option.group == group; };
    const bool last = group + 1 == s.groups.size();
    if (!last && std::none_of(s.options.begin(), s.options.end(), belongs)) continue;
    text += '\n' + s.groups[group] + ":\n";
    for (const Impl::Option& option : s.options) {
      if (!belongs(option)) continue;
      std::string right = option.help;
      if (!option.shown_default.empty()) right += " [default: " + option.shown_default + ']';
      row(left_of(option), right, column);
    }
    if (last) row("-h, --help", "print this text", column);
  }
  const bool underscores = std::any_of(
      s.options.begin(), s.options.end(),
      [](const Impl::Option& option) { return option.name.find('_') != std::string::npos; });
  if (underscores) {
    text +=
        '\n' +
        wrap_text(
            "Options may be written with underscores or dashes: --num_processes, --num-processes.",
            width, 0, 0) +
        '\n';
  }
  return text;
}

}  // namespace mtl
