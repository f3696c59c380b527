// Values of several parts, and keys that exclude each other.
#include <map>

#include <doctest/doctest.h>

#include "runtime/spec/load.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("what holds from a step or epoch on") {
  using Ramp = std::map<int64_t, int64_t>;
  const auto accumulate = [](const std::string& text) {
    const Loaded loaded = load_overrides({"train.global_batch=auto", "train.accumulate=" + text});
    CHECK(texts(loaded).empty());
    return loaded.resolved.spec.train.accumulate;
  };
  CHECK(accumulate("4") == Ramp{{0, 4}});
  CHECK(accumulate("{0: 8, 4: 4, 8: 1}") == Ramp{{0, 8}, {4, 4}, {8, 1}});
  CHECK(accumulate("{\"0\": 1_000, 1.5k: 1e1}") == Ramp{{0, 1000}, {1500, 10}});
  CHECK(load_overrides({"train.accumulate=4", "train.accumulate=auto"})
            .resolved.spec.train.accumulate.empty());
  const std::string like =
      "give a whole number from 1 to 1000000000, or a map to such numbers like "
      "{0: 8, 4: 4, 8: 1}, or auto (`train.global_batch` decides)";
  CHECK(refusal("train.accumulate=four") ==
        "config.type: train.accumulate: `four` is not a whole number | " + like);
  CHECK(refusal("train.accumulate=[8, 4]") == "config.type: train.accumulate is a list | " + like);
  CHECK(refusal("train.accumulate={}") == "config.range: train.accumulate is empty | " + like);
  CHECK(refusal("optimizer.betas=0.9,0.99999999")
            .starts_with(
                "config.range: optimizer.betas cannot be `0.99999999`, which is 1 in fp32 |"));
  CHECK(refusal("optimizer.muon.momentum=0.99999999")
            .starts_with("config.range: optimizer.muon.momentum cannot be `0.99999999`, which is"));
  CHECK(refusal("optimizer.muon.momentum=1").find("fp32") == std::string::npos);
  CHECK(refusal("train.accumulate=0") == "config.range: train.accumulate cannot be `0` | " + like);
  CHECK(refusal("train.accumulate={0: 8, 4: 0}") ==
        "config.range: train.accumulate: `4` cannot be `0` | " + like);
  CHECK(refusal("train.accumulate={0: 8, 4: [1]}") ==
        "config.type: train.accumulate: `4` is not a whole number | " + like);
  CHECK(refusal("train.accumulate={0: 8, 4: '1'}").starts_with("config.type: "));
  CHECK(refusal("train.accumulate={4: 4, 8: 1}") ==
        "config.range: train.accumulate begins with `4` | begin with 0, like {0: 8, 4: 4, 8: 1}");
  CHECK(refusal("train.accumulate={0: 8, 8: 1, 4: 4}") ==
        "config.range: train.accumulate: `4` stands behind 8 | write the keys in ascending order, "
        "like {0: 8, 4: 4, 8: 1}");
  // The same key, written in two ways.
  CHECK(code_of("train.accumulate={0: 8, 1000: 4, 1k: 2}") == "config.range");
  CHECK(code_of("train.accumulate={0: 8, -4: 4}") == "config.range");
  CHECK(code_of("train.accumulate={0: 8, 2e12: 4}") == "config.range");
  CHECK(code_of("train.accumulate={first: 8}") == "config.type");
  CHECK(code_of("train.accumulate=") == "config.type");
  // The place is that of the part that is wrong.
  const TempDir dir;
  const Loaded placed = load(dir,
                             "model: {layers: 2, hidden: 64, heads: 4}\n"
                             "data: {train: input.txt}\n"
                             "train:\n"
                             "  seq_len: 32\n"
                             "  steps: 10\n"
                             "  accumulate:\n"
                             "    0: 8\n"
                             "    4: none\n");
  REQUIRE(placed.problems.size() == 1);
  CHECK(placed.problems[0].place->line == 8);
  CHECK(placed.problems[0].place->column == 8);
}

TEST_CASE("a word or a list of whole numbers") {
  const auto layout = [](const std::string& text) {
    const Loaded loaded = load_overrides({"parallel.stage_layout=" + text});
    CHECK(texts(loaded).empty());
    return loaded.resolved.spec.parallel;
  };
  CHECK(layout("balanced").stage_balance == "balanced");
  CHECK(layout("[3, 0, 4]").stage_layout == std::vector<int64_t>{3, 0, 4});
  // The stronger layer takes the weaker one's list back.
  const Loaded loaded =
      load_more("parallel: {stage_layout: [1, 1]}\n",
                {.train_yaml = {}, .overrides = {"parallel.stage_layout=uniform"}});
  CHECK(loaded.resolved.spec.parallel.stage_layout.empty());
  const std::string like =
      "give uniform or balanced or a list of whole numbers from 0 to 100000, like [3, 4, 4, 3]";
  CHECK(refusal("parallel.stage_layout=[]") ==
        "config.range: parallel.stage_layout is empty | " + like);
  CHECK(refusal("parallel.stage_layout=[3, -1]") ==
        "config.range: parallel.stage_layout: item 2 cannot be `-1` | " + like);
  CHECK(refusal("parallel.stage_layout=[3, x]") ==
        "config.type: parallel.stage_layout: item 2: `x` is not a whole number | " + like);
  CHECK(refusal("parallel.stage_layout=[[3]]") ==
        "config.type: parallel.stage_layout: item 1 is not a whole number | " + like);
  CHECK(code_of("parallel.stage_layout={a: 1}") == "config.type");
  CHECK(code_of("parallel.stage_layout=3") == "config.enum");
  CHECK(refusal("parallel.stage_layout=balance").find("`balanced`") != std::string::npos);
}

TEST_CASE("a list of words") {
  const Loaded loaded = load_overrides({"recompute.modules=[mlp, 'norm']"});
  CHECK(texts(loaded).empty());
  CHECK(loaded.resolved.spec.recompute.modules == std::vector<std::string>{"mlp", "norm"});
  CHECK(loaded.resolved.spec.recompute.module_layers.empty());
  const std::string some =
      "give a list of some of core_attn, mlp_act, norm, latent_up, mlp, perhaps with whole numbers "
      "from 1 to "
      "100000, like [norm, mlp_act: 7]";
  CHECK(refusal("recompute.modules=[]") == "config.range: recompute.modules is empty | " + some);
  CHECK(refusal("recompute={modules: mlp}") ==
        "config.type: recompute.modules is not a list | write [mlp]");
  CHECK(refusal("recompute.modules=[mlp, everything]") ==
        "config.enum: recompute.modules cannot be `everything` | " + some);
  CHECK(refusal("recompute.modules=[layernorm]").find("did you mean `norm`?") != std::string::npos);
  CHECK(refusal("recompute.modules=[mlp, norm, mlp]") ==
        "config.range: recompute.modules has `mlp` twice | remove one of them");
  CHECK(refusal("recompute.modules=[norm, [mlp]]") ==
        "config.type: recompute.modules: item 2 is neither a word nor one with a number like "
        "`mlp: 2` | " +
            some);
  CHECK(code_of("recompute.modules={mlp: true}") == "config.type");
}

TEST_CASE("words with numbers") {
  using Layers = std::map<std::string, int64_t>;
  for (const char* text :
       {"[norm, mlp_act: 7]", "[norm, {mlp_act: 7}]", "[norm, {\"mlp_act\": 7}]"}) {
    const Loaded loaded = load_overrides({std::string("recompute.modules=") + text});
    CHECK(texts(loaded).empty());
    CHECK(loaded.resolved.spec.recompute.modules == std::vector<std::string>{"norm", "mlp_act"});
    CHECK(loaded.resolved.spec.recompute.module_layers == Layers{{"mlp_act", 7}});
  }
  // The stronger layer takes the weaker one's numbers back.
  const Loaded loaded =
      load_more("recompute:\n  modules:\n    - mlp_act: 7\n    - norm\n",
                {.train_yaml = {}, .overrides = {"recompute.modules=[mlp_act, mlp: 2]"}});
  CHECK(loaded.resolved.spec.recompute.module_layers == Layers{{"mlp", 2}});
  CHECK(refusal("recompute.modules=[norm: 0]")
            .starts_with("config.range: recompute.modules: norm cannot be `0` | "));
  CHECK(refusal("recompute.modules=[norm: all]")
            .starts_with("config.type: recompute.modules: norm: `all` is not a whole number | "));
  CHECK(refusal("recompute.modules=[norm: [2]]")
            .starts_with("config.type: recompute.modules: norm is not a whole number | "));
  CHECK(code_of("recompute.modules=[norm: '2']") == "config.type");
  CHECK(code_of("recompute.modules=[norm: ]") == "config.type");
  CHECK(refusal("recompute.modules=[layernorm: 2]").find("did you mean `norm`?") !=
        std::string::npos);
  CHECK(code_of("recompute.modules=[{norm: 2, mlp: 3}]") == "config.type");
  CHECK(refusal("recompute.modules=[mlp, mlp: 3]") ==
        "config.range: recompute.modules has `mlp` twice | remove one of them");
}

TEST_CASE("the length and the batch are given once") {
  CHECK(texts(load_overrides({"train.steps=auto", "train.samples=10k"})).empty());
  CHECK(load_overrides({"train.steps=auto", "train.tokens=1G"}).resolved.spec.train.tokens ==
        1'000'000'000);
  CHECK(texts(load_overrides({"train.global_batch=auto", "train.accumulate=4"})).empty());
  CHECK(texts(load_overrides({"train.batch_ramp={0: 8, 100: 16}"})).empty());

  CHECK(refusal("train.steps=auto")
            .starts_with("config.missing: train.steps, train.samples or train.tokens is required "
                         "and not given | "));
  CHECK(refusal("train.global_batch=auto")
            .starts_with("config.missing: train.global_batch or train.accumulate is required"));
  // What is given badly is not missing too.
  CHECK(code_of("train.steps=0") == "config.range");

  const auto file_of = [](const Loaded& loaded) { return loaded.problems.at(0).place->file; };
  const Loaded stronger = load_overrides({"train.samples=100"});
  CHECK(texts(stronger) ==
        std::vector<std::string>{"config.conflict: train.steps and train.samples cannot be given "
                                 "together"});
  CHECK(file_of(stronger) == "command line");
  CHECK(stronger.problems[0].help ==
        fmt::format("keep one of them; train.steps comes from {}, and `train.steps=auto` takes it "
                    "back",
                    stronger.file));
  const TempDir dir;
  const Loaded same = load(dir,
                           "model: {layers: 2, hidden: 64, heads: 4}\n"
                           "data: {train: input.txt}\n"
                           "train:\n"
                           "  seq_len: 32\n"
                           "  tokens: 1M\n"
                           "  samples: 100\n"
                           "  steps: 10\n"
                           "  batch_ramp: {0: 4, 10: 8}\n"
                           "  accumulate: 8\n");
  CHECK(texts(same) ==
        std::vector<std::string>{
            "config.conflict: train.tokens, train.samples and train.steps cannot be given together",
            "config.conflict: train.batch_ramp and train.accumulate cannot be given together"});
  CHECK(same.problems[0].place->line == 7);
  CHECK(same.problems[0].help == "keep one of them");
  CHECK(same.problems[1].place->line == 9);
}

TEST_CASE("prompts are any texts, one or several") {
  const auto prompts = [](const std::string& value) {
    const Loaded loaded = load_overrides({"train.eval.generate.prompts=" + value});
    CHECK(texts(loaded).empty());
    return loaded.resolved.spec.train.eval.generate.prompts;
  };
  CHECK(prompts("Once") == std::vector<std::string>{"Once"});
  CHECK(prompts("[a, 1, 'b\"c']") == std::vector<std::string>{"a", "1", "b\"c"});
  CHECK(prompts("[]").empty());
  // As YAML has it, what ends with a colon is a key.
  CHECK(refusal("train.eval.generate.prompts=[ROMEO: x]") ==
        "config.type: train.eval.generate.prompts: item 1 is not a text (one with a colon stands "
        "in quotes) | give a list of texts, like [\"ROMEO:\", \"Once upon\"]");
}

TEST_CASE("validation sets have names, and are read back as they were") {
  const auto valid = [](const std::string& value) {
    return load_overrides({"data.valid=" + value});
  };
  const Loaded sets = valid("{web: a.txt, code: [b, {path: c d, weight: 2}], 7: '9'}");
  CHECK(sets.problems.size() == 1);  // some of a list have a weight
  const Loaded loaded = valid("{web: a.txt, code: [b, c d], 7: '9'}");
  CHECK(texts(loaded).empty());
  const TrainSpec::Data& data = loaded.resolved.spec.data;
  using Source = TrainSpec::Data::Source;
  REQUIRE(data.valid_sets.size() == 3);
  CHECK(data.valid_sets[0] == std::pair(std::string("web"), std::vector<Source>{{"a.txt", 0}}));
  CHECK(data.valid_sets[1].second == std::vector<Source>{{"b", 0}, {"c d", 0}});
  CHECK(data.valid_sets[2].first == "7");
  const std::string yaml = resolved_yaml(loaded.resolved);
  CHECK(yaml.find(
            R"(  valid: {"web": ["a.txt"], "code": ["b", "c d"], "7": ["9"]}  # command line)") !=
        std::string::npos);
  TempDir dir;
  const Loaded again = load(dir, yaml);
  CHECK(texts(again).empty());
  CHECK(again.resolved.spec.data.valid_sets == data.valid_sets);
  // A stronger value leaves nothing of them.
  CHECK(load(dir, yaml, {.train_yaml = {}, .overrides = {"data.valid=x"}})
            .resolved.spec.data.valid_sets.empty());
  CHECK(load(dir, yaml, {.train_yaml = {}, .overrides = {"data.valid=auto"}})
            .resolved.spec.data.valid_sets.empty());
}
