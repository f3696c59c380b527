#include "common/error.h"

#include <algorithm>
#include <fstream>
#include <numeric>

#include <fmt/format.h>

namespace mtl {

namespace {

// Line `number` (from 1) of a text file; nothing if it cannot be read.
std::optional<std::string> source_line(const std::string& file, int number) {
  std::ifstream in(file);
  std::string line;
  for (int i = 0; i < number; ++i) {
    if (!std::getline(in, line)) return std::nullopt;
  }
  return number > 0 ? std::optional(line) : std::nullopt;
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
    if (auto line = source_line(place.file, place.line)) {
      const std::string number = std::to_string(place.line);
      const std::string margin(number.size(), ' ');
      text += fmt::format("  {} | {}\n", number, *line);
      if (place.column > 0) {
        text += fmt::format("  {} | {}{}^{}\n", margin, std::string(place.column - 1, ' '), paint,
                            plain);
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
