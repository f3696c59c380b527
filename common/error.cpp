#include "common/error.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <fmt/format.h>

namespace mtl {

namespace {

// An excerpt is shown of settings and scripts. In a corpus of a terabyte nobody looks for line
// 1,000,000 to show it, and a line of a gigabyte is not split into characters.
constexpr size_t kExcerptReach = size_t{1} << 20;  // bytes of the file
constexpr size_t kLongestExcerpt = 16 << 10;       // bytes of the line

// Line `number` (from 1) of a text file, or its beginning; nothing if it cannot be read or lies
// too far behind. Only regular files: reading a pipe again would wait for ever.
std::optional<std::string> source_line(const std::string& file, int number, int column) {
  std::error_code ignored;
  if (number <= 0 || column > static_cast<int>(kLongestExcerpt)) return std::nullopt;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
  std::ifstream in(file, std::ios::binary);
  std::string text(kExcerptReach, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  size_t begin = 0;
  for (int i = 1; i < number; ++i) {
    const size_t newline = text.find('\n', begin);
    if (newline == std::string::npos) return std::nullopt;
    begin = newline + 1;
  }
  if (begin == text.size()) return std::nullopt;
  const size_t end = std::min(text.find('\n', begin), text.size());
  std::string line = text.substr(begin, std::min(end - begin, kLongestExcerpt));
  if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

// The characters of a UTF-8 text; a byte that belongs to none stands alone.
std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> all;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    if (continues && !all.empty() && all.back().size() < 4 &&
        static_cast<unsigned char>(all.back()[0]) >= 0xC0) {
      all.back() += c;
    } else {
      all.emplace_back(1, c);
    }
  }
  return all;
}

// Terminals draw East Asian characters and emoji two cells wide: the three- and four-byte ranges
// from U+1100 on that matter in text.
bool is_wide(const std::string& character) {
  const auto byte = [&](size_t i) -> unsigned { return static_cast<unsigned char>(character[i]); };
  unsigned code = 0;
  if (character.size() == 3) {
    code = (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  } else if (character.size() == 4) {
    code =
        (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
  return (code >= 0x1100 && code <= 0x115F) || (code >= 0x2E80 && code <= 0xA4CF) ||
         (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0xF900 && code <= 0xFAFF) ||
         (code >= 0xFE30 && code <= 0xFE6F) || (code >= 0xFF00 && code <= 0xFF60) ||
         (code >= 0x1F300 && code <= 0x1FAFF) || (code >= 0x20000 && code <= 0x3FFFD);
}

// The line as it is shown and the blanks that put a caret under its character `column`. A long line
// is cut to a window around the column; control characters, which could steer the terminal, are
// shown as `?`.
struct Excerpt {
  std::string line;
  std::string indent;
};
Excerpt excerpt(const std::string& line, int column) {
  constexpr size_t kBefore = 60;
  constexpr size_t kWindow = 120;
  const std::vector<std::string> all = characters(line);
  const size_t caret = column > 0 ? static_cast<size_t>(column) - 1 : 0;
  const size_t begin = all.size() > kWindow && caret > kBefore ? caret - kBefore : 0;
  const size_t end = std::min(all.size(), begin + kWindow);
  Excerpt result;
  if (begin > 0) {
    result.line = "...";
    result.indent = "   ";
  }
  for (size_t i = begin; i < std::max(end, caret); ++i) {
    const std::string character = i < end ? all[i] : " ";
    const bool control = static_cast<unsigned char>(character[0]) < 0x20 || character[0] == '\x7F';
    if (i < end) result.line += control && character != "\t" ? "?" : character;
    // A tab above is a tab below, so that both are as wide as the terminal likes.
    if (i < caret) result.indent += character == "\t" ? "\t" : is_wide(character) ? "  " : " ";
  }
  if (end < all.size()) result.line += "...";
  return result;
}

std::string render_all(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += render(diagnostic);
  return text;
}

}  // namespace

std::string render(const Diagnostic& diagnostic, bool color) {
  const bool error = diagnostic.severity == Diagnostic::Severity::error;
  const std::string paint = color ? (error ? "\033[1;31m" : "\033[1;33m") : "";
  const std::string plain = color ? "\033[0m" : "";
  std::string text = fmt::format("{}{}[{}]{}: {}\n", paint, error ? "error" : "warning",
                                 diagnostic.code, plain, diagnostic.what);
  if (diagnostic.place) {
    const Place& place = *diagnostic.place;
    text += "  --> " + place.file;
    if (place.line > 0) text += fmt::format(":{}", place.line);
    if (place.line > 0 && place.column > 0) text += fmt::format(":{}", place.column);
    text += '\n';
    if (auto line = source_line(place.file, place.line, place.column)) {
      const std::string number = std::to_string(place.line);
      const std::string margin(number.size(), ' ');
      const Excerpt shown = excerpt(*line, place.column);
      text += fmt::format("  {} | {}\n", number, shown.line);
      if (place.column > 0) {
        text += fmt::format("  {} | {}{}^{}\n", margin, shown.indent, paint, plain);
      }
    }
  }
  for (const std::string& note : diagnostic.notes) text += "  note: " + note + '\n';
  if (!diagnostic.help.empty()) text += "  help: " + diagnostic.help + '\n';
  return text;
}

Error::Error(Exit exit, Diagnostic diagnostic)
    : Error(exit, std::vector<Diagnostic>{std::move(diagnostic)}) {}

Error::Error(Exit exit, std::vector<Diagnostic> diagnostics)
    : exit_(exit), diagnostics_(std::move(diagnostics)), text_(render_all(diagnostics_)) {}

void Diagnostics::add(Diagnostic diagnostic) {
  all_.push_back(std::move(diagnostic));
}

bool Diagnostics::has_errors() const {
  return std::any_of(all_.begin(), all_.end(), [](const Diagnostic& diagnostic) {
    return diagnostic.severity == Diagnostic::Severity::error;
  });
}

void Diagnostics::throw_if_errors(Exit exit) const {
  if (has_errors()) throw Error(exit, all_);
}

void fail_data(std::string code, std::string what, std::string help) {
  throw Error(Exit::data,
              {.code = std::move(code), .what = std::move(what), .help = std::move(help)});
}

std::optional<std::string> did_you_mean(const std::string& word,
                                        const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  // A third of the word may be wrong; more than that is not a typing error.
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substitution = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace mtl
