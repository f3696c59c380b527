// From which layer a value comes: files, environment, command line; and files that are none.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/spec/load.h"
#include "runtime/spec/schema.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("each layer wins over the weaker ones") {
  // Bit i: layer i sets lr.warmup to i + 1.
  for (int mask = 0; mask < 16; ++mask) {
    CAPTURE(mask);
    SpecSources sources;
    std::string text;
    if (mask & 1) sources.default_config = {{"lr.warmup", "1"}};
    if (mask & 2) text = "lr: {warmup: 2}\n";
    if (mask & 4) sources.environment = {{"MTL_LR__WARMUP", "3"}};
    if (mask & 8) sources.overrides = {"lr.warmup=7", "lr.warmup=4"};
    sources.default_config_path = "/etc/default_config.yaml";
    const Loaded loaded = load_more(text, sources);
    CHECK(texts(loaded).empty());
    int strongest = 0;
    for (int layer = 0; layer < 4; ++layer) {
      if (mask & (1 << layer)) strongest = layer + 1;
    }
    CHECK(loaded.resolved.spec.lr.warmup == strongest);
    const Origin origins[] = {Origin::built_in, Origin::default_config, Origin::train_yaml,
                              Origin::environment, Origin::command_line};
    CHECK(loaded.resolved.origins.at("lr.warmup") == origins[strongest]);
    const std::string files[] = {loaded.file, "/etc/default_config.yaml", loaded.file,
                                 "environment variable MTL_LR__WARMUP", "command line"};
    const Place place = loaded.resolved.place_of("lr.warmup");
    CHECK(place.file == files[strongest]);
    CHECK(place.line == (strongest == 2 ? 11 : 0));
    CHECK(place.column == (strongest == 2 ? 14 : 0));
  }
}

TEST_CASE("a wrong value is told even where a stronger layer hides it") {
  const Loaded loaded =
      load_more("lr: {warmup: -1}\n", {.train_yaml = {},
                                       .default_config = {{"precision.dtype", "int8"}},
                                       .default_config_path = "dc.yaml",
                                       .environment = {{"MTL_LR__WARMUP", "x"}},
                                       .overrides = {"lr.warmup=3", "precision.dtype=bf16"}});
  REQUIRE(loaded.problems.size() == 3);
  CHECK(loaded.problems[0].code == "config.enum");
  CHECK(loaded.problems[0].place->file == "dc.yaml");
  CHECK(loaded.problems[1].code == "config.range");
  CHECK(loaded.problems[2].code == "config.type");
  CHECK(loaded.problems[2].place->file == "environment variable MTL_LR__WARMUP");
}

TEST_CASE("the environment") {
  const Loaded loaded = load_more("", {.train_yaml = {},
                                       .environment = {{"MTL_MODEL__NORM__EPS", "1e-6"},
                                                       {"MTL_OPTIMIZER__BETAS", "[0.5, 0.6]"},
                                                       {"MTL_TRAIN__MICRO_BATCH", "2"},
                                                       {"MTL_PROGRESS_FD", "7"},
                                                       {"PATH", "x"},
                                                       {"MTL_TRAIN_STEPS", "5"},
                                                       {"MTL_MODL__LAYERS", "5"},
                                                       {"MTL_QUITE__OTHER", "5"}}});
  CHECK(loaded.resolved.spec.model.norm.eps == 1e-6);
  CHECK(loaded.resolved.spec.optimizer.beta2 == 0.6);
  CHECK(loaded.resolved.spec.train.micro_batch == 2);
  REQUIRE(loaded.problems.size() == 3);
  for (const Diagnostic& problem : loaded.problems) {
    CHECK(problem.code == "config.environment");
    CHECK(problem.severity == Diagnostic::Severity::warning);
  }
  CHECK(loaded.problems[0].help == "did you mean `MTL_TRAIN__STEPS`?");
  CHECK(loaded.problems[1].help == "did you mean `MTL_MODEL__LAYERS`?");
  CHECK(loaded.problems[2].help == "unset it; settings are written MTL_<SECTION>__<KEY>");
  CHECK(spec::environment_name("train.eval.every") == "MTL_TRAIN__EVAL__EVERY");
}

TEST_CASE("overrides that are none") {
  for (const char* setting : {"train.steps", "=5", "", "--train.steps=5", "-x", "---"}) {
    CAPTURE(setting);
    CHECK(code_of(setting) == "config.override");
  }
  CHECK(refusal("--train.steps=5").find("write `train.steps=5`") != std::string::npos);
  CHECK(refusal("optimizer.betas=[0.9, 0.95") ==
        "yaml.syntax: optimizer.betas: `[0.9, 0.95` is not valid YAML: this `[` is never closed | "
        "add the `]`; separate items with commas");
  CHECK(code_of("model=5") == "config.type");
  CHECK(code_of("model={hiden: 5}") == "config.unknown_key");
  CHECK(load_overrides({"model="}).problems.empty());
}

TEST_CASE("files that hold no settings") {
  const TempDir dir;
  CHECK(load(dir, "").problems.size() == 7);  // the required keys
  CHECK(load(dir, "").problems[0].code == "config.missing");
  CHECK(texts(load(dir, "- 1\n")) ==
        std::vector<std::string>{"config.type: train.yaml holds no sections"});
  CHECK(texts(load(dir, "just words\n")).size() == 1);
  CHECK(texts(load(dir, "model: 5\ntrain: [1]\ndata:\n"))[0] ==
        "config.type: model is a section, not a value");
  // After an error of syntax nothing is said to be missing.
  const Loaded broken = load(dir, "model:\n  layers: [2\n");
  REQUIRE(broken.problems.size() >= 1);
  CHECK(broken.problems[0].code == "yaml.syntax");
  for (const Diagnostic& problem : broken.problems) CHECK(problem.code != "config.missing");

  Diagnostics diagnostics;
  load_spec({.train_yaml = (dir.path() / "absent.yaml").string()}, diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].code == "file.missing");
}

TEST_CASE("JSON is a train.yaml too") {
  const TempDir dir;
  const Loaded loaded = load(
      dir, R"({"model":{"layers":2,"hidden":64,"heads":4,"bias":false,"norm":{"type":"layernorm"}},
"train":{"global_batch":8,"seq_len":32,"steps":1000},"data":{"train":"a b.txt","split":[9,1.5]}})");
  CHECK(texts(loaded).empty());
  CHECK(loaded.resolved.spec.data.train == "a b.txt");
  CHECK(loaded.resolved.spec.data.split == std::vector<double>{9, 1.5});
}
