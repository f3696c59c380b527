// How long a run is, in steps, samples, tokens or epochs, and where it is when it goes on with
// another batch.
#include <set>
#include <utility>

#include <fmt/format.h>

#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE("a run may be as long as so many tokens") {
  Shell shell;
  write_recipe(shell, 1);
  shell.replace("train.yaml", "steps: 1\n", "tokens: 450\n");
  launch(shell, 1, {"log.every=1"});
  const json status = status_of(run_of(shell));
  CHECK(status["step"] == 8);  // of 64 tokens each
  CHECK(status["steps"] == 8);
}

TEST_CASE("accumulation by epoch changes the step of a run") {
  Shell shell;
  write_recipe(shell, 1);
  shell.replace("train.yaml", "global_batch: 4\n", "accumulate: {0: 64, 1: 8, 2: 1}\n");
  // 1034 sequences in an epoch: nine steps of 128 begin in the first, 58 of 16 in the second.
  const Outcome outcome = launch(shell, 2, {"parallel.pp=2", "train.steps=80"});
  CHECK(has(outcome.err, "128 sequences of 16 = 2048 tokens per step, 64 micro-batches"));
  CHECK(has(outcome.err, "; 16 from step 9; 2 from step 67"));
  const json state = state_of(run_of(shell));
  CHECK(state["step"] == 80);
  CHECK(state["samples"] == 9 * 128 + 58 * 16 + 13 * 2);
  CHECK(state["tokens"] == state["samples"].get<int64_t>() * 16);
}

TEST_CASE("a resumed run goes on behind the sequences that it has seen whatever its batch is now") {
  Shell shell;
  write_recipe(shell, 5);
  REQUIRE(shell.mtl({"launch", "train.yaml"}).code == 0);
  const fs::path run = run_of(shell);
  const std::string resolved = file_text(run / "resolved.yaml");
  // Another optimizer or seed is refused before anything of the run is written.
  for (const std::string setting : {"optimizer.type=sgd", "train.seed=77"}) {
    const Outcome refused = shell.mtl({"launch", "train.yaml", "train.steps=10", setting});
    CAPTURE(refused.err);
    CHECK(refused.code == 3);
    CHECK(has(refused.err, "error[resume.mismatch]"));
    CHECK(has(refused.err, setting.substr(0, setting.find('='))));
    CHECK(file_text(run / "resolved.yaml") == resolved);
    // Weights go on under another optimizer, in a run of its own.
    CHECK(has(refused.err, "--fresh with init.from=") == setting.starts_with("optimizer"));
  }
  const Outcome larger =
      shell.mtl({"launch", "train.yaml", "train.steps=10", "train.global_batch=8"});
  CAPTURE(larger.err);
  REQUIRE(larger.code == 0);
  const json state = state_of(run);
  CHECK(state["step"] == 10);
  CHECK(state["samples"] == 5 * 4 + 5 * 8);
}

TEST_CASE("a run whose length is given in samples trains that many though its batch changes") {
  struct {
    int before, after, step, samples;
  } const kRuns[] = {
      // 5 steps of the one, and of what is left whole steps of the other.
      {4, 8, 5 + 8, 5 * 4 + 8 * 8},
      {8, 4, 5 + 10, 5 * 8 + 10 * 4},
  };
  for (const auto& of : kRuns) {
    CAPTURE(of.before);
    Shell shell;
    write_recipe(shell, 5);
    const auto batch = [](int size) { return fmt::format("train.global_batch={}", size); };
    REQUIRE(shell.mtl({"launch", "train.yaml", batch(of.before)}).code == 0);
    shell.replace("train.yaml", "  steps: 5", "  samples: 80");
    const Outcome longer = shell.mtl({"launch", "train.yaml", batch(of.after)});
    CAPTURE(longer.err);
    REQUIRE(longer.code == 0);
    const fs::path run = run_of(shell);
    const json state = state_of(run);
    CHECK(state["step"] == of.step);
    CHECK(state["samples"] == of.samples);
    CHECK(has(file_text(run / "resolved.yaml"),
              fmt::format("  steps: {}  # for 80 samples: {} are consumed, by 5 steps of other "
                          "batches\n",
                          of.step, 5 * of.before)));
    const Outcome again = shell.mtl({"launch", "train.yaml", batch(of.after)});
    CHECK(again.code == 0);
    CHECK(has(again.err, fmt::format("is complete: {} samples are done, and train.samples is 80",
                                     of.samples)));
  }
}

TEST_CASE("a mixture is put in order as far as a run goes whose batch has shrunk") {
  Shell shell;
  write_recipe(shell, 10);
  shell.write("other.txt", file_text(shell.dir() / "corpus.txt"));
  std::vector<std::string> words = {"launch", "train.yaml", "data.tokenizer.type=bytes",
                                    "data.train=0.5 corpus.txt 0.5 other.txt",
                                    "train.global_batch=16"};
  REQUIRE(shell.mtl(words).code == 0);
  words.insert(words.end(), {"train.global_batch=4", "train.steps=20"});
  const Outcome outcome = shell.mtl(words);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const json state = state_of(run_of(shell));
  CHECK(state["samples"] == 10 * 16 + 10 * 4);
}

TEST_CASE("an order that follows from the length of a run stays when length and batch change") {
  Shell shell;
  write_recipe(shell, 5);
  // An epoch has some 1,050 sequences.
  const std::string sampler = "data.sampler=megatron";
  REQUIRE(shell.mtl({"launch", "train.yaml", sampler, "train.global_batch=200"}).code == 0);
  CHECK(state_of(run_of(shell))["data"]["orders"][0]["epochs"] == 1);
  const Outcome outcome =
      shell.mtl({"launch", "train.yaml", sampler, "train.global_batch=8", "train.steps=15"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const json state = state_of(run_of(shell));
  CHECK(state["samples"] == 5 * 200 + 10 * 8);
  const json orders = state["data"]["orders"];
  CHECK(orders[0]["epochs"] == 1);
  REQUIRE(orders[0]["then"].size() == 1);  // for the samples that the first does not have
  CHECK(orders[0]["then"][0]["epochs"] == 1);
}

TEST_CASE("epochs of accumulation are counted by the sequences that a run has seen") {
  Shell shell;
  write_recipe(shell, 2);
  shell.replace("train.yaml", "global_batch: 4\n", "accumulate: {0: 128, 1: 8}\n");
  // 1034 sequences in an epoch. Two steps of 512; then, with micro-batches of 2, 256 a step: one
  // that begins in the first epoch, and behind it 16 a step.
  launch(shell, 1, {"train.micro_batch=4"});
  const Outcome outcome = launch(shell, 1, {"train.micro_batch=2", "train.steps=5"});
  const json state = state_of(run_of(shell));
  CHECK(state["step"] == 5);
  CHECK(state["samples"] == 2 * 512 + 256 + 2 * 16);
  CHECK(has(outcome.err, "; 16 from step 3"));
}

TEST_CASE("an evaluation is of the same samples while the batch grows") {
  Shell shell;
  write_recipe(shell, 8);
  shell.replace("train.yaml", "  global_batch: 4\n",
                "  batch_ramp: {0: 2, 4: 8}\n  global_batch: 8\n");
  const Outcome outcome =
      shell.mtl({"launch", "train.yaml", "train.eval.every=2", "train.eval.iters=1", "lr.max=1e-30",
                 "optimizer.weight_decay=0"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  std::set<double> losses;
  for (const json& line : metrics_of(run_of(shell))) {
    if (line.contains("valid_loss")) losses.insert(line["valid_loss"].get<double>());
  }
  CHECK(losses.size() == 1);
}

TEST_CASE("a run does not go on as another model or with other documents") {
  Shell shell;
  write_recipe(shell, 5);
  const std::vector<std::string> base = {"launch", "train.yaml", "model.sliding_window=8",
                                         "data.eod=3", "data.mask_eod_loss=true"};
  REQUIRE(shell.mtl(base).code == 0);
  for (const auto& [setting, code] : {std::pair{"model.sliding_window=4", "resume.mismatch"},
                                      {"model.sliding_window=0", "resume.mismatch"},
                                      {"model.qkv_bias=false", "resume.mismatch"},
                                      {"model.norm.eps=0.001", "resume.mismatch"},
                                      {"data.eod=4", "resume.data"}}) {
    std::vector<std::string> words = base;
    words.insert(words.end(), {"train.steps=10", setting});
    const Outcome refused = shell.mtl(words);
    CAPTURE(refused.err);
    CHECK(refused.code == 3);
    CHECK(has(refused.err, fmt::format("error[{}]", code)));
    CHECK(has(refused.err, std::string(setting).substr(0, std::string(setting).find('='))));
  }
}

TEST_CASE("a run does not go on with another tokenizer or length, which is said once") {
  Shell shell;
  write_recipe(shell, 5);
  shell.replace("train.yaml", "type: chars", "type: bytes");
  REQUIRE(shell.mtl({"launch", "train.yaml"}).code == 0);
  const Outcome chars =
      shell.mtl({"launch", "train.yaml", "train.steps=10", "data.tokenizer.type=chars"});
  CAPTURE(chars.err);
  CHECK(chars.code == 3);
  CHECK(has(chars.err, "the tokenizer has changed since the checkpoint: its vocabulary is "));
  CHECK(has(chars.err, " here, 256 there"));
  CHECK(chars.err.find("error[") == chars.err.rfind("error["));
  const Outcome shorter = shell.mtl({"launch", "train.yaml", "train.steps=10", "train.seq_len=8"});
  CAPTURE(shorter.err);
  CHECK(shorter.code == 3);
  CHECK(has(shorter.err,
            "model.max_seq (as train.seq_len) is 8 here, 16 in the checkpoint\n"
            "  --> command line\n"));
}
