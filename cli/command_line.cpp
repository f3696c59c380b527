#include "cli/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/error.h"
#include "common/terminal.h"
#include "common/text.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

namespace {

constexpr size_t kMostNamed = 6;  // options that a beginning of a name could mean

bool is_option(const std::string& arg) {
  return arg.size() > 1 && arg[0] == '-';
}

}  // namespace

struct CommandLine::Impl {
  CommandDescription is;
  // Of each positional; nullptr: it takes the rest.
  std::vector<std::string*> targets;
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

  std::string see_help() const { return "see: mtl " + is.command() + " --help"; }

  [[noreturn]] void fail(const std::string& code, const std::string& what,
                         const std::string& hint = "") const {
    throw Error(Exit::usage,
                Diagnostic{.code = code, .what = what, .help = hint.empty() ? see_help() : hint});
  }

  // `mtl generate RUN -x`: words behind the first are not names of files alone.
  bool takes_a_text() const { return rest == nullptr && targets.size() > 1; }

  // `flag` as typed, perhaps with =value.
  [[noreturn]] void unknown_option(const std::string& typed) const {
    const std::string flag = typed.substr(0, typed.find('=', 2));
    std::vector<std::string> candidates = {"--help"};
    for (const OptionDeclaration& option : is.options) {
      candidates.push_back("--" + underscored(option.name));
      candidates.push_back("--" + dashed(option.name));
      for (const std::string& alias : option.aliases) {
        candidates.push_back("--" + underscored(alias));
        candidates.push_back("--" + dashed(alias));
      }
    }
    const auto guess = did_you_mean(flag, candidates);
    if (!guess && flag.starts_with("--")) {
      const auto possible = is.options_beginning(flag.substr(2));
      std::vector<std::string> names;
      for (const OptionDeclaration* option : possible) names.push_back("--" + option->name);
      if (!names.empty() && names.size() <= kMostNamed) {
        fail("usage.unknown_option", fmt::format("mtl {} has no option '{}'", is.command(), flag),
             fmt::format("it could be {}", fmt::join(names, ", ")));
      }
    }
    if (!guess && flag.find('.') != std::string::npos) {
      fail("usage.unknown_option", fmt::format("mtl {} has no option '{}'", is.command(), flag),
           fmt::format("a setting of a train.yaml is written without dashes, behind it: {}=VALUE",
                       flag.substr(flag.find_first_not_of('-'))));
    }
    fail("usage.unknown_option", fmt::format("mtl {} has no option '{}'", is.command(), flag),
         guess            ? fmt::format("did you mean {}?", *guess)
         : takes_a_text() ? fmt::format("{}; a {} that begins with a dash stands behind --",
                                        see_help(), is.positionals.back().name)
                          : "");
  }

  // `name` without its dashes. `negated`: it is "no-" and a flag's name.
  const OptionDeclaration* find(const std::string& name, bool& negated) const {
    return name == help_option.name ? &help_option : is.option(name, negated);
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
    for (const OptionDeclaration& option : is.options) {
      if (option.short_name != '\0') add({'-', option.short_name}, option, false);
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
  impl_->is.usage = std::move(usage);
  impl_->is.about = std::move(about);
}

CommandLine::~CommandLine() = default;

void CommandLine::example(std::string command, std::string what) {
  impl_->is.examples.emplace_back(std::move(command), std::move(what));
}

void CommandLine::member(std::string name, std::string what) {
  impl_->is.members.emplace_back(std::move(name), std::move(what));
}

void CommandLine::footnote(std::string text) {
  impl_->is.footnotes.push_back(std::move(text));
}

void CommandLine::group(std::string title) {
  impl_->is.groups.push_back(std::move(title));
}

void CommandLine::declare(OptionDeclaration declaration) {
  declaration.group = impl_->is.groups.size() - 1;
  impl_->is.options.push_back(std::move(declaration));
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
    const auto number = to_number<int64_t>(value);
    if (!number || *number < minimum) return fmt::format("a whole number >= {}", minimum);
    target = *number;
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
    const auto number = to_number<double>(value);
    if (!number || !std::isfinite(*number) || *number < minimum || *number > maximum) {
      return std::isfinite(maximum) ? fmt::format("a number from {} to {}", minimum, maximum)
                                    : fmt::format("a number >= {}", minimum);
    }
    target = *number;
    return std::nullopt;
  };
  declare(std::move(declaration));
}

void CommandLine::positional(std::string name, std::string& target, std::string help) {
  impl_->is.positionals.push_back({std::move(name), std::move(help)});
  impl_->targets.push_back(&target);
}

void CommandLine::rest(std::string name, std::vector<std::string>& target, std::string help) {
  impl_->is.positionals.push_back({std::move(name), std::move(help), true});
  impl_->targets.push_back(nullptr);
  impl_->rest = &target;
}

bool CommandLine::parse(const Arguments& args) {
  Impl& s = *impl_;
  std::vector<std::string> marked(args.begin(), args.end());
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
    if (args.description != nullptr) {
      *args.description = s.is;
      return false;
    }
    const std::string text = help(terminal_columns(1));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return false;
  }
  words.erase(std::find(words.begin(), words.end(), "--"));

  size_t next = 0;
  for (size_t i = 0; i < s.targets.size(); ++i) {
    if (s.targets[i] == nullptr) {
      s.rest->assign(words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
      next = words.size();
    } else if (next < words.size()) {
      *s.targets[i] = words[next++];
    } else {
      const PositionalDeclaration& missing = s.is.positionals[i];
      s.fail("usage.missing",
             fmt::format("mtl {} wants {}: {}", s.is.command(), missing.name, missing.help));
    }
  }
  if (next < words.size()) {
    s.fail("usage.extra", fmt::format("mtl {} does not take '{}'", s.is.command(), words[next]));
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
  return impl_->is.help(columns);
}

}  // namespace mtl
