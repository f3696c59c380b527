// mtl data as a person uses it: from JSON Lines to a corpus that can be looked into, killed on the
// way, with a disk that is full.
#include <csignal>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/text.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using test::file_text;
using test::Outcome;
using test::Shell;

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "{\"text\": \"document number " + std::to_string(i * 7919) + "\", \"n\": 1}\n";
  }
  return text;
}

using mtl::test::has;

bool has_ended(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

TEST_CASE(
    "mtl data: from lines to a corpus that is previewed and counted and verified and merged") {
  const Shell shell;
  shell.write("in/a.jsonl", lines(100));
  const Outcome made =
      shell.mtl({"data", "tokenize", "--tokenizer", "bytes", "-o", "out/corpus", "--json", "in"});
  INFO(made.err);
  REQUIRE(made.code == 0);
  const auto report = nlohmann::json::parse(made.out);
  CHECK(report.at("outputs").at(0).at("documents") == 100);
  CHECK(has(made.err, "out/corpus: 100 documents"));
  const Outcome preview = shell.mtl({"data", "preview", "out/corpus", "--documents", "1"});
  CHECK(preview.code == 0);
  CHECK(has(preview.out, "document number 0\n"));
  CHECK(has(preview.out, "ids 100 111 99"));
  const Outcome stats = shell.mtl({"data", "stats", "out/corpus.idx", "--json"});
  CHECK(stats.code == 0);
  CHECK(nlohmann::json::parse(stats.out).at("documents") == 100);
  CHECK(shell.mtl({"data", "stats", "out/corpus"}).code == 0);
  CHECK(has(shell.mtl({"data", "verify", "out/corpus"}).out, "good; 100 documents"));
  const Outcome merged =
      shell.mtl({"data", "merge", "out/corpus", "out/corpus", "-o", "out/twice"});
  CHECK(merged.code == 0);
  CHECK(has(shell.mtl({"data", "verify", "out/twice"}).out, "good; 200 documents"));
  fs::resize_file(shell.dir() / "out/twice.bin", 100);
  const Outcome damaged = shell.mtl({"data", "verify", "out/twice"});
  CHECK(damaged.code == 6);
  CHECK(has(damaged.err, "data.index"));
}

TEST_CASE("mtl data tokenize: killed at any moment the same command goes on to the same bytes") {
  const Shell shell;
  shell.write("in.jsonl", lines(200'000));
  const std::vector<std::string> command = {
      MTL_PROGRAM,       "data", "tokenize",  "--tokenizer", "bytes",
      "--journal_every", "0",    "--workers", "2",           "-o"};
  auto whole = command, killed = command;
  // Of the same name in another directory: the meta.json names the file beside it.
  whole.insert(whole.end(), {"whole/x", "in.jsonl"});
  killed.insert(killed.end(), {"killed/x", "in.jsonl"});
  REQUIRE(shell.run(whole).code == 0);
  const fs::path journal = shell.dir() / "killed/x.journal.json";
  int kills = 0;
  Outcome outcome;
  bool done = false;
  while (!done && kills < 5) {
    // After more and more of its notes: in the beginning, in the middle, at the end.
    int notes = 0;
    std::string last = file_text(journal);
    const pid_t pid = shell.start(killed);
    while (notes <= 3 * kills && !has_ended(pid)) {
      std::string now = file_text(journal);
      if (now != last) ++notes;
      last = std::move(now);
    }
    ::kill(pid, SIGKILL);
    outcome = shell.finish(pid);
    if (outcome.code != 0) ++kills;
    // Also when it was killed on its way out, after its last note had gone.
    done = outcome.code == 0 ||
           (!fs::exists(journal) && fs::exists(shell.dir() / "killed/x.meta.json"));
  }
  CHECK(kills > 0);
  if (!done) {
    outcome = shell.run(killed);
    INFO(outcome.err);
    CHECK(outcome.code == 0);
  }
  for (const char* ending : {".bin", ".idx", ".meta.json", ".tokenizer.json"}) {
    CHECK((file_text(shell.dir() / (std::string("killed/x") + ending)) ==
           file_text(shell.dir() / (std::string("whole/x") + ending))));
  }
  CHECK(!fs::exists(shell.dir() / "killed/x.journal.json"));
}

TEST_CASE(
    "mtl data tokenize: when files may not become larger nothing half is left and it goes on") {
  const Shell shell;
  shell.write("in.jsonl", lines(100'000));
  const std::string command =
      "exec " MTL_PROGRAM " data tokenize --tokenizer bytes -o out in.jsonl";
  // In blocks of 1,024 bytes; the signal is ignored as a shell's nohup would do it.
  const Outcome full = shell.run({"/bin/bash", "-c", "trap '' XFSZ; ulimit -f 2000; " + command});
  CHECK(full.code == 4);
  CHECK(has(full.err, "data.write"));
  CHECK(!fs::exists(shell.dir() / "out.bin"));
  CHECK(!fs::exists(shell.dir() / "out.idx"));
  const Outcome again = shell.run({"/bin/bash", "-c", command});
  INFO(again.err);
  CHECK(again.code == 0);
  CHECK(has(again.err, "100 000 documents"));
}

TEST_CASE("mtl data tokenize: standard input and mistakes") {
  const Shell shell;
  shell.write("in.jsonl", lines(10) + "{\"text\": 1}\n");
  const std::string pipe = "head -n 10 in.jsonl | " MTL_PROGRAM " data tokenize --tokenizer bytes ";
  CHECK(shell.run({"/bin/sh", "-c", pipe + "-o piped -"}).code == 0);
  CHECK(fs::exists(shell.dir() / "piped.idx"));
  const auto mistake = [&](std::vector<std::string> args, int code, const std::string& part) {
    args.insert(args.begin(), {"data", "tokenize"});
    const Outcome outcome = shell.mtl(args);
    CAPTURE(part);
    INFO(outcome.err);
    CHECK(outcome.code == code);
    CHECK(has(outcome.err, part));
  };
  mistake({"in.jsonl", "-o", "x"}, 2, "no tokenizer");
  mistake({"in.jsonl", "--tokenizer", "bytes"}, 2, "no output");
  mistake({"-o", "x", "--tokenizer", "bytes"}, 2, "no input");
  mistake({"in.jsonl", "-o", "folder/", "--tokenizer", "bytes"}, 2, "folder/ is a folder");
  mistake({"in.jsonl", "-o", "x", "--tokenizer", "bytes"}, 6, "in.jsonl:11");
  mistake({"in.jsonl", "-o", "x", "--tokenizer", "bytes", "--skip_bad"}, 0,
          "bad lines passed over: 1");
  mistake({"in.jsonl", "-o", "x", "--tokenizer", "bytes"}, 6, "data.exists");
}

TEST_CASE("mtl data train-tokenizer: the texts are not replaced by the tokenizer") {
  const Shell shell;
  shell.write("texts/a.txt", "a text, a text");
  shell.write("texts/b.txt", "another");
  fs::create_symlink("texts/a.txt", shell.dir() / "link.json");
  const auto train = [&](const std::vector<std::string>& rest) {
    std::vector<std::string> args = {"data", "train-tokenizer", "--vocab", "260", "-o"};
    args.insert(args.end(), rest.begin(), rest.end());
    return shell.mtl(args);
  };
  // The second is what the shell makes of -o texts/*.txt.
  for (const std::vector<std::string>& rest :
       {std::vector<std::string>{"texts/a.txt", "texts/a.txt", "texts/b.txt"},
        {"texts/a.txt", "texts/../texts/a.txt"},
        {"link.json", "texts/a.txt"},
        {"texts/a.txt", "texts"},
        {"texts/a.txt", "texts/*.txt"}}) {
    const Outcome outcome = train(rest);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, "would replace texts/"));
    CHECK(file_text(shell.dir() / "texts/a.txt") == "a text, a text");
  }
  for (int times = 0; times < 2; ++times) CHECK(train({"new.json", "texts"}).code == 0);
}

}  // namespace
}  // namespace mtl
