// From lines of conversations to a model that answers, by the commands of
// docs/how-to/train-on-conversations.md.
#include <fmt/format.h>

#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE("a model learns to answer, asks nothing, and ends where its answer does") {
  Shell shell;
  std::string lines, text;
  const std::pair<const char*, const char*> known[] = {
      {"one", "un"}, {"two", "deux"}, {"three", "trois"}};
  for (int i = 0; i < 60; ++i) {
    const auto& [asked, answer] = known[i % 3];
    lines += json{{"messages",
                   {{{"role", "user"}, {"content", asked}},
                    {{"role", "assistant"}, {"content", answer}}}}}
                 .dump() +
             "\n";
    text += fmt::format("User:\n{}\n\nAssistant:\n{}\n", asked, answer);
  }
  shell.write("text.txt", text);
  shell.write("chat.jsonl", lines);
  shell.write("train.yaml",
              "model: {layers: 1, hidden: 32, heads: 2}\n"
              "data: {train: talk, sampler: best_fit}\n"
              "train: {steps: 120, seq_len: 64, global_batch: 4}\n"
              "lr: {max: 0.01, warmup: 5}\n"
              "run: {name: tiny}\n");
  const auto must = [&](const std::vector<std::string>& args) {
    const Outcome outcome = shell.mtl(args);
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    return outcome;
  };
  must({"data", "train-tokenizer", "--vocab", "300", "-o", "tok.json", "text.txt"});
  const Outcome made = must({"data", "tokenize", "--tokenizer", "tok.json", "--chat", "plain", "-o",
                             "talk", "chat.jsonl"});
  CHECK(made.err.find("talk: 60 documents, ") != std::string::npos);
  CHECK(made.err.find(" are answers, which are learned") != std::string::npos);
  const Outcome preview = must({"data", "preview", "talk", "--documents", "1"});
  CHECK(preview.out.find("  > un<|endoftext|>\n") != std::string::npos);
  const Outcome trained = must({"launch", "--num_processes", "2", "train.yaml"});
  // Of 64 tokens of a sequence few are of answers.
  const size_t learned = trained.err.find(" learned=0.");
  REQUIRE(learned != std::string::npos);
  const double share = std::stod(trained.err.substr(learned + 9));
  CHECK(share > 0.02);
  CHECK(share < 0.6);
  for (const auto& [asked, answer] : known) {
    CHECK(must({"generate", "--chat", "plain", "--temperature", "0", "tiny", asked}).out ==
          std::string(answer) + "\n");
  }
  const Outcome alone = shell.mtl({"generate", "--system", "x", "tiny", "one"});
  CHECK(alone.code == 2);
  const Outcome other = shell.mtl({"generate", "--chat", "chatml", "tiny", "one"});
  CHECK(other.code == 6);
  CHECK(other.err.find("which the tokenizer has not") != std::string::npos);
  CHECK(shell.mtl({"data", "tokenize", "--chat", "plain", "--append_eod", "-o", "x", "chat.jsonl"})
            .code == 2);
  CHECK(shell
            .mtl({"data", "tokenize", "--chat", "plain", "--tokenizer", "tok.json", "-o", "x",
                  "text.txt"})
            .code == 2);
}
