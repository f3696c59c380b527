// The options of one command: declared once, they give parsing, errors and the help text. Every
// option name may be written with underscores (as accelerate does) or dashes, a flag as --x,
// --x=true, --x=false or --no-x, a value as --x V or --x=V; of the same option the last one counts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/command_description.h"

namespace mtl {

// The arguments of a command that starts another program.
struct SplitArguments {
  std::vector<std::string> own;   // before the program
  std::string program;            // empty = none was given
  std::vector<std::string> rest;  // after it: the program's own
  bool after_separator = false;   // the program follows `--`
};

class CommandLine {
 public:
  // `usage` without the leading "mtl ", one line each: "plan [options] train.yaml [key=value ...]".
  CommandLine(std::vector<std::string> usage, std::string about);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  void example(std::string command, std::string what);
  // Of a group of commands, one that it has.
  void member(std::string name, std::string what);
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

  // False if help was asked for: it is printed on stdout then (or left where `args` says), and
  // nothing else is to be done.
  // Throws Error (Exit::usage): usage.unknown_option, usage.value, usage.missing, usage.extra.
  bool parse(const Arguments& args);
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
