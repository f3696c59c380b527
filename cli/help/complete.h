// What may stand where the cursor is in a line that begins with mtl: for the completions of shells,
// which ask `mtl __complete WORD ...`, the last word being typed. Everything comes from what the
// commands declare, from the schema of train.yaml and from files; nothing is started, and nobody is
// asked over a network.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mtl {

struct Candidate {
  std::string word;  // in full, from the beginning of the word
  std::string what;
};

struct Completion {
  std::vector<Candidate> candidates = {};
  // What the shell adds of its own: names of files or folders, of programs, or whatever belongs to
  // another command, whose name is the word `command_at` (0 is mtl).
  enum class Shell { nothing, files, folders, programs, command };
  Shell shell = Shell::nothing;
  std::vector<std::string> suffixes = {};  // files that end so are meant first; without the dot
  size_t command_at = 0;

  // If it begins with what is typed.
  void add(std::string_view typed, std::string word, std::string what = {});
};

// `words` behind mtl.
Completion complete(const std::vector<std::string>& words);

// As `mtl __complete` prints it: a candidate a line, what it is behind a tab; then, behind a colon,
// what the shell adds: ":files yaml yml", ":folders", ":programs", ":command 3".
std::string completion_lines(const Completion& completion);

// What a placeholder of a command's usage stands for: of "FILE" a file, of "no|bf16" these words,
// of "key=value" the keys of a train.yaml. Of what is a number, or unknown, nothing.
void add_values(const std::string& command, const std::string& placeholder,
                const std::string& typed, Completion& to);

}  // namespace mtl
