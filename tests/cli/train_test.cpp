// The real program with the real trainer: launch, resume, generate, start from weights.
#include <string>
#include <utility>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE("a run trains, reports, is complete, and goes on with more steps") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome first = shell.mtl({"launch", "--num_processes", "2", "train.yaml"});
  CAPTURE(first.err);
  REQUIRE(first.code == 0);
  CHECK(first.out.empty());
  CHECK_FALSE(has(first.err, "\r"));
  CHECK_FALSE(has(first.err, "\033"));
  CHECK(has(first.err, "Z step=1 loss="));
  CHECK(has(first.err, "Z step=10 loss="));
  const fs::path run = run_of(shell);
  const Outcome logs = shell.mtl({"logs", run.string()});
  CHECK(has(logs.out, "Z step=10 loss="));
  CHECK(has(logs.out, "start    from scratch"));
  const auto lines = metrics_of(run);
  REQUIRE(lines.size() >= 4);
  CHECK(lines[0]["step"] == 1);
  CHECK(lines[0]["loss"].get<double>() > lines[lines.size() - 2]["loss"].get<double>());
  CHECK(lines.back()["valid_loss"].is_number());
  CHECK(json::parse(file_text(run / "status.json"))["state"] == "done");
  CHECK(fs::exists(run / "logs/rank-00001.log"));
  CHECK(has(file_text(run / "report.html"), "<span class='state done'>"));
  CHECK(std::distance(fs::directory_iterator(run / "tb"), {}) == 1);

  const Outcome again = shell.mtl({"launch", "--num_processes", "2", "train.yaml"});
  CHECK(again.code == 0);
  CHECK(has(again.err, "is complete"));
  CHECK(has(again.err, "--fresh"));
  CHECK(metrics_of(run).size() == lines.size());

  const Outcome more = shell.mtl(
      {"launch", "--num_processes", "2", "train.yaml", "train.steps=15", "lr.schedule=constant"});
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(has(file_text(run / "events.jsonl"), "\"resumed\""));
  int at_15 = 0;
  for (const json& line : metrics_of(run_of(shell))) {
    at_15 += line["step"] == 15 && line.contains("loss") ? 1 : 0;
  }
  CHECK(at_15 == 1);

  const Outcome words = shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "});
  CAPTURE(words.err);
  CHECK(words.code == 0);
  CHECK(words.out.size() >= 20);
  // A prompt longer than the context (16) is cut at its beginning.
  const Outcome tail =
      shell.mtl({"generate", "runs/tiny", std::string(100, 'e') + " the", "--tokens", "40"});
  CHECK(tail.code == 0);
  CHECK(tail.out.size() >= 40);
  CHECK(shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "}).out == words.out);
  // Fewer tokens are the beginning of more, whether or not those fill the context.
  for (const char* tokens : {"1", "2", "12", "13", "14"}) {
    CAPTURE(tokens);
    const Outcome few = shell.mtl({"generate", "--tokens", tokens, "runs/tiny", "the "});
    REQUIRE(few.code == 0);
    REQUIRE(few.out.size() > 1);
    CHECK(words.out.starts_with(few.out.substr(0, few.out.size() - 1)));
  }
}

TEST_CASE("a run starts from the weights of another one by its name, and says so") {
  Shell shell;
  write_recipe(shell, 10);
  REQUIRE(shell.mtl({"launch", "train.yaml", "run.dir=out"}).code == 0);
  const std::string checkpoint = fs::relative(
      fs::directory_iterator(shell.dir() / "out/tiny")->path() / "checkpoints/step-00000010",
      shell.dir());
  // Newer runs of that name: one that was stopped before it had a checkpoint, and the run itself.
  fs::create_directories(shell.dir() / "out/tiny/99990101-000000-dead/checkpoints");
  shell.write("out/tiny/99990101-000000-dead/resolved.yaml", "");
  for (const auto& [from, name] :
       {std::pair("tiny", "more"), {"out/tiny", "more"}, {"tiny", "tiny"}}) {
    CAPTURE(std::string(from));
    CAPTURE(std::string(name));
    const Outcome outcome = shell.mtl({"launch", "--fresh", "train.yaml", "run.dir=out",
                                       std::string("run.name=") + name, "train.steps=2",
                                       "log.every=1", std::string("init.from=") + from});
    CHECK(outcome.code == 0);
    CAPTURE(outcome.out);
    const std::string all = outcome.out + outcome.err;
    CHECK(has(all, "start    from the weights of out/tiny/"));
    if (name == std::string("more")) CHECK(has(all, checkpoint));
  }
  CHECK(has(shell.mtl({"launch", "train.yaml", "run.name=other", "init.from=nothing"}).err,
            "init.missing"));
}

TEST_CASE("weights of another tokenizer are refused, with the file of their own") {
  Shell shell;
  write_recipe(shell, 2);
  REQUIRE(shell.mtl({"launch", "train.yaml", "run.name=base"}).code == 0);
  // Without its first letter, all others have other numbers.
  std::string text = fox_text();
  std::erase(text, 'a');
  shell.write("other.txt", text);
  const auto start = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"launch", "--fresh", "train.yaml", "data.train=other.txt",
                                      "init.from=base"};
    words.insert(words.end(), more.begin(), more.end());
    return shell.mtl(words);
  };
  const Outcome refused = start({});
  CHECK(refused.code == 6);
  CHECK(has(refused.err, "error[init.tokenizer]"));
  const size_t at = refused.err.find("data.tokenizer.file=");
  REQUIRE(at != std::string::npos);
  const std::string file = refused.err.substr(at, refused.err.find(',', at) - at);
  const Outcome good = start({"data.tokenizer.type=auto", file});
  CAPTURE(good.err);
  CHECK(good.code == 0);
  CHECK(has(good.err, "start    from the weights of"));
}

TEST_CASE("a run that goes on does not need the weights that it began with") {
  Shell shell;
  write_recipe(shell, 2);
  REQUIRE(shell.mtl({"launch", "train.yaml", "run.name=base"}).code == 0);
  launch(shell, 1, {"init.from=base"});
  fs::remove_all(shell.dir() / "runs/base");
  launch(shell, 1, {"init.from=base", "train.steps=4", "lr.schedule=constant"});
  CHECK(status_of(run_of(shell))["step"] == 4);
  CHECK(shell.mtl({"launch", "--fresh", "train.yaml", "init.from=base"}).code == 6);
}

TEST_CASE("a loss that jumps is a warning, and the run goes on") {
  // The second half of the text is of other letters, and read in order.
  Shell shell;
  write_recipe(shell, 90);
  std::string text;
  const size_t half = 70 * 8 * 16;  // 70 steps
  while (text.size() < half) text += "abababab";
  while (text.size() < 3 * half) text += "xyzzyxyz";
  shell.write("corpus.txt", text);
  const Outcome run =
      shell.mtl({"launch", "train.yaml", "data.sampler=sequential", "data.split=[1]",
                 "train.seq_len=16", "train.global_batch=8", "lr.max=0.01"});
  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  CHECK(has(run.err, "[loss.spike] step 7"));
  CHECK(has(file_text(run_of(shell) / "events.jsonl"), "\"spike\""));
}
