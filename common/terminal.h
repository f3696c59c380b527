// What the other end of a stream can show: width, colour, UTF-8; and text made to fit there.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace mtl {

struct Terminal {
  bool is_tty = false;
  bool color = false;
  bool utf8 = false;
  bool redraw = false;  // a tty that understands escape sequences (TERM is not "dumb")
  int columns = 80;
};

// Reads an environment variable; nullptr if it is not set.
using GetEnv = std::function<const char*(const char*)>;

// NO_COLOR (non-empty) turns colour off; else CLICOLOR_FORCE or FORCE_COLOR (non-empty, not "0")
// turns it on; else it is on for a tty whose TERM is neither empty nor "dumb".
bool color_wanted(bool is_tty, const GetEnv& get_env);
// From LC_ALL, LC_CTYPE, LANG: the first that is set and not empty decides.
bool utf8_wanted(const GetEnv& get_env);
// The terminal behind a descriptor. Its width is the kernel's, else COLUMNS, else 80.
Terminal inspect_terminal(int fd);
int terminal_columns(int fd);

// Columns that UTF-8 text takes: combining marks 0, East Asian wide characters and emoji 2. A byte
// that is not valid UTF-8 counts 1.
int display_width(std::string_view text);
// The longest prefix that fits in `columns`, with the last column an ellipsis ("…" or, without
// UTF-8, "~") if something had to go. Never cuts inside a character.
std::string fit_width(std::string_view text, int columns, bool utf8);
// Words filled into lines of at most `columns`; the first line starts at column `start` (its
// indentation is not added), later ones with `indent` spaces. A word longer than a line stays
// whole. Line breaks in `text` stay. No newline at the end.
std::string wrap_text(std::string_view text, int columns, int indent, int start);

}  // namespace mtl
