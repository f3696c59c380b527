// What a model writes at the evaluations of its training: generated.jsonl, and who shows it.
#include "cli/tiny_run.h"

using namespace mtl::test;

namespace {

const std::vector<std::string> kPromptSettings = {
    "train.eval.every=5", "train.eval.generate.prompts=[\"the \", quick]",
    "train.eval.generate.tokens=8", "train.micro_batch=1"};

Outcome launch_with_prompts(const Shell& shell, int ranks,
                            const std::vector<std::string>& settings) {
  std::vector<std::string> words = {"launch", "--num_processes", std::to_string(ranks),
                                    "train.yaml"};
  words.insert(words.end(), kPromptSettings.begin(), kPromptSettings.end());
  words.insert(words.end(), settings.begin(), settings.end());
  const Outcome outcome = shell.mtl(words, {{"OMP_NUM_THREADS", "1"}});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  return outcome;
}

// "5 the |text of eight"
std::vector<std::string> generated_texts_of(const fs::path& run) {
  std::vector<std::string> texts;
  std::istringstream in(file_text(run / "generated.jsonl"));
  for (std::string line; std::getline(in, line);) {
    const json text = json::parse(line);
    CHECK(text["tokens"] == 8);
    CHECK(text["seconds"].get<double>() > 0);
    texts.push_back(text["step"].dump() + " " + text["prompt"].get<std::string>() + "|" +
                    text["text"].get<std::string>());
  }
  return texts;
}

}  // namespace

TEST_CASE("what a run writes at an evaluation is what generate says of its checkpoint") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome first = launch_with_prompts(shell, 1, {"lr.schedule=constant"});
  CHECK(has(first.err, "generate 2 prompts at every evaluation, 8 forward passes of 16 tokens"));
  const fs::path run = run_of(shell);
  std::vector<std::string> texts = generated_texts_of(run);
  REQUIRE(texts.size() == 4);
  CHECK(has(first.err, "Z step=10 prompt=\"the \" text=\""));
  const auto generated = [&](const std::string& step, const std::string& prompt) {
    const Outcome words = shell.mtl(
        {"generate", "--tokens", "8", (run / ("checkpoints/step-000000" + step)).string(), prompt});
    REQUIRE_MESSAGE(words.code == 0, words.err);
    return prompt + "|" + words.out.substr(0, words.out.size() - 1);
  };
  CHECK(texts[0] == "5 " + generated("05", "the "));
  CHECK(texts[2] == "10 " + generated("10", "the "));
  CHECK(texts[3] == "10 " + generated("10", "quick"));
  CHECK(has(file_text(run / "report.html"), "<h2>What it writes</h2>"));
  // It goes on behind what is there, in another layout too.
  launch_with_prompts(shell, 4,
                      {"lr.schedule=constant", "train.steps=15", "parallel.tp=2", "parallel.pp=2"});
  texts = generated_texts_of(run);
  REQUIRE(texts.size() == 6);
  CHECK(texts[4] == "15 " + generated("15", "the "));
}

TEST_CASE("every layout writes the same, and learns as if it wrote nothing") {
  const auto train = [](int ranks, const std::vector<std::string>& settings) {
    Shell shell;
    write_recipe(shell, 10);
    launch_with_prompts(shell, ranks, settings);
    return std::pair(generated_texts_of(run_of(shell)), losses_below(shell.dir() / "runs/tiny"));
  };
  const auto one = train(1, {});
  CHECK(one.first.size() == 4);
  CHECK(train(2, {"parallel.pp=2"}) == one);
  CHECK(train(2, {"parallel.tp=2"}).first == one.first);
  CHECK(train(2, {"parallel.zero=3", "launch.spawn=threads"}).first == one.first);
  CHECK(train(2, {"parallel.cp=2"}).first == one.first);
  Shell shell;
  write_recipe(shell, 10);
  launch_with_prompts(shell, 1, {"train.eval.generate={prompts: []}"});
  CHECK(losses_below(shell.dir() / "runs/tiny") == one.second);
  CHECK_FALSE(fs::exists(run_of(shell) / "generated.jsonl"));
}

TEST_CASE("prompts that cannot be continued are errors before anything starts") {
  Shell shell;
  write_recipe(shell, 10);
  const auto refused = [&](const std::string& setting) {
    const Outcome outcome =
        shell.mtl({"launch", "train.yaml", "train.eval.generate={" + setting + "}"});
    CHECK(outcome.code == 3);
    return outcome.err;
  };
  const std::string both = refused("prompts: [the quick brown, \"\"], tokens: 3");
  CHECK(has(both, "error[generate.room]: prompt 1 has 15 tokens and is to be continued by 3"));
  CHECK(has(both, "error[generate.prompt]: prompt 2 is empty"));
  CHECK(has(refused("prompts: [the], tokens: 15"), "use train.eval.generate.tokens=14"));
  CHECK(has(refused("prompts: [the QUICK]"), "error[data.token]: prompt 1: "));
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
  // There is something to see where there is nothing to evaluate on.
  const Outcome plan = shell.mtl({"plan", "train.yaml", "data.split=[1]", "train.eval.every=5",
                                  "train.eval.generate={prompts: [the], tokens: 8}"});
  CHECK(plan.code == 0);
  CHECK_FALSE(has(plan.err, "no_validation"));
}
