// common/terminal: what is decided from the environment, and text made to fit.
#include "common/terminal.h"

#include <map>
#include <string>

#include <doctest/doctest.h>

using namespace mtl;

namespace {

GetEnv environment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

}  // namespace

TEST_CASE("colour follows NO_COLOR, CLICOLOR_FORCE, TERM, in that order") {
  CHECK(color_wanted(true, environment({{"TERM", "xterm"}})));
  CHECK_FALSE(color_wanted(false, environment({{"TERM", "xterm"}})));
  CHECK_FALSE(color_wanted(true, environment({{"TERM", "dumb"}})));
  CHECK_FALSE(color_wanted(true, environment({})));
  CHECK_FALSE(color_wanted(true, environment({{"TERM", "xterm"}, {"NO_COLOR", "1"}})));
  CHECK(color_wanted(true, environment({{"TERM", "xterm"}, {"NO_COLOR", ""}})));
  CHECK(color_wanted(false, environment({{"CLICOLOR_FORCE", "1"}})));
  CHECK(color_wanted(true, environment({{"TERM", "dumb"}, {"FORCE_COLOR", "1"}})));
  CHECK_FALSE(color_wanted(false, environment({{"CLICOLOR_FORCE", "0"}})));
  CHECK_FALSE(color_wanted(false, environment({{"CLICOLOR_FORCE", ""}})));
  CHECK_FALSE(color_wanted(true, environment({{"NO_COLOR", "1"}, {"CLICOLOR_FORCE", "1"}})));
}

TEST_CASE("the first locale variable that is set decides about UTF-8") {
  CHECK(utf8_wanted(environment({{"LANG", "en_US.UTF-8"}})));
  CHECK(utf8_wanted(environment({{"LC_CTYPE", "C.utf8"}, {"LANG", "C"}})));
  CHECK_FALSE(utf8_wanted(environment({{"LC_ALL", "C"}, {"LANG", "en_US.UTF-8"}})));
  CHECK(utf8_wanted(environment({{"LC_ALL", ""}, {"LANG", "en_US.UTF-8"}})));
  CHECK_FALSE(utf8_wanted(environment({})));
}

TEST_CASE("width counts characters as a terminal shows them") {
  CHECK(display_width("") == 0);
  CHECK(display_width("loss") == 4);
  CHECK(display_width("▁▂█") == 3);
  CHECK(display_width("日本") == 4);
  CHECK(display_width("e\u0301") == 1);
  CHECK(display_width("\xff\xfe") == 2);
  CHECK(display_width("\xe2\x96") == 2);  // a character cut short
}

TEST_CASE("text is cut to a width, never inside a character") {
  CHECK(fit_width("abcdef", 6, true) == "abcdef");
  CHECK(fit_width("abcdef", 5, true) == "abcd…");
  CHECK(fit_width("abcdef", 5, false) == "abcd~");
  CHECK(fit_width("▁▂▃▄", 3, true) == "▁▂…");
  CHECK(fit_width("日本語", 4, true) == "日…");
  CHECK(fit_width("abc", 0, true).empty());
  for (int columns = 0; columns < 12; ++columns) {
    CAPTURE(columns);
    CHECK(display_width(fit_width("a▁日e\u0301\xff語b▂", columns, true)) <= columns);
  }
}

TEST_CASE("words are filled into lines") {
  CHECK(wrap_text("one two three", 100, 4, 4) == "one two three");
  CHECK(wrap_text("one two three", 7, 0, 0) == "one two\nthree");
  CHECK(wrap_text("one two three", 9, 2, 2) == "one two\n  three");
  CHECK(wrap_text("one incomprehensible", 8, 1, 1) == "one\n incomprehensible");
  CHECK(wrap_text("a\nb", 80, 2, 2) == "a\n  b");
}
