// Where the cursor is: at a command, an option, an option's value, or an argument.
#include "cli/help/complete.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_description.h"
#include "cli/commands.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

namespace {

void add_commands(const std::string& typed, Completion& to) {
  for (const Command& command : commands()) {
    if (command.summary != nullptr) to.add(typed, command.name, command.summary);
  }
}

bool is_public_command(const std::string& name) {
  const std::vector<Command>& all = commands();
  return std::any_of(all.begin(), all.end(), [&](const Command& command) {
    return command.name == name && command.summary != nullptr;
  });
}

// The first spelling of a name that begins as it is typed.
std::string spelling(const std::string& name, const std::string& typed) {
  for (const std::string& one : {name, dashed(name), underscored(name)}) {
    if (("--" + one).starts_with(typed)) return "--" + one;
  }
  return {};
}

// Those that the help shows; once letters are typed, the others too; and if none is called so,
// those that have another name that is.
void add_options(const CommandDescription& description, const std::string& typed, Completion& to) {
  const bool letters = typed.size() > 2;
  const bool negated = typed.starts_with("--no-") || typed.starts_with("--no_");
  const auto add = [&](const std::string& name, const std::string& what) {
    if (const std::string word = spelling(name, typed); !word.empty()) to.add(typed, word, what);
  };
  for (const OptionDeclaration& option : description.options) {
    if (option.help.empty() || (option.hidden && !letters)) continue;
    add(option.name, option.help);
    if (negated && option.is_flag) add("no-" + option.name, "not: " + option.help);
    if (typed == "-" && option.short_name != '\0') {
      to.add(typed, {'-', option.short_name}, option.help);
    }
  }
  to.add(typed, "--help", "print the help of this command");
  if (!letters || !to.candidates.empty()) return;
  for (const OptionDeclaration& option : description.options) {
    for (const std::string& alias : option.aliases) add(alias, option.help);
  }
}

// Of "train.yaml | PROGRAM", PROGRAM.
bool names_program(const PositionalDeclaration& positional) {
  return positional.name.find("PROGRAM") != std::string::npos;
}

// The words before the one that is typed, read as CommandLine reads them.
struct LineBefore {
  const OptionDeclaration* waiting = nullptr;  // an option whose value is next
  size_t positionals = 0;
  bool separator = false;  // `--` was there
  size_t command_at = 0;   // a program was there, and has the words that follow
};

// The option that waits for its value behind this word.
const OptionDeclaration* waiting_behind(const CommandDescription& description,
                                        const std::string& word) {
  if (word.starts_with("--")) {
    if (word.find('=') != std::string::npos) return nullptr;
    bool negated = false;
    const OptionDeclaration* option = description.option(word.substr(2), negated);
    return option == nullptr || option->is_flag ? nullptr : option;
  }
  for (size_t i = 1; i < word.size(); ++i) {  // -am
    const OptionDeclaration* option = description.option(word[i]);
    if (option == nullptr) return nullptr;
    if (!option->is_flag) return i + 1 == word.size() ? option : nullptr;
  }
  return nullptr;
}

// Of "--cpu" and the like, one that a word of truth may follow.
bool takes_word(const CommandDescription& description, const std::string& word) {
  bool negated = false;
  if (!word.starts_with("--")) return false;
  const OptionDeclaration* option = description.option(word.substr(2), negated);
  return option != nullptr && option->takes_word && !negated;
}

LineBefore read_line_before(const CommandDescription& description,
                            const std::vector<std::string>& words, size_t begin) {
  LineBefore before;
  for (size_t i = begin; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (before.waiting != nullptr) {
      before.waiting = nullptr;
    } else if (!before.separator && word == "--") {
      before.separator = true;
    } else if (!before.separator && word.size() > 1 && word[0] == '-') {
      before.waiting = waiting_behind(description, word);
      if (takes_word(description, word) && i + 2 < words.size() && truth_of(words[i + 1])) ++i;
    } else {
      const bool here = before.positionals < description.positionals.size();
      const bool yaml = word.ends_with(".yaml") || word.ends_with(".yml");
      if (here && names_program(description.positionals[before.positionals]) &&
          (before.separator || !yaml)) {
        before.command_at = i + 1;
        return before;
      }
      ++before.positionals;
    }
  }
  return before;
}

void add_argument(const CommandDescription& description, const LineBefore& before,
                  const std::string& typed, Completion& to) {
  const auto& all = description.positionals;
  const bool rest = !all.empty() && all.back().takes_rest;
  if (before.positionals >= all.size() && !rest) return;
  const PositionalDeclaration& positional = all[std::min(before.positionals, all.size() - 1)];
  if (before.separator && names_program(positional)) {
    to.shell = Completion::Shell::programs;
    return;
  }
  if (before.positionals == 0) {
    for (const auto& [name, what] : description.members) to.add(typed, name, what);
  }
  add_values(description.command(), positional.name, typed, to);
}

}  // namespace

void Completion::add(std::string_view typed, std::string word, std::string what) {
  if (word.starts_with(typed)) candidates.push_back({std::move(word), std::move(what)});
}

Completion complete(const std::vector<std::string>& words) {
  Completion completion;
  if (words.empty()) return completion;
  const std::string& typed = words.back();
  if (words.size() == 1) {
    if (typed.starts_with('-')) {
      completion.add(typed, "--help", "the commands");
      completion.add(typed, "--version", "print the version");
    } else {
      add_commands(typed, completion);
    }
    return completion;
  }
  if (words[0] == "help" && words.size() > 2) {  // mtl help ckpt ls
    if (words.size() > 3 || !is_public_command(words[1])) return completion;
    for (const auto& [name, what] : describe({words[1]}).members) {
      completion.add(typed, name, what);
    }
    return completion;
  }
  if (!is_public_command(words[0])) return completion;
  size_t begin = 1;
  CommandDescription description = describe({words[0]});
  const auto is_typed = [&](const auto& member) { return member.first == words[1]; };
  if (words.size() > 2 &&
      std::any_of(description.members.begin(), description.members.end(), is_typed)) {
    description = describe({words[0], words[1]});
    begin = 2;
  }

  const LineBefore before = read_line_before(description, words, begin);
  if (before.command_at > 0) {
    completion.shell = Completion::Shell::command;
    completion.command_at = before.command_at;
  } else if (before.waiting != nullptr) {
    add_values(description.command(), before.waiting->value_name, typed, completion);
  } else if (const size_t equals = typed.find('=');
             !before.separator && typed.starts_with("--") && equals != std::string::npos) {
    bool negated = false;
    const OptionDeclaration* option = description.option(typed.substr(2, equals - 2), negated);
    if (option == nullptr) return completion;
    add_values(description.command(), option->is_flag ? "true|false" : option->value_name,
               typed.substr(equals + 1), completion);
    for (Candidate& candidate : completion.candidates) {
      candidate.word.insert(0, typed, 0, equals + 1);
    }
  } else if (!before.separator && typed.starts_with('-')) {
    add_options(description, typed, completion);
  } else {
    add_argument(description, before, typed, completion);
    // Where nothing is expected, there still are options.
    if (typed.empty() && !before.separator && completion.candidates.empty() &&
        completion.shell == Completion::Shell::nothing) {
      add_options(description, "--", completion);
    }
  }
  return completion;
}

std::string completion_lines(const Completion& completion) {
  std::string text;
  for (const Candidate& candidate : completion.candidates) {
    // Names of files may hold anything; a line is all that the protocol has.
    if (candidate.word.find_first_of("\t\n") != std::string::npos) continue;
    std::string what = candidate.what;
    std::replace_if(
        what.begin(), what.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
    text += candidate.word + (what.empty() ? "" : "\t" + what) + '\n';
  }
  switch (completion.shell) {
    case Completion::Shell::nothing:
      break;
    case Completion::Shell::files:
      text += fmt::format(":files{}{}\n", completion.suffixes.empty() ? "" : " ",
                          fmt::join(completion.suffixes, " "));
      break;
    case Completion::Shell::folders:
      text += ":folders\n";
      break;
    case Completion::Shell::programs:
      text += ":programs\n";
      break;
    case Completion::Shell::command:
      text += fmt::format(":command {}\n", completion.command_at);
      break;
  }
  return text;
}

int command_complete(const Arguments& args) {
  std::string lines;
  try {
    lines = completion_lines(complete(args));
  } catch (const std::exception&) {  // a line that is being typed is never an error
  }
  std::fputs(lines.c_str(), stdout);
  return 0;
}

}  // namespace mtl
