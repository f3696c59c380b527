// cli/run_request: what becomes of options, the environment and key=value.
#include "cli/run_request.h"

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "cli/launch.h"
#include "common/error.h"

using namespace mtl;

using Words = std::vector<std::string>;

namespace {

void give(RunOptions& options, const std::string& name, const std::string& text) {
  options.given.flags[name] = {{text}, "--" + name};
}

}  // namespace

TEST_CASE("options are weaker than key=value") {
  RunOptions options;
  CHECK(overrides(options, {"a.b=1"}) == Words{"a.b=1"});
  give(options, "mixed_precision", "bf16");
  options.fresh = true;
  CHECK(overrides(options, {"a.b=1"}) ==
        Words{"precision.dtype=bf16", "checkpoint.resume=never", "a.b=1"});
  CHECK(overrides(options, {"precision.dtype=fp32", "checkpoint.resume=must"}) ==
        Words{"precision.dtype=fp32", "checkpoint.resume=must"});
  // Only the whole key counts.
  CHECK(overrides(options, {"precision.dtypes=fp32"}).size() == 3);
  give(options, "mixed_precision", "no");
  give(options, "megatron_lm_tp_degree", "2");
  CHECK(overrides(options, {})[0] == "precision.dtype=fp32");
  CHECK(overrides(options, {})[1] == "parallel.tp=2");
  CHECK(overrides(options, {"parallel.tp=4"}).back() == "parallel.tp=4");
}

TEST_CASE("what follows train.yaml has to be key=value") {
  for (const char* word : {"steps", "=3", "other.yaml"}) {
    CAPTURE(word);
    CHECK_THROWS_AS(overrides({}, {word}), Error);
  }
  CHECK(overrides({}, {"data.train="}) == Words{"data.train="});
  CHECK(overrides({}, {"a=b=c"}) == Words{"a=b=c"});
}

TEST_CASE("settings in the environment have two underscores") {
  const char* const environment[] = {
      "PATH=/bin",   "MTL_TRAIN__STEPS=5", "MTL_LOG=debug",    "MTL_LR__MAX=1e-3=",
      "XMTL_A__B=1", "MTL_BROKEN__X",      "MTL_DATA__TRAIN=", nullptr};
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"MTL_DATA__TRAIN", ""}, {"MTL_LR__MAX", "1e-3="}, {"MTL_TRAIN__STEPS", "5"}};
  CHECK(settings_in_environment(environment) == expected);
  CHECK(settings_in_environment(nullptr).empty());
}

TEST_CASE("what is a train.yaml and what a program") {
  LaunchOptions options;
  CHECK(is_train_yaml(options, "train.yaml", false));
  CHECK(is_train_yaml(options, "dir/x.yml", false));
  CHECK_FALSE(is_train_yaml(options, "train.yaml", true));
  CHECK_FALSE(is_train_yaml(options, "train.py", false));
  CHECK_FALSE(is_train_yaml(options, "yaml", false));
  options.module = true;
  CHECK_FALSE(is_train_yaml(options, "pkg.yaml", false));
}

TEST_CASE("python3 stands in front of scripts and modules only") {
  LaunchOptions options;
  CHECK(program_argv(options, "s.py", {"-x"}) == Words{"python3", "-u", "s.py", "-x"});
  CHECK(program_argv(options, "./p", {"a"}) == Words{"./p", "a"});
  options.no_python = true;
  CHECK(program_argv(options, "s.py", {}) == Words{"s.py"});
  options.no_python = false;
  options.run_path = true;
  CHECK(program_argv(options, "s", {}) == Words{"python3", "-u", "s"});
  options.run_path = false;
  options.module = true;
  CHECK(program_argv(options, "pkg.mod", {"a"}) == Words{"python3", "-u", "-m", "pkg.mod", "a"});
}
