// Errors as people read them: what, where, what to do. Every message of mtl is a Diagnostic; an
// Error carries one or more of them to main(), which prints them and ends with the exit code.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

// The exit codes of every mtl command. 126/127 (program not executable / not found) and 128+n
// (signal n) are passed through from launched programs.
enum class Exit : int {
  done = 0,
  run_failed = 1,
  usage = 2,
  config = 3,
  environment = 4,
  out_of_memory = 5,
  data = 6,  // data or checkpoint damaged, missing or incompatible
  timeout = 7,
  requeue = 75,  // stopped on request with a complete checkpoint: run the same command again
};

// A place in a file; line and column count from 1, 0 = unknown.
struct Place {
  std::string file;
  int line = 0;
  int column = 0;
};

struct Diagnostic {
  enum class Severity { error, warning };
  std::string code;  // stable and documented, e.g. "config.unknown_key"
  std::string what;
  std::optional<Place> place = {};
  std::vector<std::string> notes = {};
  std::string help = {};  // the next action
  Severity severity = Severity::error;
};

// `error[code]: what`, `  --> file:line:col`, the source line with a caret where the file can be
// read, `  note: ...`, `  help: ...`; ends with a newline.
std::string render(const Diagnostic& diagnostic, bool color = false);

class Error : public std::exception {
 public:
  Error(Exit exit, Diagnostic diagnostic);
  Error(Exit exit, std::vector<Diagnostic> diagnostics);
  const char* what() const noexcept override { return text_.c_str(); }
  Exit exit() const { return exit_; }
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  Exit exit_;
  std::vector<Diagnostic> diagnostics_;
  std::string text_;
};

// Data or a checkpoint that is damaged, missing or incompatible.
[[noreturn]] void fail_data(std::string code, std::string what, std::string help);

// Collects errors, so that a command reports all of them at once.
class Diagnostics {
 public:
  void add(Diagnostic diagnostic);
  bool has_errors() const;
  const std::vector<Diagnostic>& all() const { return all_; }
  // Throws one Error with every diagnostic, if there is at least one of severity error.
  void throw_if_errors(Exit exit = Exit::config) const;

 private:
  std::vector<Diagnostic> all_;
};

// The candidate nearest to `word` by edit distance, if near enough to be what was meant.
std::optional<std::string> did_you_mean(const std::string& word,
                                        const std::vector<std::string>& candidates);

}  // namespace mtl
