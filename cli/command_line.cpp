#include "cli/command_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/error.h"
#include "common/terminal.h"
#include "launcher/launch_flags.h"

namespace mtl {

namespace {

constexpr int kMaxColumns = 100;
constexpr int kMaxOptionColumn = 30;
constexpr size_t kMostNamed = 6;  // options that a beginning of a name could mean

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

template <typename T>
bool read_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool is_option(const std::string& arg) {
  return arg.size() > 1 && arg[0] == '-';
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
  bool help_asked = false;
  const OptionDeclaration help_option = {
      .name = "help",
      .short_name = 'h',
      .is_flag = true,
      .set = [this](const std::string& value) -> std::optional<std::string> {
        help_asked = value == "true";
        return std::nullopt;
      }};

  std::string see_help() const { return "see: mtl " + help_command() + " --help"; }

  // The words of the usage line before the first placeholder: "config default".
  std::string help_command() const {
    std::string text;
    size_t begin = 0;
    while (begin < usage[0].size()) {
      const size_t end = std::min(usage[0].find(' ', begin), usage[0].size());
      const std::string word = usage[0].substr(begin, end - begin);
      const bool plain = std::all_of(word.begin(), word.end(), [](unsigned char c) {
        return std::islower(c) != 0 || c == '-';
      });
      if (!plain || word.starts_with('-')) break;
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
    const std::string flag = typed.substr(0, typed.find('=', 2));
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
    if (!guess && flag.starts_with("--")) {
      const auto possible = beginning_with(underscored(flag.substr(2)));
      std::vector<std::string> names;
      for (const OptionDeclaration* option : possible) names.push_back("--" + option->name);
      if (!names.empty() && names.size() <= kMostNamed) {
        fail("usage.unknown_option", fmt::format("mtl {} has no option '{}'", help_command(), flag),
             fmt::format("it could be {}", fmt::join(names, ", ")));
      }
    }
    if (!guess && flag.find('.') != std::string::npos) {
      fail("usage.unknown_option", fmt::format("mtl {} has no option '{}'", help_command(), flag),
           fmt::format("a setting of a train.yaml is written without dashes, behind it: {}=VALUE",
                       flag.substr(flag.find_first_not_of('-'))));
    }
    fail("usage.unknown_option", fmt::format("mtl {} has no option '{}'", help_command(), flag),
         guess ? fmt::format("did you mean {}?", *guess) : "");
  }

  // `name` without its dashes. `negated`: it is "no-" and a flag's name.
  const OptionDeclaration* find(const std::string& name, bool& negated) const {
    const auto is_called = [](const OptionDeclaration& option, const std::string& wanted) {
      return wanted == underscored(option.name) ||
             std::any_of(option.aliases.begin(), option.aliases.end(),
                         [&](const std::string& alias) { return wanted == underscored(alias); });
    };
    const std::string plain = underscored(name);
    negated = false;
    for (const Option& option : options) {
      if (is_called(option.is, plain)) return &option.is;
    }
    if (plain == help_option.name) return &help_option;
    if (plain.starts_with("no_")) {
      for (const Option& option : options) {
        negated = option.is.is_flag && is_called(option.is, plain.substr(3));
        if (negated) return &option.is;
      }
    }
    const auto possible = beginning_with(plain);
    if (possible.size() != 1) return nullptr;
    const std::vector<std::string>& names = possible[0]->shortened;
    const bool may_be = std::any_of(names.begin(), names.end(), [&](const std::string& called) {
      return underscored(called).starts_with(plain);
    });
    return may_be ? possible[0] : nullptr;
  }

  // The options one of whose names begins so.
  std::vector<const OptionDeclaration*> beginning_with(const std::string& plain) const {
    std::vector<const OptionDeclaration*> found;
    const auto begins = [&](const std::string& name) {
      return underscored(name).starts_with(plain);
    };
    for (const Option& option : options) {
      const std::vector<std::string>& others = option.is.aliases;
      if (begins(option.is.name) || std::any_of(others.begin(), others.end(), begins)) {
        found.push_back(&option.is);
      }
    }
    return found;
  }

  // CLI11 reads `args`; back come the words that are no options of ours, in order, with the `--`
  // that ended the options. It compares an option that is added with each one before, which takes
  // milliseconds for the flags of launch, so it gets only those whose names occur in `args`, each
  // spelled as there. The others could not match, so nothing changes for it.
  std::vector<std::string> read(CLI::App& app, const std::vector<std::string>& args,
                                bool values) const {
    std::vector<std::string> left(args.rbegin(), args.rend());  // CLI11 takes from the back
    const auto add = [&](const std::string& name, const OptionDeclaration& option, bool negated,
                         bool has_word = false) {
      if (app.get_option_no_throw(name) != nullptr) return;
      const auto given = [this, &args, &left, &option, negated, values](const auto& results) {
        if (values) give(option, negated, results.back(), args, args.size() - left.size() - 1);
        return true;
      };
      // Each occurrence counts, in order: the setter decides what a second one means.
      app.add_option(name, given)
          ->expected(option.is_flag && !has_word ? 0 : 1)
          ->trigger_on_parse();
    };
    app.set_help_flag();
    for (const Option& option : options) {
      if (option.is.short_name != '\0') add({'-', option.is.short_name}, option.is, false);
    }
    add({'-', help_option.short_name}, help_option, false);
    for (size_t i = 0; i < args.size(); ++i) {
      const std::string& arg = args[i];
      if (!arg.starts_with("--")) continue;
      const std::string name = arg.substr(0, arg.find('='));
      bool negated = false;
      const OptionDeclaration* option = find(name.substr(2), negated);
      if (option == nullptr) continue;
      // As its first occurrence has it: CLI11 reads all of them alike.
      const bool word = option->takes_word && name == arg && !negated && i + 1 < args.size() &&
                        truth_of(args[i + 1]).has_value();
      add(name, *option, negated, word);
    }
    app.parse(left);
    return app.remaining();
  }

  // What CLI11 read for an option. args[at] is the last argument that it took for it: the value,
  // or what the value is part of.
  void give(const OptionDeclaration& option, bool negated, std::string value,
            const std::vector<std::string>& args, size_t at) const {
    const std::string& arg = args[at];
    if (option.is_flag) {
      if (arg.starts_with("--") && arg.ends_with('=')) value.clear();  // CLI11: "true"
      const auto truth = truth_of(value);
      if (!truth) {
        fail("usage.value", fmt::format("--{} wants true or false, got '{}'", option.name, value));
      }
      value = *truth != negated ? "true" : "false";
    } else if (value == arg) {
      if (args[at - 1].ends_with('=')) {
        fail("usage.value", fmt::format("--{} wants a value, got none", option.name));
      }
      if (value == "--") {
        fail("usage.value", fmt::format("--{} wants a value: {}", option.name, option.value_name));
      }
      if (value.starts_with("--")) {
        fail("usage.value",
             fmt::format("--{} wants a value, but {} follows it", option.name, value));
      }
    } else if (!arg.starts_with("--") && value.starts_with('=')) {
      value.erase(0, 1);  // -n=4
    }

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

  // Of what CLI11 left over: no option may be before the `--`.
  void refuse_unknown(const std::vector<std::string>& words) const {
    for (const std::string& word : words) {
      if (word == "--") return;
      if (is_option(word)) unknown_option(word);
    }
  }

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
  declaration.value_name = fmt::format("{}", fmt::join(choices, "|"));
  declaration.shown_default = std::move(shown_default);
  declaration.set = [choices = std::move(choices),
                     &target](const std::string& value) -> std::optional<std::string> {
    if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
      return fmt::format("{}", fmt::join(choices, " | "));
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
  option(name, std::move(value_name), target, minimum, std::numeric_limits<double>::infinity(),
         std::move(help), std::move(shown_default));
}
void CommandLine::option(const std::string& name, std::string value_name, double& target,
                         double minimum, double maximum, std::string help,
                         std::string shown_default) {
  OptionDeclaration declaration = impl_->named(name, std::move(help));
  declaration.value_name = std::move(value_name);
  declaration.shown_default = std::move(shown_default);
  declaration.set = [minimum, maximum,
                     &target](const std::string& value) -> std::optional<std::string> {
    double number = 0;
    if (!read_number(value, number) || !std::isfinite(number) || number < minimum ||
        number > maximum) {
      return std::isfinite(maximum) ? fmt::format("a number from {} to {}", minimum, maximum)
                                    : fmt::format("a number >= {}", minimum);
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
  Impl& s = *impl_;
  std::vector<std::string> marked = args;
  // There is always a `--`, and an option that waits for its value there has none.
  if (std::find(args.begin(), args.end(), "--") == args.end()) marked.push_back("--");
  CLI::App app;
  app.allow_extras();
  s.help_asked = false;
  std::vector<std::string> words;
  try {
    words = s.read(app, marked, true);
  } catch (const Error&) {
    s.refuse_unknown(app.remaining());  // what is wrong first is named
    throw;
  }
  s.refuse_unknown(words);
  if (s.help_asked) {
    const std::string text = help(terminal_columns(1));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return false;
  }
  words.erase(std::find(words.begin(), words.end(), "--"));

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
  CLI::App app;
  app.prefix_command();
  std::vector<std::string> left;
  try {
    left = impl_->read(app, args, false);
  } catch (const CLI::ArgumentMismatch&) {  // the last option lacks its value: no program follows
  }
  auto word = std::find_if(left.begin(), left.end(),
                           [](const std::string& arg) { return arg == "--" || !is_option(arg); });
  SplitArguments split;
  split.own.assign(args.begin(), args.end() - (left.end() - word));
  if (word != left.end() && *word == "--") {
    split.after_separator = true;
    ++word;
  }
  if (word != left.end()) split.program = *word++;
  if (!split.after_separator && word != left.end() && *word == "--") ++word;
  split.rest.assign(word, left.end());
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
  const auto underscores =
      std::find_if(s.options.begin(), s.options.end(), [](const Impl::Option& option) {
        return !option.is.hidden && option.is.name.find('_') != std::string::npos;
      });
  for (const std::string& note : s.footnotes) text += '\n' + wrap_text(note, width, 0, 0) + '\n';
  if (underscores != s.options.end()) {
    const std::string& name = underscores->is.name;
    const std::string note = fmt::format(
        "Options may be written with underscores or dashes: --{}, --{}.", name, dashed(name));
    text += '\n' + wrap_text(note, width, 0, 0) + '\n';
  }
  return text;
}

}  // namespace mtl
