// Paths that the system refuses: each is told with its reason as an error of the environment, and
// never as a mistake of mtl.
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/program.h"

using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

using CommandWords = std::vector<std::string>;

// Commands that take the path of a run, or of what one is made of.
std::vector<CommandWords> commands_with(const std::string& path) {
  return {{"ckpt", "ls", path},
          {"ckpt", "show", path},
          {"ckpt", "verify", path},
          {"ckpt", "prune", "--keep_last", "1", path},
          {"ckpt", "export", path, "-o", "exported"},
          {"ckpt", "merge", path, "-o", "merged.safetensors"},
          {"ckpt", "import", path, "-o", "imported"},
          {"report", path},
          {"generate", path, "ROMEO:"}};
}

void write_run(const Shell& shell) {
  shell.write("in.txt", std::string(2000, 'x'));
  shell.write("train.yaml",
              "model: {layers: 1, hidden: 16, heads: 1}\n"
              "train: {global_batch: 2, seq_len: 16, steps: 1}\n"
              "data: {train: in.txt, tokenizer: {type: bytes}}\n");
}

// Somebody to whom a private folder of ours is closed, as all are to nobody and none is to root.
class Stranger {
 public:
  explicit Stranger(const Shell& shell) : shell_(shell) {
    if (!needs_another()) return;
    fs::copy_file(MTL_PROGRAM, shell.dir() / "mtl");
    fs::permissions(shell.dir(), fs::perms::all);
  }
  static bool possible() { return !needs_another() || fs::exists("/usr/bin/setpriv"); }
  Outcome mtl(CommandWords args) const {
    if (!needs_another()) return shell_.mtl(args);
    args.insert(args.begin(), {"/usr/bin/setpriv", "--reuid=65534", "--clear-groups",
                               (shell_.dir() / "mtl").string()});
    return shell_.run(args);
  }

 private:
  static bool needs_another() { return ::geteuid() == 0; }
  const Shell& shell_;
};

}  // namespace

TEST_CASE("paths: a folder of somebody else is named with the system's reason") {
  if (!Stranger::possible()) return;
  const Shell shell;
  write_run(shell);
  shell.write("secret/x/config.json", "{}");
  fs::permissions(shell.dir() / "secret", fs::perms::none);
  if (::geteuid() == 0) fs::permissions(shell.dir() / "secret", fs::perms::owner_all);
  const Stranger stranger(shell);
  std::vector<CommandWords> commands = commands_with("secret/x");
  commands.push_back({"logs", "secret/x"});
  commands.push_back({"launch", "train.yaml", "init.from=secret/x"});
  commands.push_back({"config", "default", "--config_file", "secret/x/d.yaml"});
  commands.push_back({"launch", "train.yaml", "data.tokenizer.type=hf",
                      "data.tokenizer.file=secret/x/tokenizer.json"});
  commands.push_back({"data", "tokenize", "in.txt", "-o", "out", "--tokenizer", "secret/x/t.json"});
  for (const CommandWords& command : commands) {
    const Outcome outcome = stranger.mtl(command);
    const std::string words = fmt::format("{}", fmt::join(command, " "));
    CAPTURE(words);
    CAPTURE(outcome.err);
    CHECK(outcome.code != 1);
    CHECK(has(outcome.err, "secret/x"));
    CHECK(has(outcome.err, "Permission denied"));
    CHECK(!has(outcome.err, "error[internal]"));
    CHECK(!has(outcome.err, "does not exist"));
  }
  const Outcome outcome = stranger.mtl({"ckpt", "ls", "secret/x"});
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "error[file.unreadable]: cannot access secret/x/manifest.json: "));
  CHECK(has(outcome.err, "help: check the permissions"));
  fs::permissions(shell.dir() / "secret", fs::perms::owner_all);
}

TEST_CASE("paths: links in a circle and names that are too long are no mistakes of mtl") {
  const Shell shell;
  write_run(shell);
  fs::create_symlink("loop", shell.dir() / "loop");
  for (const std::string& path : {std::string("loop"), std::string(300, 'n'),
                                  std::string(5000, 'n'), "a/" + std::string(300, 'n')}) {
    std::vector<CommandWords> commands = commands_with(path);
    commands.push_back({"launch", "train.yaml", "init.from=" + path});
    commands.push_back({"config", "default", "--config_file", path + "/d.yaml"});
    commands.push_back({"ckpt", "import", "base", "--tokenizer", path, "-o", "imported"});
    for (const CommandWords& command : commands) {
      const Outcome outcome = shell.mtl(command);
      const std::string words = fmt::format("{}", fmt::join(command, " "));
      CAPTURE(words);
      CAPTURE(outcome.err);
      CHECK(outcome.code > 1);
      CHECK(has(outcome.err, "error["));
      CHECK(has(outcome.err, "help: "));
      CHECK(!has(outcome.err, "error[internal]"));
    }
  }
  CHECK(has(shell.mtl({"ckpt", "ls", "loop"}).err, "its links lead in a circle"));
  CHECK(has(shell.mtl({"ckpt", "ls", std::string(300, 'n')}).err, "a name may be 255 bytes long"));
}

TEST_CASE("paths: a working directory that has been deleted is said") {
  const Shell shell;
  write_run(shell);
  const std::string at = shell.dir().string();
  REQUIRE(shell.mtl({"launch", "train.yaml", "run.name=a"}).code == 0);
  const std::string run = shell.mtl({"report", "a"}).out;
  const std::string whole = at + "/" + run.substr(0, run.rfind('/'));
  for (const std::string& command : {"launch " + at + "/train.yaml data.train=" + at + "/in.txt",
                                     "ckpt export " + whole + " -o there", "ckpt merge " + whole}) {
    const Outcome outcome = shell.run(
        {"/bin/sh", "-c", "mkdir gone; cd gone; rmdir ../gone; " MTL_PROGRAM " " + command});
    CAPTURE(command);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 4);
    CHECK(has(outcome.err, "error[file.unreadable]: cannot find the directory that the command "));
    CHECK(has(outcome.err, "cd to one that is there"));
  }
}

TEST_CASE("commands that are told can be pasted where names have spaces") {
  Shell shell;
  write_run(shell);
  shell.write("no exec", "");
  CHECK(has(shell.mtl({"launch", "--", "./no exec"}).err, "chmod +x './no exec'\n"));
  shell.write("my prog.py", "");
  CHECK(has(shell.mtl({"launch", "--no_python", "./my prog.py"}).err, "python3 './my prog.py'\n"));
  CHECK(has(shell.mtl({"launch", "data.train=my text.txt", "train.yaml"}).err,
            "mtl launch train.yaml 'data.train=my text.txt'\n"));
  shell.write("my chat.jsonl", "{\"text\": \"a\"}\n");
  CHECK(has(shell.mtl({"launch", "--dry-run", "train.yaml", "data.train=my chat.jsonl"}).err,
            "mtl data tokenize -o corpus 'my chat.jsonl'; "));
  shell.write("my model/config.json", "{}");
  CHECK(has(shell.mtl({"report", "my model"}).err, "mtl ckpt import 'my model' -o RUN\n"));
  shell.write("my run/resolved.yaml", "");
  CHECK(has(shell.mtl({"ckpt", "show", "my run"}).err,
            "see: mtl ckpt ls 'my run'; mtl launch 'my run/train.yaml' goes on"));
  shell.write("my step/manifest.json", "{}");
  CHECK(has(shell.mtl({"report", "my step"}).err, "mtl ckpt show 'my step'\n"));
  CHECK(has(shell.mtl({"config", "validate", "train.yaml"}).err, "--dry-run train.yaml\n"));
  REQUIRE(shell.mtl({"launch", "train.yaml", "run.name=base", "train.steps=1"}).code == 0);
  REQUIRE(shell.mtl({"ckpt", "export", "base", "-o", "hf"}).code == 0);
  const Outcome imported = shell.mtl({"ckpt", "import", "hf", "-o", "my runs/back"});
  CAPTURE(imported.err);
  CHECK(has(imported.err, "mtl launch 'my runs/back/train.yaml' data.train=FILE\n"));
  if (has(imported.err, "generate  ")) {
    CHECK(has(imported.err, "mtl generate 'my runs/back' \"...\"\n"));
  }
}
