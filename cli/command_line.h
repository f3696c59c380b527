// The options of one command: declared once, they give parsing, errors and the help text. Every
// option name may be written with underscores (as accelerate does) or dashes, a flag as --x,
// --x=true, --x=false or --no-x, a value as --x V or --x=V; of the same option the last one counts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

// The arguments of a command that starts another program.
struct SplitArguments {
  std::vector<std::string> own;   // before the program
  std::string program;            // empty = none was given
  std::vector<std::string> rest;  // after it: the program's own
  bool after_separator = false;   // the program follows `--`
};

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
  std::function<std::optional<std::string>(const std::string& value)> set;
};

class CommandLine {
 public:
  // `usage` without the leading "mtl ", one line each: "plan [options] train.yaml [key=value ...]".
  CommandLine(std::vector<std::string> usage, std::string about);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  void example(std::string command, std::string what);
  // The options that follow stand under this title.
  void group(std::string title);
  // Names are written without the leading dashes, in the spelling that the help shows; one
  // character more is the short name: "module,m". `shown_default` is what the help says is used
  // without the option.
  void flag(const std::string& name, bool& target, std::string help);
  void option(const std::string& name, std::string value_name, std::string& target,
              std::string help, std::string shown_default = "");
  void choice(const std::string& name, std::vector<std::string> choices,
              std::optional<std::string>& target, std::string help, std::string shown_default = "");
  void option(const std::string& name, std::string value_name, std::optional<int64_t>& target,
              int64_t minimum, std::string help, std::string shown_default = "");
  void option(const std::string& name, std::string value_name, int64_t& target, int64_t minimum,
              std::string help, std::string shown_default = "");
  void option(const std::string& name, std::string value_name, double& target, double minimum,
              std::string help, std::string shown_default = "");
  void option(const std::string& name, std::string value_name, double& target, double minimum,
              double maximum, std::string help, std::string shown_default = "");
  void declare(OptionDeclaration declaration);
  // A paragraph at the end of the help.
  void footnote(std::string text);
  // Positional arguments, in order; `rest` takes all that are left.
  void positional(std::string name, std::string& target, std::string help);
  void rest(std::string name, std::vector<std::string>& target, std::string help);

  // False if help was asked for: it is printed on stdout then, and nothing else is to be done.
  // Throws Error (Exit::usage): usage.unknown_option, usage.value, usage.missing, usage.extra.
  bool parse(const std::vector<std::string>& args);
  // Splits before the first argument that is neither an option nor an option's value. A `--` right
  // behind the program is dropped, as argparse does under torchrun and accelerate.
  SplitArguments split(const std::vector<std::string>& args) const;
  std::string help(int columns) const;

 private:
  template <typename Target>
  void whole_number(const std::string& name, std::string value_name, Target& target,
                    int64_t minimum, std::string help, std::string shown_default);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mtl
