#include "cli/help/man_page.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "cli/help/help_blocks.h"
#include "common/terminal.h"
#include "common/text.h"
#include "common/version.h"

namespace mtl {

namespace {

constexpr int kColumns = 78;  // of the source

// Characters that mean something to roff, or that it would replace by prettier ones, which nobody
// could copy.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      case '\n':
        out += ' ';
        break;
      default:
        out += c;
    }
  }
  return out;
}

// A line must not begin like a macro.
std::string line_of(std::string text) {
  if (text.starts_with('.')) text.insert(0, "\\&");
  return text + '\n';
}

// Text that is filled, in lines that an editor shows whole.
std::string filled(const std::string& text) {
  std::string lines;
  for (const std::string& line : lines_of(wrap_text(text, kColumns, 0, 0))) lines += line_of(line);
  return lines;
}

std::string bold(std::string_view text) {
  return text.empty() ? "" : "\\fB" + escaped(text) + "\\fR";
}

// Where a run of letters, digits and what names hold ends.
size_t end_of_name(std::string_view text, size_t at) {
  while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 ||
                              text[at] == '_' || text[at] == '-')) {
    ++at;
  }
  return at;
}

// "of `model.norm`, see --json" with code and options in bold. Markdown's links are their words.
std::string prose(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    if (const size_t close = rest.find('`', 1); rest[0] == '`' && close != rest.npos) {
      out += bold(rest.substr(1, close - 1));
      at += close + 1;
    } else if (const size_t middle = rest.find("](");
               rest[0] == '[' && middle != std::string_view::npos &&
               rest.find(')', middle) != std::string_view::npos) {
      out += prose(rest.substr(1, middle - 1));
      at += rest.find(')', middle) + 1;
    } else if (rest.starts_with("--") && rest.size() > 2 &&
               std::isalpha(static_cast<unsigned char>(rest[2])) != 0) {
      const size_t end = end_of_name(rest, 2);
      out += bold(rest.substr(0, end));
      at += end;
    } else {
      out += escaped(rest.substr(0, 1));
      ++at;
    }
  }
  return out;
}

}  // namespace

ManPage::ManPage(std::string name, int section, const std::string& date, const std::string& about)
    : name_(std::move(name)), section_(section), about_(about) {
  text_ =
      fmt::format(".TH {} {} {} \"mtl {}\" mtl\n.nh\n.ad l\n.SH NAME\n{} \\- {}\n",
                  escaped(upper(name_)), section_, date, version(), escaped(name_), prose(about));
}

std::string ManPage::file() const {
  return fmt::format("man{}/{}.{}", section_, name_, section_);
}

void ManPage::section(std::string_view title) {
  text_ += fmt::format(".SH {}\n", escaped(title));
}

void ManPage::subsection(std::string_view title) {
  text_ += fmt::format(".SS {}\n", escaped(title));
}

void ManPage::synopsis(const std::string& command, const std::vector<std::string>& usage) {
  begin_paragraph();
  text_ += ".nf\n";
  for (const std::string& line : usage) {
    const bool begins = line.starts_with(command);
    text_ += bold(begins ? command : "") + escaped(line.substr(begins ? command.size() : 0)) + '\n';
  }
  text_ += ".fi\n";
}

// Not behind what begins one by itself.
void ManPage::begin_paragraph() {
  const size_t last = text_.rfind('\n', text_.size() - 2) + 1;
  const std::string_view line = std::string_view(text_).substr(last, 3);
  if (line != ".SH" && line != ".SS" && line != ".RS") text_ += ".PP\n";
}

void ManPage::paragraph(std::string_view text) {
  begin_paragraph();
  text_ += filled(prose(text));
}

void ManPage::tag(const std::string& formatted, std::string_view text) {
  text_ += ".TP\n" + line_of(formatted) + filled(prose(text));
}

void ManPage::tagged(std::string_view word, std::string_view text) {
  tag(bold(word), text);
}

void ManPage::option(std::string_view words, std::string_view text) {
  std::string formatted;
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    const std::string_view word = words.substr(at, end - at);
    const bool comma = word.ends_with(',');
    const std::string_view name = word.substr(0, word.size() - (comma ? 1 : 0));
    formatted += at > 0 ? " " : "";
    formatted += word.starts_with('-') ? bold(name) : "\\fI" + escaped(name) + "\\fR";
    formatted += comma ? "," : "";
    at = end + 1;
  }
  tag(formatted, text);
}

void ManPage::verbatim(const std::vector<std::string>& rows) {
  begin_paragraph();
  text_ += ".nf\n";
  for (const std::string& row : rows) text_ += line_of(escaped(row));
  text_ += ".fi\n";
}

void ManPage::help_text(const std::string& text) {
  for (const HelpBlock& block : help_blocks(text)) {
    switch (block.kind) {
      case HelpBlock::Kind::paragraph:
        paragraph(block.text);
        break;
      case HelpBlock::Kind::row:
        tagged(block.name, block.text);
        break;
      case HelpBlock::Kind::verbatim:
        verbatim(block.lines);
        break;
    }
  }
}

}  // namespace mtl
