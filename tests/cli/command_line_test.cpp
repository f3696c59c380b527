// cli/command_line: options, errors, help, and the split before a program.
#include "cli/command_line.h"

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"
#include "common/terminal.h"

using namespace mtl;

namespace {

using Words = std::vector<std::string>;

struct Example {
  std::optional<int64_t> processes;
  std::optional<std::string> precision;
  std::string file;
  bool cpu = false;
  bool module = false;
  double temperature = 0.8;
  std::string program;
  Words rest;
  CommandLine line{{"launch [options] PROGRAM [args ...]"}, "Starts a program."};

  Example() {
    line.example("mtl launch script.py", "the simplest case");
    line.positional("PROGRAM", program, "what to start");
    line.rest("ARGS", rest, "its arguments");
    line.group("Where to run");
    line.option("num_processes", "N", processes, 1, "how many", "1");
    line.option("config_file", "FILE", file, "settings", "none");
    line.choice("mixed_precision", {"no", "bf16"}, precision, "compute type", "no");
    line.option("temperature", "T", temperature, 0.0, "how hot", "0.8");
    line.flag("cpu", cpu, "no GPU");
    line.flag("module,m", module, "a module");
  }

  // The only diagnostic of a command line that is refused.
  Diagnostic refused(const Words& args) {
    try {
      line.parse(args);
    } catch (const Error& error) {
      CHECK(error.exit() == Exit::usage);
      REQUIRE(error.diagnostics().size() == 1);
      return error.diagnostics()[0];
    }
    FAIL("accepted");
    return {};
  }
};

}  // namespace

TEST_CASE("both spellings, both ways to give a value, in any order") {
  for (const Words& args :
       {Words{"--num_processes", "4", "--cpu", "p"}, Words{"--num-processes", "4", "p", "--cpu"},
        Words{"p", "--cpu", "--num-processes=4"},
        Words{"--num_processes=3", "--num_processes=4", "--cpu", "p"}}) {
    Example example;
    CHECK(example.line.parse(args));
    CHECK(example.processes == 4);
    CHECK(example.cpu);
    CHECK(example.program == "p");
    CHECK(example.rest.empty());
  }
}

TEST_CASE("flags are switched on and off and short options come in one word") {
  const std::vector<std::pair<Words, bool>> table = {
      {{"--cpu", "p"}, true},          {{"--cpu=true", "p"}, true},
      {{"--cpu=yes", "p"}, true},      {{"--cpu=false", "p"}, false},
      {{"--cpu=0", "p"}, false},       {{"--no-cpu", "p"}, false},
      {{"--no_cpu=false", "p"}, true}, {{"--cpu", "--no-cpu", "p"}, false}};
  for (const auto& [args, on] : table) {
    CAPTURE(args[0]);
    Example example;
    example.cpu = !on;
    CHECK(example.line.parse(args));
    CHECK(example.cpu == on);
  }
  Example example;
  CHECK(example.refused({"--cpu=maybe", "p"}).what == "--cpu wants true or false, got 'maybe'");
  CHECK(example.refused({"--no-num_processes", "p"}).code == "usage.unknown_option");

  std::string given;
  Example other;
  other.line.declare({.name = "count",
                      .aliases = {"other_name"},
                      .short_name = 'n',
                      .value_name = "N",
                      .set = [&](const std::string& value) -> std::optional<std::string> {
                        given += value + ";";
                        return std::nullopt;
                      }});
  CHECK(other.line.parse({"-n3", "-n", "4", "-n=5", "-mn", "6", "--other-name=7", "p"}));
  CHECK(given == "3;4;5;6;7;");
  CHECK(other.module);
  const SplitArguments split = other.line.split({"-mn", "6", "-n7", "prog", "-n", "8"});
  CHECK(split.own == Words{"-mn", "6", "-n7"});
  CHECK(split.program == "prog");
}

TEST_CASE("a value may look like anything when = or its place says that it is one") {
  const std::vector<std::pair<Words, std::string>> table = {
      {{"--config_file=--cpu", "p", "--cpu"}, "--cpu"},
      {{"--config_file", "-x", "p"}, "-x"},
      {{"--config_file", "-5", "p"}, "-5"},
      {{"--config_file", "[a,b]", "p"}, "[a,b]"},
      {{"--config_file==x", "p"}, "=x"},
      {{"--config_file", "=x", "p"}, "=x"},
      {{"--config-file=a=b", "p"}, "a=b"},
      {{"--config_file", "", "p"}, ""}};
  for (const auto& [args, value] : table) {
    CAPTURE(value);
    Example example;
    example.file = "unset";
    CHECK(example.line.parse(args));
    CHECK(example.file == value);
    CHECK(example.program == "p");
  }
}

TEST_CASE("the first thing that is wrong is named") {
  Example example;
  CHECK(example.refused({"--zzzzz", "--cpu=maybe", "p"}).what ==
        "mtl launch has no option '--zzzzz'");
  CHECK(example.refused({"--cpu=maybe", "--zzzzz", "p"}).what ==
        "--cpu wants true or false, got 'maybe'");
  CHECK(example.refused({"--cpu=", "p"}).what == "--cpu wants true or false, got ''");
  CHECK(example.refused({"-mz", "p"}).what == "mtl launch has no option '-z'");
  CHECK(example.refused({"p", "--config_file", "--", "x"}).what ==
        "--config_file wants a value: FILE");
  CHECK(example.refused({"-5", "p"}).code == "usage.unknown_option");
}

TEST_CASE("a command line can be parsed more than once") {
  Example example;
  CHECK(example.line.parse({"--num_processes", "2", "--", "p"}));
  CHECK(example.line.parse({"p", "--cpu", "a"}));
  CHECK(example.processes == 2);
  CHECK(example.cpu);
  CHECK(example.rest == Words{"a"});
}

TEST_CASE("what is not given keeps its default") {
  Example example;
  CHECK(example.line.parse({"p"}));
  CHECK_FALSE(example.processes.has_value());
  CHECK_FALSE(example.precision.has_value());
  CHECK(example.temperature == 0.8);
  CHECK_FALSE(example.cpu);
}

TEST_CASE("after -- everything is taken as it is, in order") {
  Example example;
  CHECK(example.line.parse({"--cpu", "--", "prog", "--num_processes", "x", "--", "-h", "a"}));
  CHECK(example.cpu);
  CHECK(example.program == "prog");
  CHECK(example.rest == Words{"--num_processes", "x", "--", "-h", "a"});
}

TEST_CASE("short options") {
  Example example;
  CHECK(example.line.parse({"-m", "pkg.mod"}));
  CHECK(example.module);
  CHECK(example.program == "pkg.mod");
}

TEST_CASE("a refused command line says what is wrong and what was meant") {
  struct Case {
    Words args;
    const char* code;
    const char* what;
    const char* help;
  };
  const std::vector<Case> table = {
      {{"--num_proceses", "4", "p"},
       "usage.unknown_option",
       "mtl launch has no option '--num_proceses'",
       "did you mean --num_processes?"},
      {{"--num-proceses=4", "p"},
       "usage.unknown_option",
       "mtl launch has no option '--num-proceses'",
       "did you mean --num-processes?"},
      {{"--zzzzz", "p"},
       "usage.unknown_option",
       "mtl launch has no option '--zzzzz'",
       "see: mtl launch --help"},
      {{"--num_processes", "four", "p"},
       "usage.value",
       "--num_processes wants a whole number >= 1, got 'four'",
       "see: mtl launch --help"},
      {{"--num_processes", "0", "p"},
       "usage.value",
       "--num_processes wants a whole number >= 1, got '0'",
       "see: mtl launch --help"},
      {{"--num_processes", "4x", "p"},
       "usage.value",
       "--num_processes wants a whole number >= 1, got '4x'",
       "see: mtl launch --help"},
      {{"--num_processes", "99999999999999999999", "p"},
       "usage.value",
       "--num_processes wants a whole number >= 1, got '99999999999999999999'",
       "see: mtl launch --help"},
      {{"--temperature", "-1", "p"},
       "usage.value",
       "--temperature wants a number >= 0, got '-1'",
       "see: mtl launch --help"},
      {{"--temperature", "nan", "p"},
       "usage.value",
       "--temperature wants a number >= 0, got 'nan'",
       "see: mtl launch --help"},
      {{"--mixed_precision", "bf166", "p"},
       "usage.value",
       "--mixed_precision wants no | bf16, got 'bf166'",
       "did you mean bf16?"},
      {{"--config_file", "--cpu", "p"},
       "usage.value",
       "--config_file wants a value, but --cpu follows it",
       "see: mtl launch --help"},
      {{"p", "--config-file"},
       "usage.value",
       "--config_file wants a value: FILE",
       "see: mtl launch --help"},
      {{"--config_file=", "p"},
       "usage.value",
       "--config_file wants a value, got none",
       "see: mtl launch --help"},
      {{}, "usage.missing", "mtl launch wants PROGRAM: what to start", "see: mtl launch --help"},
      {{"--cpu"},
       "usage.missing",
       "mtl launch wants PROGRAM: what to start",
       "see: mtl launch --help"},
      {{"-x", "p"},
       "usage.unknown_option",
       "mtl launch has no option '-x'",
       "see: mtl launch --help"},
  };
  for (const Case& c : table) {
    Example example;
    std::string words;
    for (const std::string& word : c.args) words += word + ' ';
    CAPTURE(words);
    const Diagnostic diagnostic = example.refused(c.args);
    CHECK(diagnostic.code == c.code);
    CHECK(diagnostic.what.rfind(c.what, 0) == 0);
    CHECK(diagnostic.help == c.help);
  }
}

TEST_CASE("too many words are refused where none are taken") {
  CommandLine line({"config show"}, "Shows.");
  try {
    line.parse({"extra"});
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.diagnostics()[0].code == "usage.extra");
    CHECK(error.diagnostics()[0].what == "mtl config show does not take 'extra'");
    CHECK(error.diagnostics()[0].help == "see: mtl config show --help");
  }
}

TEST_CASE("the split before a program") {
  struct Case {
    Words args;
    Words own;
    std::string program;
    Words rest;
    bool after_separator;
  };
  const std::vector<Case> table = {
      {{}, {}, "", {}, false},
      {{"train.yaml"}, {}, "train.yaml", {}, false},
      {{"train.yaml", "a=1", "--fresh"}, {}, "train.yaml", {"a=1", "--fresh"}, false},
      {{"--cpu", "s.py", "--cpu"}, {"--cpu"}, "s.py", {"--cpu"}, false},
      {{"--num_processes", "2", "s.py", "--num_processes", "3"},
       {"--num_processes", "2"},
       "s.py",
       {"--num_processes", "3"},
       false},
      {{"--num-processes=2", "s.py"}, {"--num-processes=2"}, "s.py", {}, false},
      {{"-m", "pkg.mod", "-m"}, {"-m"}, "pkg.mod", {"-m"}, false},
      {{"--", "train.yaml", "--"}, {}, "train.yaml", {"--"}, true},
      {{"--cpu", "--", "./p", "-x"}, {"--cpu"}, "./p", {"-x"}, true},
      {{"s.py", "--", "x"}, {}, "s.py", {"x"}, false},
      {{"s.py", "--", "--", "x"}, {}, "s.py", {"--", "x"}, false},
      {{"s.py", "x", "--", "y"}, {}, "s.py", {"x", "--", "y"}, false},
      {{"--", "s.py", "--", "x"}, {}, "s.py", {"--", "x"}, true},
      {{"--unknown", "s.py"}, {"--unknown"}, "s.py", {}, false},
      {{"--config_file"}, {"--config_file"}, "", {}, false},
      {{"--config_file", "--", "s.py"}, {"--config_file", "--"}, "s.py", {}, false},
      {{"--help"}, {"--help"}, "", {}, false},
      {{"s.py", "--help"}, {}, "s.py", {"--help"}, false},
      {{"-", "x"}, {}, "-", {"x"}, false},
      {{"--"}, {}, "", {}, true},
  };
  for (const Case& c : table) {
    std::string words;
    for (const std::string& word : c.args) words += word + ' ';
    CAPTURE(words);
    Example example;
    const SplitArguments split = example.line.split(c.args);
    CHECK(split.own == c.own);
    CHECK(split.program == c.program);
    CHECK(split.rest == c.rest);
    CHECK(split.after_separator == c.after_separator);
  }
}

TEST_CASE("an error names the whole command") {
  CommandLine line({"data train-tokenizer [options] FILES..."}, "Makes one.");
  try {
    line.parse({"--vocab_size", "3"});
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.diagnostics()[0].what == "mtl data train-tokenizer has no option '--vocab_size'");
  }
}

TEST_CASE("help: examples first, groups, defaults, and within its width") {
  Example example;
  const std::string text = example.line.help(72);
  CHECK(text.rfind("usage: mtl launch [options] PROGRAM [args ...]\n", 0) == 0);
  const size_t examples = text.find("Examples:");
  const size_t group = text.find("Where to run:");
  REQUIRE(examples != std::string::npos);
  REQUIRE(group != std::string::npos);
  CHECK(examples < group);
  for (const char* part : {"--num_processes N", "[default: 1]", "--mixed_precision no|bf16",
                           "-m, --module", "-h, --help", "--num-processes"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  for (int columns : {40, 60, 72, 100, 300}) {
    CAPTURE(columns);
    std::istringstream lines(example.line.help(columns));
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      CHECK(display_width(line) <= std::min(columns, 100));
    }
  }
}
