// mtl completion in the shells that there are: bash and zsh at a terminal, fish by its own
// question. A shell that is not installed is skipped, which the runner shows; bash always is.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cli/program.h"
#include "cli/pty.h"
#include "support/text.h"

using mtl::test::has;
using mtl::test::Outcome;
using mtl::test::Pty;
using mtl::test::Shell;

namespace {

std::string path_with_mtl() {
  return std::filesystem::path(MTL_PROGRAM).parent_path().string() + ":/usr/bin:/bin";
}

void need(const std::string& program) {
  if (std::filesystem::exists("/usr/bin/" + program)) return;
  std::printf("skipped: no %s (Debian: %s)\n", program.c_str(), program.c_str());
  std::exit(77);  // SKIP_RETURN_CODE in tests/CMakeLists.txt
}

// What people may complete among.
void furnish(const Shell& shell) {
  shell.write("train.yaml", "");
  shell.write("notes.txt", "");
  shell.write("script.py", "");
  shell.write("data/corpus.txt", "");
  shell.write("runs/mine/20260101-1/resolved.yaml", "");
  shell.write("runs/two words/20260101-1/resolved.yaml", "");
}

struct Typed {
  std::string keys;    // \t completes
  std::string became;  // what mtl got then, its words between |
};
// The same in both shells that are typed at.
const std::vector<Typed>& lines() {
  static const std::vector<Typed> kLines = {
      {"mtl lau\t", "launch"},
      {"mtl ckpt res\t", "ckpt|reshard"},
      {"mtl launch --mixed_p\tbf\t", "launch|--mixed_precision|bf16"},
      {"mtl launch --mixed-precision=bf\t", "launch|--mixed-precision=bf16"},
      {"mtl launch tr\t", "launch|train.yaml"},
      // No blank behind a section or a key, and the rest of the word stays.
      {"mtl launch train.yaml train.step\t7", "launch|train.yaml|train.steps=7"},
      {"mtl plan train.yaml model.norm.ty\trms\t --js\t",
       "plan|train.yaml|model.norm.type=rmsnorm|--json"},
      {"mtl plan train.yaml data.train=da\tcor\t", "plan|train.yaml|data.train=data/corpus.txt"},
      {"mtl logs runs/m\t--fo\t", "logs|runs/mine|--follow"},
      {"mtl logs ./ru\tm\t--fo\t", "logs|./runs/mine|--follow"},
      {"mtl logs runs/tw\t", "logs|runs/two words"},
      {"mtl logs 'runs/tw\t", "logs|runs/two words"},
      {"mtl recipes cp char-s\t", "recipes|cp|char-shakespeare"},
      {"mtl launch script.py no\t", "launch|script.py|notes.txt"},
      {"mtl launch -- script.py no\t", "launch|--|script.py|notes.txt"},
      {"mtl nosuch \tx", "nosuch|x"},
  };
  return kLines;
}

// In front of the real one a function that prints what it is given, but for the shell's question.
const std::string kPrinter =
    "mtl() { if [[ $1 == __complete ]]; then command mtl \"$@\"; else local IFS='|'; "
    "echo \"GOT[$*]\"; fi; }; echo rea''dy\r";

void type(Pty& shell) {
  for (const Typed& line : lines()) {
    CAPTURE(line.keys);
    shell.send(line.keys + "\r");
    REQUIRE(shell.wait_for("GOT[" + line.became + "]"));
    REQUIRE(shell.wait_for("> "));
  }
}

}  // namespace

TEST_CASE("bash completes") {
  Shell shell;
  furnish(shell);
  Pty bash({"/bin/bash", "--noprofile", "--norc", "-i"},
           {{"PATH", path_with_mtl()}, {"TERM", "dumb"}, {"INPUTRC", "/dev/null"}, {"PS1", "> "}},
           shell.dir().string(), 200);
  bash.send("source <(mtl completion bash); " + kPrinter);
  REQUIRE(bash.wait_for("ready"));
  REQUIRE(bash.wait_for("> "));
  type(bash);
  // Another command in the same line, and by its path.
  bash.send("true; mtl ver\t\r");
  CHECK(bash.wait_for("GOT[version]"));
  bash.send(std::string(MTL_PROGRAM) + " recipes sh\tqui\t\r");
  CHECK(bash.wait_for("run:"));
  bash.send("exit\r");
  bash.finish();
}

TEST_CASE("zsh completes") {
  need("zsh");
  Shell shell;
  furnish(shell);
  Pty zsh({"/usr/bin/zsh", "-f", "-i"},
          {{"PATH", path_with_mtl()}, {"TERM", "vt100"}, {"PS1", "> "}, {"HOME", shell.dir()}},
          shell.dir().string(), 200);
  zsh.send(
      "autoload -U compinit; compinit -u -D; source <(mtl completion zsh); unsetopt automenu; " +
      kPrinter);
  REQUIRE(zsh.wait_for("ready"));
  REQUIRE(zsh.wait_for("> "));
  type(zsh);
  zsh.send("exit\r");
  zsh.finish();
}

TEST_CASE("fish completes") {
  need("fish");
  Shell shell;
  furnish(shell);
  std::string script = "mtl completion fish | source\n";
  const std::vector<std::pair<std::string, std::string>> asked = {
      {"mtl lau", "launch\ttrain a model, or start any program on every rank\n"},
      {"mtl ckpt res", "reshard\tthe same checkpoint in the files of another layout\n"},
      {"mtl launch --mixed_precision bf", "bf16\n"},
      {"mtl launch --mixed-precision=bf", "--mixed-precision=bf16\n"},
      {"mtl launch ", "train.yaml\n"},
      {"mtl launch train.yaml train.step", "train.steps=\t"},
      {"mtl plan train.yaml data.train=data/c", "data.train=data/corpus.txt\n"},
      {"mtl logs ru", "runs/two words\ta run\nruns/mine\ta run\n"},
      {"mtl logs ./ru", "./runs/two words\ta run\n./runs/mine\ta run\n"},
      {"mtl recipes cp char-s", "char-shakespeare\t"},
      {"mtl launch script.py no", "notes.txt\n"},
      {"mtl ckpt import da", "data/\n"},
  };
  for (const auto& [line, answer] : asked) {
    script += "echo '<" + line + ">'\ncomplete -C '" + line + "'\n";
  }
  const Outcome outcome = shell.run({"/usr/bin/fish", "--no-config", "-c", script},
                                    {{"PATH", path_with_mtl()}, {"HOME", shell.dir()}});
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  CAPTURE(outcome.out);
  for (const auto& [line, answer] : asked) {
    CAPTURE(line);
    CHECK(has(outcome.out, "<" + line + ">\n" + answer));
  }
}

TEST_CASE("what is installed in share/: scripts of shells and manual pages") {
  Shell shell;
  const Outcome written = shell.mtl({"__share", "share"}, {{"SOURCE_DATE_EPOCH", "1700000000"}});
  CHECK(written.code == 0);
  for (const char* name : {"bash-completion/completions/mtl", "zsh/vendor-completions/_mtl",
                           "fish/vendor_completions.d/mtl.fish", "man/man1/mtl.1",
                           "man/man1/mtl-ckpt.1", "man/man5/mtl-train.yaml.5"}) {
    CAPTURE(name);
    CHECK(std::filesystem::file_size(shell.dir() / "share" / name) > 500);
  }
  CHECK(has(mtl::test::file_text(shell.dir() / "share/man/man1/mtl.1"), " 2023-11-14 "));
  CHECK(shell.mtl({"__share", "--help"}).code == 2);
  CHECK_FALSE(std::filesystem::exists(shell.dir() / "--help"));
}

TEST_CASE("manual pages are without a warning") {
  need("mandoc");
  Shell shell;
  REQUIRE(shell.mtl({"__share", "share"}).code == 0);
  const Outcome lint = shell.run(
      {"/bin/sh", "-c", "exec mandoc -T lint -W warning share/man/man1/*.1 share/man/man5/*.5"});
  CHECK(lint.out == "");
  CHECK(lint.code == 0);
}
