// How errors look, and which words are near each other.
#include <filesystem>
#include <fstream>
#include <rapidcheck.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "common/version.h"
#include "support/temp_dir.h"

using namespace mtl;

TEST_CASE("an error without a place is one line and its help") {
  CHECK(render({.code = "a.b", .what = "it broke", .help = "mend it"}) ==
        "error[a.b]: it broke\n"
        "  help: mend it\n");
  CHECK(render({.code = "a.b", .what = "odd", .severity = Diagnostic::Severity::warning}) ==
        "warning[a.b]: odd\n");
}

TEST_CASE("an error with a place shows the line and a caret") {
  const test::TempDir dir;
  const std::string file = dir.file("f.yaml", "one\n  two: 2\n");
  CHECK(render({.code = "c",
                .what = "w",
                .place = Place{file, 2, 8},
                .notes = {"n1", "n2"},
                .help = "h"}) ==
        "error[c]: w\n"
        "  --> " +
            file +
            ":2:8\n"
            "  2 |   two: 2\n"
            "    |        ^\n"
            "  note: n1\n"
            "  note: n2\n"
            "  help: h\n");
}

TEST_CASE("a place without column, line or file is shown as far as it is known") {
  const test::TempDir dir;
  const std::string file = dir.file("f", "one\n");
  CHECK(render({.code = "c", .what = "w", .place = Place{file, 1}}) ==
        "error[c]: w\n  --> " + file + ":1\n  1 | one\n");
  CHECK(render({.code = "c", .what = "w", .place = Place{file}}) ==
        "error[c]: w\n  --> " + file + "\n");
  CHECK(render({.code = "c", .what = "w", .place = Place{"absent", 3, 4}}) ==
        "error[c]: w\n  --> absent:3:4\n");
  CHECK(render({.code = "c", .what = "w", .place = Place{file, 9, 1}}) ==
        "error[c]: w\n  --> " + file + ":9:1\n");
  CHECK(render({.code = "c", .what = "w", .place = Place{dir.path().string(), 1, 1}}) ==
        "error[c]: w\n  --> " + dir.path().string() + ":1:1\n");
}

TEST_CASE("the caret stands under its character whatever precedes it") {
  const test::TempDir dir;
  const auto lines = [&](const std::string& content, int column) {
    const std::string file = dir.file("f", content);
    const std::string text = render({.code = "c", .what = "w", .place = Place{file, 1, column}});
    return text.substr(text.find("  1 |"));
  };
  CHECK(lines("\tx: 1\n", 2) == "  1 | \tx: 1\n    | \t^\n");
  CHECK(lines("é: x\r\n", 4) == "  1 | é: x\n    |    ^\n");
  CHECK(lines("名: x\n", 4) == "  1 | 名: x\n    |     ^\n");
  CHECK(lines("\xEF\xBB\xBFk: x\n", 4) == "  1 | k: x\n    |    ^\n");
  CHECK(lines("a\x1b[31mb\n", 1) == "  1 | a?[31mb\n    | ^\n");
  CHECK(lines("ab\n", 4) == "  1 | ab\n    |    ^\n");
}

TEST_CASE("a long line is cut around the caret") {
  const test::TempDir dir;
  const std::string file =
      dir.file("f", std::string(1000, 'a') + "B" + std::string(1000, 'c') + "\n");
  CHECK(render({.code = "c", .what = "w", .place = Place{file, 1, 1001}}) ==
        "error[c]: w\n  --> " + file + ":1:1001\n" + "  1 | ..." + std::string(60, 'a') + "B" +
            std::string(59, 'c') + "...\n" + "    | " + std::string(63, ' ') + "^\n");
}

TEST_CASE("of a file of any size only the beginning is looked at for an excerpt") {
  const test::TempDir dir;
  const std::string path = dir.file("corpus.jsonl", std::string(100'000, 'x'));
  // 64 MiB in one line, then a short one.
  std::filesystem::resize_file(path, size_t{64} << 20);
  std::ofstream(path, std::ios::app) << "\nsecond\n";
  const std::string first = render({.code = "d", .what = "w", .place = Place{path, 1, 3}});
  CHECK(first.find("\n  1 | xxxxxxxx") != std::string::npos);
  CHECK(first.find("\n    |   ^\n") != std::string::npos);
  CHECK(first.size() < path.size() + 250);
  CHECK(render({.code = "d", .what = "w", .place = Place{path, 2, 1}}) ==
        "error[d]: w\n  --> " + path + ":2:1\n");
  CHECK(render({.code = "d", .what = "w", .place = Place{path, 1, 50'000}}) ==
        "error[d]: w\n  --> " + path + ":1:50000\n");
}

TEST_CASE("color paints the head and the caret only") {
  const test::TempDir dir;
  const std::string file = dir.file("f", "x\n");
  CHECK(render({.code = "c", .what = "w", .place = Place{file, 1, 1}}, true) ==
        "\033[1;31merror[c]\033[0m: w\n  --> " + file +
            ":1:1\n  1 | x\n    | \033[1;31m^\033[0m\n");
}

TEST_CASE("diagnostics are thrown together, and only when one is an error") {
  Diagnostics diagnostics;
  diagnostics.add({.code = "w", .what = "warn", .severity = Diagnostic::Severity::warning});
  CHECK_FALSE(diagnostics.has_errors());
  CHECK_NOTHROW(diagnostics.throw_if_errors());
  diagnostics.add({.code = "e", .what = "err"});
  try {
    diagnostics.throw_if_errors(Exit::data);
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::data);
    CHECK(error.diagnostics().size() == 2);
    CHECK(std::string(error.what()) == "warning[w]: warn\nerror[e]: err\n");
  }
}

TEST_CASE("did_you_mean finds typing errors and nothing else") {
  const std::vector<std::string> words = {"steps", "seed", "seq_len", "global_batch", "tp"};
  CHECK(did_you_mean("step", words) == "steps");
  CHECK(did_you_mean("setps", words) == std::nullopt);  // two substitutions in five letters
  CHECK(did_you_mean("globalbatch", words) == "global_batch");
  CHECK(did_you_mean("seqlen", words) == "seq_len");
  CHECK(did_you_mean("pt", words) == std::nullopt);
  CHECK(did_you_mean("anything_else", words) == std::nullopt);
  CHECK(did_you_mean("x", {}) == std::nullopt);
  CHECK(did_you_mean("", words) == std::nullopt);
}

TEST_CASE("did_you_mean: properties") {
  const auto word = [] {
    return rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange('a', 'f')));
  };
  CHECK(rc::check("a candidate is its own best match", [&] {
    const auto candidates =
        *rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(word()));
    const auto pick = *rc::gen::elementOf(candidates);
    RC_ASSERT(did_you_mean(pick, candidates) == pick);
  }));
  CHECK(rc::check("a letter too many is forgiven", [&] {
    const auto target = *word();
    const auto at = *rc::gen::inRange<size_t>(0, target.size() + 1);
    std::string typed = target;
    typed.insert(at, 1, 'z');
    RC_ASSERT(did_you_mean(typed, {target}) == target);
  }));
  CHECK(rc::check("the answer is a candidate, and not farther than a third of the word", [&] {
    const auto candidates = *rc::gen::container<std::vector<std::string>>(word());
    const auto typed = *word();
    const auto found = did_you_mean(typed, candidates);
    if (!found) return;
    RC_ASSERT(std::count(candidates.begin(), candidates.end(), *found) > 0);
    const size_t allowed = std::max<size_t>(1, typed.size() / 3);
    RC_ASSERT(found->size() <= typed.size() + allowed);
    RC_ASSERT(typed.size() <= found->size() + allowed);
  }));
}

TEST_CASE("the version is that of the project") {
  const std::string text = version();
  CHECK(std::count(text.begin(), text.end(), '.') == 2);
  CHECK(text.find_first_not_of("0123456789.") == std::string::npos);
}
