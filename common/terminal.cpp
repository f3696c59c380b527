#include "common/terminal.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <strings.h>
#include <unistd.h>

#include <sys/ioctl.h>

#include "common/text.h"

namespace mtl {

namespace {

const char* system_env(const char* name) {
  return std::getenv(name);
}

bool is_set(const char* value) {
  return value != nullptr && *value != '\0';
}

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
};

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// The character at the front of non-empty text; an invalid byte is a character of its own.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  size_t bytes = 1;
  uint32_t code = lead;
  if (lead >= 0xF0 && lead < 0xF8) {
    bytes = 4;
    code = lead & 0x07;
  } else if (lead >= 0xE0) {
    bytes = 3;
    code = lead & 0x0F;
  } else if (lead >= 0xC2) {
    bytes = 2;
    code = lead & 0x1F;
  }
  if (bytes == 1 || lead >= 0xF8 || text.size() < bytes) return {lead, 1};
  for (size_t i = 1; i < bytes; ++i) {
    if (!is_continuation(text[i])) return {lead, 1};
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
  }
  return {code, bytes};
}

bool in(uint32_t code, uint32_t first, uint32_t last) {
  return code >= first && code <= last;
}

// The coarse blocks of Unicode's East Asian Width W and F, and of combining marks: enough for names
// of runs and files; wcwidth() would depend on the process's locale.
int width_of(uint32_t code) {
  if (in(code, 0x0300, 0x036F) || in(code, 0x1AB0, 0x1AFF) || in(code, 0x200B, 0x200F) ||
      in(code, 0x20D0, 0x20FF) || in(code, 0xFE00, 0xFE0F)) {
    return 0;
  }
  if (in(code, 0x1100, 0x115F) || in(code, 0x2E80, 0x303E) || in(code, 0x3041, 0xA4CF) ||
      in(code, 0xAC00, 0xD7A3) || in(code, 0xF900, 0xFAFF) || in(code, 0xFE30, 0xFE6F) ||
      in(code, 0xFF00, 0xFF60) || in(code, 0xFFE0, 0xFFE6) || in(code, 0x1F300, 0x1F64F) ||
      in(code, 0x1F900, 0x1F9FF) || in(code, 0x20000, 0x3FFFD)) {
    return 2;
  }
  return 1;
}

}  // namespace

bool color_wanted(bool is_tty, const GetEnv& get_env) {
  if (is_set(get_env("NO_COLOR"))) return false;
  for (const char* name : {"CLICOLOR_FORCE", "FORCE_COLOR"}) {
    const char* value = get_env(name);
    if (is_set(value) && std::strcmp(value, "0") != 0) return true;
  }
  const char* term = get_env("TERM");
  return is_tty && is_set(term) && std::strcmp(term, "dumb") != 0;
}

bool utf8_wanted(const GetEnv& get_env) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = get_env(name);
    if (!is_set(value)) continue;
    return contains_ignoring_case(value, "utf-8") || contains_ignoring_case(value, "utf8");
  }
  return false;
}

int terminal_columns(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  if (const char* columns = std::getenv("COLUMNS"); is_set(columns)) {
    char* end = nullptr;
    const long value = std::strtol(columns, &end, 10);
    if (*end == '\0' && value > 0 && value < 10'000) return static_cast<int>(value);
  }
  return 80;
}

Terminal inspect_terminal(int fd) {
  Terminal terminal;
  terminal.is_tty = isatty(fd) == 1;
  terminal.color = color_wanted(terminal.is_tty, system_env);
  terminal.utf8 = utf8_wanted(system_env);
  const char* term = system_env("TERM");
  terminal.redraw = terminal.is_tty && is_set(term) && std::strcmp(term, "dumb") != 0;
  terminal.columns = terminal_columns(fd);
  return terminal;
}

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    width += width_of(character.code);
    text.remove_prefix(character.bytes);
  }
  return width;
}

std::string fit_width(std::string_view text, int columns, bool utf8) {
  if (display_width(text) <= columns) return std::string(text);
  if (columns <= 0) return "";
  size_t bytes = 0;
  int width = 0;
  while (bytes < text.size()) {
    const Character character = first_character(text.substr(bytes));
    if (width + width_of(character.code) > columns - 1) break;
    width += width_of(character.code);
    bytes += character.bytes;
  }
  return std::string(text.substr(0, bytes)) + (utf8 ? "…" : "~");
}

std::string wrap_text(std::string_view text, int columns, int indent, int start) {
  const std::string margin(static_cast<size_t>(std::max(indent, 0)), ' ');
  std::string out;
  int column = start;
  bool line_empty = true;
  while (!text.empty()) {
    if (text.front() == '\n') {
      out += '\n' + margin;
      column = indent;
      line_empty = true;
      text.remove_prefix(1);
      continue;
    }
    if (text.front() == ' ') {
      text.remove_prefix(1);
      continue;
    }
    const std::string_view word = text.substr(0, text.find_first_of(" \n"));
    const int width = display_width(word);
    if (!line_empty && column + 1 + width > columns) {
      out += '\n' + margin;
      column = indent;
      line_empty = true;
    }
    if (!line_empty) {
      out += ' ';
      ++column;
    }
    out += word;
    column += width;
    line_empty = false;
    text.remove_prefix(word.size());
  }
  return out;
}

}  // namespace mtl
