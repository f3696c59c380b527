// What a command takes, as data: what CommandLine was told. The help text is made from it here,
// completions of shells in complete.h, manual pages in manual.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mtl {

// An option in full. `set` gets the value ("true" or "false" of a flag) and gives back what it
// wants instead, if it cannot take it: "a whole number >= 1".
struct OptionDeclaration {
  std::string name;                       // as the help shows it
  std::vector<std::string> aliases = {};  // other names
  char short_name = '\0';
  bool is_flag = false;
  bool takes_word = false;  // a flag that `true` or `false` may follow as a word of its own
  std::string value_name = {};
  std::string help = {};
  std::string shown_default = {};
  bool hidden = false;  // accepted, not in the help
  // Those of its names that may be cut short, wherever no other option begins like that.
  std::vector<std::string> shortened = {};
  std::function<std::optional<std::string>(const std::string& value)> set = {};
  size_t group = 0;  // set by CommandLine::declare()
};

struct PositionalDeclaration {
  std::string name;
  std::string help;
  bool takes_rest = false;  // all words that are left
};

struct CommandDescription {
  using Rows = std::vector<std::pair<std::string, std::string>>;  // a word, and what it means

  std::vector<std::string> usage;  // without the leading "mtl "
  std::string about;
  Rows examples = {};
  Rows members = {};  // of a group of commands: `mtl ckpt ls`
  std::vector<std::string> footnotes = {};
  std::vector<std::string> groups = {"Options"};  // titles
  std::vector<OptionDeclaration> options = {};    // but --help, which every command has
  std::vector<PositionalDeclaration> positionals = {};

  // The words of the usage line before the first placeholder: "config default".
  std::string command() const;
  // The option that is called so, by any of its names, or by one that may be cut short and begins
  // so; nullptr: none. `negated`: it is a flag, and
  // the name "no_" and its. Names are without the leading dashes.
  const OptionDeclaration* option(const std::string& name, bool& negated) const;
  const OptionDeclaration* option(char short_name) const;
  // Those one of whose names begins so.
  std::vector<const OptionDeclaration*> options_beginning(const std::string& name) const;
  std::string help(int columns) const;
};

// "-m, --module", "--num_processes N".
std::string option_words(const OptionDeclaration& option);
// The two spellings of a name.
std::string dashed(std::string name);
std::string underscored(std::string name);
// "--num_processes, --num-processes": the first name of these options that can be spelled in two
// ways, in both; "" = there is none.
std::string spelling_words(const CommandDescription& description);

// What `mtl launch`, `mtl ckpt ls` ... take; nothing of it runs. Throws Error (Exit::usage) if
// there is no such command.
CommandDescription describe(const std::vector<std::string>& command);

}  // namespace mtl
