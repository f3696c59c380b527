#include "cli/command_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "common/error.h"
#include "common/terminal.h"
#include "launcher/launch_flags.h"

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
    OptionDeclaration is;
    size_t group = 0;
  };
  struct Positional {
    std::string name;
    std::string help;
    std::string* target = nullptr;  // nullptr: takes the rest
  };

  std::vector<std::string> usage;
  std::string about;
  std::vector<std::pair<std::string, std::string>> examples;
  std::vector<std::string> footnotes;
  std::vector<std::string> groups = {"Options"};
  std::vector<Option> options;
  std::vector<Positional> positionals;
  std::vector<std::string>* rest = nullptr;

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

  // `flag` as typed, perhaps with =value.
  [[noreturn]] void unknown_option(const std::string& typed) const {
    const std::string flag = typed.substr(0, typed.find('='));
    std::vector<std::string> candidates = {"--help"};
    for (const Option& option : options) {
      candidates.push_back("--" + underscored(option.is.name));
      candidates.push_back("--" + dashed(option.is.name));
      for (const std::string& alias : option.is.aliases) {
        candidates.push_back("--" + underscored(alias));
        candidates.push_back("--" + dashed(alias));
      }
    }
    const auto guess = did_you_mean(flag, candidates);
    fail("usage.unknown_option", fmt::format("mtl {} has no option '{}'", help_command(), flag),
         guess ? fmt::format("did you mean {}?", *guess) : "");
  }

  const OptionDeclaration* find_name(const std::string& name) const {
    for (const Option& option : options) {
      if (name == underscored(option.is.name)) return &option.is;
      for (const std::string& alias : option.is.aliases) {
        if (name == underscored(alias)) return &option.is;
      }
    }
    return nullptr;
  }

  const OptionDeclaration* find_short(char c) const {
    for (const Option& option : options) {
      if (option.is.short_name == c && c != '\0') return &option.is;
    }
    return nullptr;
  }

  void give(const OptionDeclaration& option, const std::string& value) const {
    const auto wanted = option.set(value);
    if (!wanted) return;
    std::vector<std::string> words;
    for (size_t start = 0; start <= option.value_name.size();) {
      const size_t end = std::min(option.value_name.find('|', start), option.value_name.size());
      words.push_back(option.value_name.substr(start, end - start));
      start = end + 1;
    }
    const auto guess = words.size() > 1 ? did_you_mean(value, words) : std::nullopt;
    fail("usage.value", fmt::format("--{} wants {}, got '{}'", option.name, *wanted, value),
         guess ? fmt::format("did you mean {}?", *guess) : "");
  }

  // One argument that looks like an option. With `values`, gives the values; without, only looks.
  // Returns whether the next argument is its value.
  bool take(const std::string& arg, const std::string* next, bool values, bool& help) const {
    if (arg.starts_with("--")) {
      const size_t equals = arg.find('=');
      const std::string name = underscored(arg.substr(2, equals - 2));
      const OptionDeclaration* option = find_name(name);
      bool negated = false;
      if (option == nullptr && name.starts_with("no_")) {
        option = find_name(name.substr(3));
        negated = option != nullptr && option->is_flag;
        if (!negated) option = nullptr;
      }
      if (option == nullptr) {
        if (name == "help" && equals == std::string::npos) {
          help = true;
        } else if (values) {
          unknown_option(arg);
        }
        return false;
      }
      if (option->is_flag) {
        if (values) give_flag(*option, arg, equals, negated);
        return false;
      }
      if (equals == std::string::npos) return take_next(*option, next, values);
      if (values && equals + 1 == arg.size()) {
        fail("usage.value", fmt::format("--{} wants a value, got none", option->name));
      }
      if (values) give(*option, arg.substr(equals + 1));
      return false;
    }
    for (size_t i = 1; i < arg.size(); ++i) {
      const OptionDeclaration* option = find_short(arg[i]);
      if (option == nullptr && arg[i] == 'h') {
        help = true;
        continue;
      }
      if (option == nullptr) {
        if (values) unknown_option(arg);
        return false;
      }
      if (option->is_flag) {
        if (values) give(*option, "true");
        continue;
      }
      if (i + 1 == arg.size()) return take_next(*option, next, values);
      if (values) give(*option, arg.substr(i + (arg[i + 1] == '=' ? 2 : 1)));
      return false;
    }
    return false;
  }

  void give_flag(const OptionDeclaration& option, const std::string& arg, size_t equals,
                 bool negated) const {
    bool on = true;
    if (equals != std::string::npos) {
      const std::string text = arg.substr(equals + 1);
      const auto truth = truth_of(text);
      if (!truth) {
        fail("usage.value", fmt::format("--{} wants true or false, got '{}'", option.name, text));
      }
      on = *truth;
    }
    give(option, on != negated ? "true" : "false");
  }

  bool take_next(const OptionDeclaration& option, const std::string* next, bool values) const {
    if (!values) return next != nullptr;
    if (next == nullptr) {
      fail("usage.value", fmt::format("--{} wants a value: {}", option.name, option.value_name));
    }
    if (next->starts_with("--")) {
      fail("usage.value", fmt::format("--{} wants a value, but {} follows it", option.name, *next));
    }
    give(option, *next);
    return true;
  }

  static bool is_option(const std::string& arg) { return arg.size() > 1 && arg[0] == '-'; }

  // "module,m" -> the name, and the short name.
  OptionDeclaration named(const std::string& names, std::string help) const {
    OptionDeclaration declaration;
    declaration.name = names.substr(0, names.find(','));
    if (declaration.name.size() < names.size()) declaration.short_name = names.back();
    declaration.help = std::move(help);
    return declaration;
  }
};

CommandLine::CommandLine(std::vector<std::string> usage, std::string about)
    : impl_(std::make_unique<Impl>()) {
  impl_->usage = std::move(usage);
  impl_->about = std::move(about);
}

CommandLine::~CommandLine() = default;

void CommandLine::example(std::string command, std::string what) {
  impl_->examples.emplace_back(std::move(command), std::move(what));
}

void CommandLine::footnote(std::string text) {
  impl_->footnotes.push_back(std::move(text));
}

void CommandLine::group(std::string title) {
  impl_->groups.push_back(std::move(title));
}

void CommandLine::declare(OptionDeclaration declaration) {
  impl_->options.push_back({std::move(declaration), impl_->groups.size() - 1});
}

void CommandLine::flag(const std::string& name, bool& target, std::string help) {
  OptionDeclaration declaration = impl_->named(name, std::move(help));
  declaration.is_flag = true;
  declaration.set = [&target](const std::string& value) -> std::optional<std::string> {
    target = value == "true";
    return std::nullopt;
  };
  declare(std::move(declaration));
}

void CommandLine::option(const std::string& name, std::string value_name, std::string& target,
                         std::string help, std::string shown_default) {
  OptionDeclaration declaration = impl_->named(name, std::move(help));
  declaration.value_name = std::move(value_name);
  declaration.shown_default = std::move(shown_default);
  declaration.set = [&target](const std::string& value) -> std::optional<std::string> {
    target = value;
    return std::nullopt;
  };
  declare(std::move(declaration));
}

void CommandLine::choice(const std::string& name, std::vector<std::string> choices,
                         std::optional<std::string>& target, std::string help,
                         std::string shown_default) {
  OptionDeclaration declaration = impl_->named(name, std::move(help));
  declaration.value_name = joined(choices, "|");
  declaration.shown_default = std::move(shown_default);
  declaration.set = [choices = std::move(choices),
                     &target](const std::string& value) -> std::optional<std::string> {
    if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
      return joined(choices, " | ");
    }
    target = value;
    return std::nullopt;
  };
  declare(std::move(declaration));
}

template <typename Target>
void CommandLine::whole_number(const std::string& name, std::string value_name, Target& target,
                               int64_t minimum, std::string help, std::string shown_default) {
  OptionDeclaration declaration = impl_->named(name, std::move(help));
  declaration.value_name = std::move(value_name);
  declaration.shown_default = std::move(shown_default);
  declaration.set = [minimum, &target](const std::string& value) -> std::optional<std::string> {
    int64_t number = 0;
    if (!read_number(value, number) || number < minimum) {
      return fmt::format("a whole number >= {}", minimum);
    }
    target = number;
    return std::nullopt;
  };
  declare(std::move(declaration));
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
  OptionDeclaration declaration = impl_->named(name, std::move(help));
  declaration.value_name = std::move(value_name);
  declaration.shown_default = std::move(shown_default);
  declaration.set = [minimum, &target](const std::string& value) -> std::optional<std::string> {
    double number = 0;
    if (!read_number(value, number) || !std::isfinite(number) || number < minimum) {
      return fmt::format("a number >= {}", minimum);
    }
    target = number;
    return std::nullopt;
  };
  declare(std::move(declaration));
}

void CommandLine::positional(std::string name, std::string& target, std::string help) {
  impl_->positionals.push_back({std::move(name), std::move(help), &target});
}

void CommandLine::rest(std::string name, std::vector<std::string>& target, std::string help) {
  impl_->positionals.push_back({std::move(name), std::move(help), nullptr});
  impl_->rest = &target;
}

bool CommandLine::parse(const std::vector<std::string>& args) {
  const Impl& s = *impl_;
  std::vector<std::string> words;
  bool help_asked = false;
  size_t i = 0;
  for (; i < args.size() && args[i] != "--"; ++i) {
    if (!Impl::is_option(args[i])) {
      words.push_back(args[i]);
      continue;
    }
    const bool has_next = i + 1 < args.size() && args[i + 1] != "--";
    if (s.take(args[i], has_next ? &args[i + 1] : nullptr, true, help_asked)) ++i;
  }
  if (help_asked) {
    const std::string text = help(terminal_columns(1));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return false;
  }
  if (i < args.size()) {
    words.insert(words.end(), args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
  }

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
    if (!Impl::is_option(arg)) break;
    split.own.push_back(arg);
    bool ignored = false;
    const std::string* next = i + 1 < args.size() ? &args[i + 1] : nullptr;
    if (impl_->take(arg, next, false, ignored)) split.own.push_back(args[++i]);
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
    const OptionDeclaration& is = option.is;
    std::string left = is.short_name != '\0' ? fmt::format("-{}, ", is.short_name) : "";
    left += "--" + is.name;
    return is.value_name.empty() ? left : left + ' ' + is.value_name;
  };
  int column = 2 + 10 + 2;
  for (const Impl::Option& option : s.options) {
    if (option.is.hidden) continue;
    column = std::max(column, 2 + display_width(left_of(option)) + 2);
  }
  column = std::min({column, kMaxOptionColumn, width / 3});
  for (size_t group = 0; group < s.groups.size(); ++group) {
    const auto belongs = [&](const Impl::Option& option) {
      return option.group == group && !option.is.hidden;
    };
    const bool last = group + 1 == s.groups.size();
    if (!last && std::none_of(s.options.begin(), s.options.end(), belongs)) continue;
    text += '\n' + s.groups[group] + ":\n";
    for (const Impl::Option& option : s.options) {
      if (!belongs(option)) continue;
      std::string right = option.is.help;
      if (!option.is.shown_default.empty()) right += " [default: " + option.is.shown_default + ']';
      row(left_of(option), right, column);
    }
    if (last) row("-h, --help", "print this text", column);
  }
  const bool underscores = std::any_of(
      s.options.begin(), s.options.end(),
      [](const Impl::Option& option) { return option.is.name.find('_') != std::string::npos; });
  for (const std::string& note : s.footnotes) text += '\n' + wrap_text(note, width, 0, 0) + '\n';
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
