// How errors in train.yaml look, and where unknown keys and values lead.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/spec/load.h"
#include "runtime/spec/schema.h"
#include "runtime/spec/values.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("quotes are to be removed where that is all there is to mend") {
  const TempDir dir;
  const std::string rest = "train: {global_batch: 8, seq_len: 32, steps: 10}\ndata: {train: a}\n";
  const auto problem = [&](const std::string& layers) {
    const Loaded loaded =
        load(dir, "model: {layers: " + layers + ", hidden: 64, heads: 4}\n" + rest);
    REQUIRE(loaded.problems.size() == 1);
    return loaded.problems[0].what + " | " + loaded.problems[0].help;
  };
  CHECK(problem("\"2\"") == "model.layers: \"2\" in quotes is text | remove the quotes");
  CHECK(problem("\"two\"").starts_with("model.layers: `two` is not a whole number | give a"));
  CHECK(problem("\"0\"").starts_with("model.layers cannot be `0` | give a"));
}

TEST_CASE("one error of each kind, as it is printed") {
  const TempDir dir;
  const Loaded loaded = load(
      dir,
      "model:\n"
      "  layers: \"2\"\n"
      "  hidden_size: 64\n"
      "  heads: 4\n"
      "train:\n"
      "  global_batch: 0\n"
      "  seq_len: 32\n"
      "precision: {dtype: int8}\n",
      {.train_yaml = {}, .environment = {{"MTL_TRAIN__STEP", "5"}}, .overrides = {"train.steps"}});
  std::string all;
  for (const Diagnostic& problem : loaded.problems) all += render(problem);
  CHECK(all == fmt::format(R"(error[config.type]: model.layers: "2" in quotes is text
  --> {0}:2:11
  2 |   layers: "2"
    |           ^
  help: remove the quotes
error[config.unknown_key]: model.hidden_size is not a setting
  --> {0}:3:3
  3 |   hidden_size: 64
    |   ^
  help: did you mean `hidden`?
error[config.range]: train.global_batch cannot be `0`
  --> {0}:6:17
  6 |   global_batch: 0
    |                 ^
  help: give a whole number from 1 to 1000000000, or auto (`train.accumulate` decides)
error[config.enum]: precision.dtype cannot be `int8`
  --> {0}:8:20
  8 | precision: {{dtype: int8}}
    |                    ^
  help: give one of fp32 or bf16 or fp16 or fp8
warning[config.environment]: MTL_TRAIN__STEP is not a setting and was ignored
  --> environment variable MTL_TRAIN__STEP
  help: did you mean `MTL_TRAIN__STEPS`?
error[config.override]: `train.steps` is not of the form key=value
  --> command line
  help: write for example `train.steps=100`
error[config.missing]: data.train is required and not given
  --> {0}
  help: add the section `data:` with `train: input.txt`
error[config.missing]: train.steps, train.samples or train.tokens is required and not given
  --> {0}:5:1
  5 | train:
    | ^
  help: add `steps: 1000` under `train:`
)",
                           loaded.file));
}

TEST_CASE("unknown keys lead to the key that was meant") {
  const auto help = [](const std::string& override_text) {
    const std::string text = refusal(override_text);
    CHECK(text.starts_with("config.unknown_key"));
    return text.substr(text.find(" | ") + 3);
  };
  CHECK(help("model.hiden=1") == "did you mean `hidden`?");
  CHECK(help("model.num_layers=1") == "did you mean `layers`?");
  CHECK(help("model.n-head=1") == "did you mean `heads`?");
  CHECK(help("train.learning_rate=1") == "did you mean `lr.max`: `max` under `lr:`?");
  CHECK(help("model.steps=1") == "did you mean `train.steps`: `steps` under `train:`?");
  CHECK(help("optimizer.lr=1") == "did you mean `lr.max`: `max` under `lr:`?");
  CHECK(help("train.warmup_steps=1").find("`lr.warmup`") != std::string::npos);
  CHECK(help("modle.hidden=1").find("`model.hidden`") != std::string::npos);
  CHECK(help("batch_size=1").find("`train.micro_batch`") != std::string::npos);
  CHECK(help("tokenizer.type=bytes").find("tokenizer.type`") != std::string::npos);
  CHECK(help("steps=1").find("`train.steps`") != std::string::npos);
  CHECK(help("model.xyzzy_plugh=1").starts_with("model has: layers, hidden, "));
  CHECK(help("model.num_key_value_heads=2") == "did you mean `kv_heads`?");
  CHECK(help("model.rope_theta=1e4").find("`model.position.base`") != std::string::npos);
  CHECK(help("train.gradient_accumulation_steps=4") == "did you mean `accumulate`?");
  CHECK(help("parallel.sequence_parallel=true") == "did you mean `sp`?");
  CHECK(help("parallel.use_distributed_optimizer=true") == "did you mean `zero`?");
  CHECK(help("train.gradient_checkpointing=true").find("`recompute.mode`") != std::string::npos);
  CHECK(help("recompute.recompute_num_layers=2") == "did you mean `layers`?");
  CHECK(help("trainer.accumulate_grad_batches=2").find("`train.accumulate`") != std::string::npos);
  CHECK(help("precision.initial_loss_scale=2").find("`precision.loss_scale.initial`") !=
        std::string::npos);
  CHECK(help("xyzzy_plugh=1").starts_with("train.yaml has: run, model, "));
  CHECK(help("train.steps.x=1").find("train.steps") != std::string::npos);
  // Keys with dots are paths on the command line only.
  const Loaded dotted = load_more("train.seed: 1\n");
  REQUIRE(dotted.problems.size() == 1);
  CHECK(dotted.problems[0].help == "write `seed` on a line of its own under `train:`");
  CHECK(dotted.problems[0].place->line == 11);
}

TEST_CASE("no part of a setting in a command line becomes a comment") {
  CHECK(refusal("run.name=run #3") ==
        "config.override: run.name: in `run #3` all from ` #` on would be a comment | put it in "
        "quotes within those of the shell: 'run.name=\"...\"'");
  CHECK(code_of("data.train=part #2.txt") == "config.override");
  CHECK(refusal("run.name=%x") ==
        "config.override: run.name: `%x` is a directive in YAML, and no value | put it in quotes "
        "within those of the shell: 'run.name=\"...\"'");
  CHECK(refusal("run.name=#x").find("`#x` is a comment in YAML") != std::string::npos);
  const Loaded quoted = load_overrides({"run.name=\"run #3\"", "data.train=part#2.txt"});
  CHECK(quoted.problems.empty());
  CHECK(quoted.resolved.spec.run.name == "run #3");
  CHECK(quoted.resolved.spec.data.train == "part#2.txt");
}

TEST_CASE("what other trainers have and this version lacks is refused by name") {
  for (const char* setting : {"model.moe.capacity=1.25", "parallel.order=x", "launch={kind: local}",
                              "log.jsonl=x", "train.epochs=2", "health={rerun: true}"}) {
    CAPTURE(setting);
    CHECK(refusal(setting).find("not available in this version") != std::string::npos);
    CHECK(code_of(setting) == "config.unknown_key");
  }
  for (const char* setting :
       {"model.activation=relu", "optimizer.type=adafactor", "lr.schedule=polynomial",
        "data.tokenizer.type=tiktoken", "recompute.modules=[moe]"}) {
    CAPTURE(setting);
    CHECK(refusal(setting).find("not available") != std::string::npos);
    CHECK(code_of(setting) == "config.enum");
  }
  CHECK(refusal("model.position.scaling.type=dynamic").find("the length of each text") !=
        std::string::npos);
  CHECK(refusal("model.position.scaling.type=su").find("did you mean `longrope`?") !=
        std::string::npos);
  CHECK(refusal("model.position.type=yarn")
            .find("did you mean `rope` with `model.position.scaling.type=yarn`?") !=
        std::string::npos);
  CHECK(refusal("precision.dtype=bfloat16").find("did you mean `bf16`?") != std::string::npos);
  CHECK(refusal("precision.dtype=BF16").find("did you mean `bf16`?") != std::string::npos);
  CHECK(refusal("precision.dtype=no").find("did you mean `fp32`?") != std::string::npos);
  CHECK(refusal("model.norm.type=RMSNorm").find("did you mean `rmsnorm`?") != std::string::npos);
  CHECK(refusal("lr.schedule=WSD").find("did you mean `wsd`?") != std::string::npos);
  CHECK(refusal("lr.schedule=cosin").find("did you mean `cosine`?") != std::string::npos);
  CHECK(refusal("checkpoint.resume=true").find("did you mean `auto`?") != std::string::npos);
}

TEST_CASE("the tables name nothing twice and refuse nothing that exists") {
  std::vector<std::string> keys = spec_keys();
  std::sort(keys.begin(), keys.end());
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
  for (const spec::Unavailable& key : spec::unavailable()) {
    CAPTURE(key.key);
    CHECK(spec::find_row(key.key) == nullptr);
    CHECK_FALSE(spec::is_section(key.key));
  }
  for (const std::string& section : spec::sections()) {
    CAPTURE(section);
    CHECK_FALSE(spec::section_doc(section).empty());
  }
  const TrainSpec built_in;
  for (const spec::Row& row : spec::schema()) {
    CAPTURE(row.key);
    CHECK(row.doc.ends_with('.'));
    TrainSpec any;
    if (spec::is_integer(row.field(any))) {
      CHECK(row.min >= (row.key == "data.eod" ? -1 : 0));  // of ids, 0 is one
      CHECK(row.max <= 0x1p53);
      CHECK_FALSE((row.above_min || row.below_max));
    }
    const bool is_alternative =
        std::any_of(spec::alternatives().begin(), spec::alternatives().end(),
                    [&](const spec::Alternatives& group) {
                      return group.required && std::find(group.keys.begin(), group.keys.end(),
                                                         row.key) != group.keys.end();
                    });
    if (row.required) CHECK_FALSE(row.example.empty());
    // A default must itself be allowed.
    if (!row.required && !is_alternative) {
      CHECK(texts(load_overrides({row.key + "=" + spec::print_value(row, built_in)})).empty());
    }
    for (const spec::Refused& refused : row.refused) {
      for (const spec::Choice& choice : row.choices) CHECK(refused.value != choice.value);
    }
  }
}
