// A page for man(1), in the macros of man(7): what stands in it is plain text, of which `code` and
// --options are set in bold.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mtl {

class ManPage {
 public:
  // `date` as 2026-01-31.
  ManPage(std::string name, int section, const std::string& date, const std::string& about);

  void section(std::string_view title);
  void subsection(std::string_view title);
  // Lines of usage, the command that they begin with in bold.
  void synopsis(const std::string& command, const std::vector<std::string>& usage);
  void paragraph(std::string_view text);
  // A word and, indented below it, what it means.
  void tagged(std::string_view tag, std::string_view text);
  // "--num_processes N": names in bold, what they stand for in italics.
  void option(std::string_view words, std::string_view text);
  // Lines that stay as they are.
  void verbatim(const std::vector<std::string>& rows);
  // What follows belongs to the last tag.
  void indent() { text_ += ".RS\n"; }
  void unindent() { text_ += ".RE\n"; }
  // A text as `mtl help` has it: paragraphs, rows of a word and what it means, lines as they are.
  void help_text(const std::string& text);

  std::string file() const;  // "man1/mtl-launch.1"
  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }
  int section_number() const { return section_; }
  const std::string& about() const { return about_; }

 private:
  void begin_paragraph();
  void tag(const std::string& formatted, std::string_view text);

  std::string name_;
  int section_;
  std::string about_;
  std::string text_;
};

}  // namespace mtl
