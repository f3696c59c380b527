// Adapters from the command line: trained beside a model, resumed, and given to others.
#include <doctest/doctest.h>

#include "cli/program.h"
#include "cli/tiny_run.h"

using namespace mtl::test;

namespace adapters_test {

namespace {

// A run beside runs/base, as it is named.
std::vector<std::string> beside_base(const std::string& name, int steps) {
  return {"run.name=" + name, "init.from=runs/base", "lora.rank=4", "lora.alpha=8",
          "train.steps=" + std::to_string(steps)};
}

// Of the one run of that name, the state of its last checkpoint.
json state_of_last(const Shell& shell, const std::string& name) {
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(shell.dir() / "runs" / name)) {
    if (entry.is_directory() && !entry.is_symlink()) runs.push_back(entry.path());
  }
  REQUIRE(runs.size() == 1);
  return state_of(runs[0]);
}

}  // namespace

TEST_CASE("adapters are trained beside a model, resumed in another layout, and exported") {
  const Shell shell;
  write_recipe(shell, 10);
  launch(shell, 1, {"run.name=base"});
  const Outcome alone = launch(shell, 1, {"run.name=alone", "lora.rank=4", "train.steps=1"});
  CHECK(has(alone.err, "random weights"));
  const Outcome adapted = launch(shell, 2, beside_base("talk", 5));
  CHECK(has(adapted.err, "of adapters trained)"));
  // In another layout, to the end.
  const Outcome resumed =
      launch(shell, 2, {"run.name=talk", "lora.rank=4", "lora.alpha=8", "train.steps=10"},
             {"parallel.tp=2", "precision.dtype=bf16"});
  CHECK(has(resumed.err, "resume.rounds"));
  CHECK(!has(resumed.err, "random weights"));
  const json state = state_of_last(shell, "talk");
  CHECK(state["step"] == 10);
  CHECK(state["model"]["lora_rank"] == 4);
  CHECK(has(state["base"]["from"], "runs/base"));

  const auto ckpt = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "ckpt");
    const Outcome outcome = shell.mtl(args);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    return outcome;
  };
  ckpt({"verify", "runs/talk"});
  ckpt({"export", "runs/talk", "-o", "merged"});
  ckpt({"export", "--format", "peft", "runs/talk", "-o", "adapters"});
  CHECK(json::parse(file_text(shell.dir() / "adapters/adapter_config.json"))["r"] == 4);
  for (const char* format : {"peft", "megatron-split"}) {
    const Outcome cut = shell.mtl({"ckpt", "export", "--format", format, "--max_shard_size", "1MB",
                                   "runs/talk", "-o", "cut"});
    CHECK(cut.code == 2);
    CHECK(has(cut.err, "--max_shard_size belongs to --format hf"));
  }
  const auto text_of = [&](const std::string& model) {
    const Outcome outcome =
        shell.mtl({"generate", "--tokens", "20", "--temperature", "0", model, "the "});
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  ckpt({"import", "merged", "-o", "runs/back"});
  CHECK(text_of("runs/talk") == text_of("runs/back"));
  ckpt({"export", "runs/base", "-o", "plain"});
  CHECK(file_text(shell.dir() / "merged/model.safetensors") !=
        file_text(shell.dir() / "plain/model.safetensors"));

  // A rank of another width is another model; and so is none.
  for (const char* other : {"lora.rank=2", "lora.rank=0", "lora.targets=[qkv]"}) {
    std::vector<std::string> settings = beside_base("talk", 10);
    settings.insert(settings.begin(), {"launch", "train.yaml"});
    settings.push_back(other);
    const Outcome refused = shell.mtl(settings);
    CAPTURE(refused.err);
    CHECK(refused.code == 3);
    CHECK(has(refused.err, "resume.mismatch"));
    CHECK(has(refused.err, "lora."));
  }
  CHECK(shell.mtl({"ckpt", "merge", "runs/talk"}).code == 2);
  CHECK(shell.mtl({"ckpt", "average", "runs/talk", "runs/talk", "-o", "mean"}).code == 2);
  const Outcome none = shell.mtl({"ckpt", "import", "adapters", "-o", "runs/none"});
  CHECK(none.code == 6);
  CHECK(has(none.err, "merge_and_unload"));
}

}  // namespace adapters_test
