// Strict YAML: what is read, and the exact place of what is refused.
#include <rapidcheck.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/yaml.h"
#include "support/temp_dir.h"

using namespace mtl;

namespace {

// "code line:column" of every diagnostic.
std::vector<std::string> problems_of(const std::string& text) {
  Diagnostics diagnostics;
  parse_yaml(text, "f", diagnostics);
  std::vector<std::string> found;
  for (const Diagnostic& diagnostic : diagnostics.all()) {
    CHECK_FALSE(diagnostic.what.empty());
    CHECK_FALSE(diagnostic.help.empty());
    REQUIRE(diagnostic.place);
    CHECK(diagnostic.place->file == "f");
    found.push_back(
        fmt::format("{} {}:{}", diagnostic.code, diagnostic.place->line, diagnostic.place->column));
  }
  return found;
}

std::string problem_of(const std::string& text) {
  const auto all = problems_of(text);
  return all.empty() ? "none" : all.size() > 1 ? "several, first " + all[0] : all[0];
}

YamlValue parse(const std::string& text) {
  Diagnostics diagnostics;
  YamlValue value = parse_yaml(text, "f", diagnostics);
  CHECK(diagnostics.all().empty());
  return value;
}

// The tree on one line: scalars as <text>, quoted ones as "text".
std::string show(const YamlValue& value) {
  std::string text;
  switch (value.kind) {
    case YamlValue::Kind::null:
      return "null";
    case YamlValue::Kind::scalar:
      text += value.quoted ? '"' : '<';
      text += value.text;
      text += value.quoted ? '"' : '>';
      return text;
    case YamlValue::Kind::list:
      for (const YamlValue& item : value.items) {
        text += text.empty() ? '[' : ',';
        text += show(item);
      }
      return text.empty() ? "[]" : text + ']';
    case YamlValue::Kind::map:
      for (const auto& entry : value.entries) {
        text += text.empty() ? '{' : ',';
        text += entry.key;
        text += ':';
        text += show(entry.value);
      }
      return text.empty() ? "{}" : text + '}';
  }
  return text;
}

std::string place(const Place& at) {
  return fmt::format("{}:{}", at.line, at.column);
}

}  // namespace

TEST_CASE("values keep their text, kind and place") {
  const YamlValue root = parse(
      "# comment\n"
      "a:\n"
      "  b: 010\n"
      "  c: 'it''s'\n"
      "d: [1, \"2\", {x: yes}]\n"
      "e: ~\n"
      "f:\n");
  CHECK(show(root) == "{a:{b:<010>,c:\"it's\"},d:[<1>,\"2\",{x:<yes>}],e:null,f:null}");
  const YamlValue* a = root.find("a");
  REQUIRE(a != nullptr);
  CHECK(place(root.entries[0].key_place) == "2:1");
  CHECK(place(a->place) == "3:3");
  CHECK(place(a->find("b")->place) == "3:6");
  CHECK(place(a->find("c")->place) == "4:6");
  CHECK(place(root.find("d")->items[2].find("x")->place) == "5:17");
  CHECK(root.find("absent") == nullptr);
  CHECK(root.find("e")->place.file == "f");
}

TEST_CASE("columns count characters") {
  const YamlValue root = parse("{é: 'ß', 名前: x, k: y}\n");
  CHECK(place(root.find("名前")->place) == "1:14");
  CHECK(place(root.entries[2].key_place) == "1:17");
  CHECK(problem_of("é: x\né: \"名\\q\"\n") == "several, first yaml.duplicate 2:1");
  CHECK(problem_of("é: \"名\\q\"\n").substr(0, 13) == "yaml.syntax 1");
}

TEST_CASE("JSON is read, also with tabs and Windows line ends") {
  CHECK(show(parse("{\n\t\"a\":1,\r\n\t\"b\":[true,null,\"x\\/\\u00e9\\n\"],\"c\":{}}\n")) ==
        "{a:<1>,b:[<true>,null,\"x/é\n\"],c:{}}");
  CHECK(show(parse("a: 1\r\nb:\r\n  c: x\r\n")) == "{a:<1>,b:{c:<x>}}");
  CHECK(show(parse("\xEF\xBB\xBF"
                   "a: 1\n")) == "{a:<1>}");
}

TEST_CASE("empty texts are null") {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "--- # c\n...\n"}) {
    CAPTURE(text);
    CHECK(parse(text).kind == YamlValue::Kind::null);
  }
  CHECK(show(parse("%YAML 1.2\n---\na: 1\n...\n")) == "{a:<1>}");
}

TEST_CASE("other texts than maps are read") {
  CHECK(show(parse("5")) == "<5>");
  CHECK(show(parse("[1, 2]")) == "[<1>,<2>]");
  CHECK(show(parse("- 1\n- - 2\n  - 3\n")) == "[<1>,[<2>,<3>]]");
  CHECK(show(parse("a: |\n  x\n  y\n")) == "{a:\"x\ny\n\"}");
}

TEST_CASE("what is refused, and where") {
  CHECK(problem_of("a: 1\nb: 2\na: 3\n") == "yaml.duplicate 3:1");
  CHECK(problem_of("s:\n  a: 1\n  a: [1, 2]\n") == "yaml.duplicate 3:3");
  CHECK(problem_of("{\"a\": 1, 'a': 2}") == "yaml.duplicate 1:10");
  CHECK(problem_of("x:\n  <<: {a: 1}\n") == "yaml.merge 2:3");
  CHECK(problem_of("a: &name 1\n") == "yaml.anchor 1:4");
  CHECK(problem_of("a: *name\n") == "yaml.anchor 1:4");
  CHECK(problems_of("a: &n {x: 1}\nb: *n\n") ==
        std::vector<std::string>{"yaml.anchor 1:4", "yaml.anchor 2:4"});
  CHECK(problem_of("a: !!str 5\n") == "yaml.tag 1:4");
  CHECK(problem_of("a: !thing [1]\n") == "yaml.tag 1:4");
  CHECK(problem_of("? [a]\n: 1\n") == "yaml.key 1:3");
  CHECK(problem_of("{[a, {b: c}]: 1, d: 2}\n") == "yaml.key 1:2");
  CHECK(problem_of("a: 1\n: 2\n") == "yaml.key 2:1");
  CHECK(problem_of("a: 1\n---\nb: 2\n") == "yaml.documents 2:1");
  CHECK(problem_of("a: 1\n---\n") == "yaml.documents 2:1");
  CHECK(problem_of("a: 1\n... x\n").substr(0, 14) == "yaml.documents");
  CHECK(problem_of("  a: 1\nb: 2\n") == "yaml.syntax 2:1");
  CHECK(problem_of("{a: 1} x\n") == "yaml.syntax 1:8");
  CHECK(problem_of("a:\n\tb: 1\n") == "yaml.tab 2:1");
  CHECK(problem_of("a:\n  b: 1\n \tc: 2\n") == "yaml.tab 3:2");
}

TEST_CASE("syntax errors, and where") {
  CHECK(problem_of("a: b: c\n") == "yaml.syntax 1:5");
  CHECK(problem_of("a: 1\n b: 2\n") == "yaml.syntax 2:3");
  CHECK(problem_of("a:\n  - 1\n - 2\n").substr(0, 13) == "yaml.syntax 3");
  CHECK(problem_of("a: }\n") == "yaml.syntax 1:4");
  CHECK(problem_of("a: @x\n") == "yaml.syntax 1:4");
  CHECK(problem_of("a: \"\\ud83d\\ude00\"\n").substr(0, 13) == "yaml.syntax 1");
  // Brackets and quotes are reported where they open, not at the end of the file.
  CHECK(problem_of("x: 1\na: [1,\n  2\nb: 3\n").substr(0, 11) == "yaml.syntax");
  CHECK(problem_of("a: [1, 2\n\n") == "yaml.syntax 1:4");
  CHECK(problem_of("a: {b: 1\n\n") == "yaml.syntax 1:4");
  CHECK(problem_of("a: {b: 1") == "yaml.syntax 1:4");
  CHECK(problem_of("x: 1\nword") == "yaml.syntax 2:1");
  CHECK(problem_of("a: 'x\nb: 2\n") == "yaml.syntax 1:4");
  CHECK(problem_of("a: 'it''s\n") == "yaml.syntax 1:4");
  CHECK(problem_of("a: \"x\nb: 2\n") == "yaml.syntax 1:4");
  CHECK(problem_of("a: \"x\\\"\n") == "yaml.syntax 1:4");
  CHECK(problem_of("a: [[1, 2\n") == "yaml.syntax 1:5");
  CHECK(problem_of("{\"a\": {\"b\": 1\n") == "yaml.syntax 1:7");
  CHECK(problem_of("{\"a\": 1,\n \"b\" 2}\n") == "yaml.syntax 2:6");
  CHECK(problem_of("a: \"x\" y\n") == "yaml.syntax 1:8");
  // A word without a colon, which yaml-cpp takes for a key.
  CHECK(problem_of("a: 1\nbroken\n") == "yaml.syntax 2:1");
  CHECK(problem_of("s:\n  a: 1\n  broken\n") == "yaml.syntax 3:3");
}

TEST_CASE("all that can be understood is returned beside the errors") {
  Diagnostics diagnostics;
  const YamlValue root =
      parse_yaml("a: 1\na: {x: 2}\n<<: {z: 1}\n{k: v}: 3\nb: [1, *q]\n", "f", diagnostics);
  CHECK(diagnostics.has_errors());
  REQUIRE(root.find("a") != nullptr);
  CHECK(root.find("a")->text == "1");
  CHECK(root.find("<<") == nullptr);
  CHECK(root.find("x") == nullptr);
}

TEST_CASE("text that is no text is refused at its first bad byte") {
  CHECK(problem_of("a: 1\nb: \xff\n") == "yaml.encoding 2:4");
  CHECK(problem_of("b: é\xc3\n") == "yaml.encoding 1:5");
  CHECK(problem_of("\xc0\xaf") == "yaml.encoding 1:1");          // overlong
  CHECK(problem_of("\xed\xa0\x80") == "yaml.encoding 1:1");      // surrogate
  CHECK(problem_of("\xf4\x90\x80\x80") == "yaml.encoding 1:1");  // beyond U+10FFFF
  CHECK(problem_of("\xe2\x82") == "yaml.encoding 1:1");          // cut off
  CHECK(problem_of("\xf0\x80\x80\x80") == "yaml.encoding 1:1");  // overlong
  CHECK(problem_of(std::string("a: \0b\n", 6)) == "yaml.encoding 1:4");
  CHECK(problem_of("a: \x1b[0m\n") == "yaml.encoding 1:4");
  CHECK(problem_of(std::string("\xff\xfe"
                               "a\0:\0",
                               6)) == "yaml.encoding 1:1");  // UTF-16
  CHECK(show(parse("a: \xf0\x9f\x98\x80\n")) == "{a:<\xf0\x9f\x98\x80>}");
}

TEST_CASE("hostile texts end soon, with few errors") {
  CHECK(problem_of(std::string(200'000, '[') + std::string(200'000, ']')) == "yaml.depth 1:65");
  CHECK(problem_of(std::string(200'000, '[')).starts_with("yaml.depth 1:"));
  CHECK(problem_of([] {
          std::string text;
          for (int i = 0; i < 100; ++i) text += std::string(static_cast<size_t>(i), ' ') + "a:\n";
          return text;
        }()) == "yaml.depth 65:65");
  CHECK(problem_of(std::string(kYamlMaxBytes + 1, 'x')) == "yaml.size 0:0");
  CHECK(parse(std::string(kYamlMaxBytes, 'x')).text.size() == kYamlMaxBytes);
  std::string same;
  for (int i = 0; i < 50'000; ++i) same += "k: 1\n";
  CHECK(problems_of(same).size() == 20);
  std::string wide = "{";
  for (int i = 0; i < 50'000; ++i) wide += fmt::format("k{}: [1, 2], ", i);
  CHECK(parse(wide + "}").entries.size() == 50'000);
}

TEST_CASE("depth 64 itself is read") {
  CHECK(parse(std::string(64, '[') + std::string(64, ']')).kind == YamlValue::Kind::list);
}

TEST_CASE("a missing file is an error with its path") {
  const test::TempDir dir;
  Diagnostics diagnostics;
  const std::string path = (dir.path() / "absent.yaml").string();
  CHECK(read_yaml(path, diagnostics).kind == YamlValue::Kind::null);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].code == "file.missing");
  read_yaml(dir.path().string(), diagnostics);
  CHECK(diagnostics.all()[1].code == "file.unreadable");
  read_yaml("/dev/zero", diagnostics);
  CHECK(diagnostics.all()[2].code == "yaml.size");
  CHECK(show(read_yaml(dir.file("f.yaml", "a: 1\n"), diagnostics)) == "{a:<1>}");
}

TEST_CASE("an error shows the line it is about") {
  const test::TempDir dir;
  const std::string path = dir.file("t.yaml", "train:\n  steps: 5\n  steps: 6\n");
  Diagnostics diagnostics;
  read_yaml(path, diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(render(diagnostics.all()[0]) ==
        "error[yaml.duplicate]: `steps` is given twice\n"
        "  --> " +
            path +
            ":3:3\n"
            "  3 |   steps: 6\n"
            "    |   ^\n"
            "  note: first given at line 2, column 3\n"
            "  help: keep one of them\n");
}

TEST_CASE("no text makes the parser throw or point outside") {
  const std::vector<std::string> pieces = {
      "a",   "b: ",   "\n", "  ", "- ",   "[",    "]",  "{",   "}",    ",",   ":",       "\"",
      "'",   "\t",    "#",  "&x", "*x",   "!t ",  "? ", "|\n", ">-\n", "---", "...",     "%Y ",
      "<<:", "\\u12", "~",  "é",  "\xff", "\r\n", "!<", "@",   "`",    "1e9", "\n...\n", "\n---\n"};
  CHECK(rc::check("any sequence of pieces", [&] {
    const auto chosen = *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(pieces));
    std::string text;
    for (const std::string& piece : chosen) text += piece;
    Diagnostics diagnostics;
    parse_yaml(text, "f", diagnostics);
    const int lines = 1 + static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    for (const Diagnostic& diagnostic : diagnostics.all()) {
      RC_ASSERT(diagnostic.place.has_value());
      RC_ASSERT(diagnostic.place->line >= 1);
      RC_ASSERT(diagnostic.place->line <= lines);
      RC_ASSERT(diagnostic.place->column >= 1);
    }
  }));
}
