// cli/run_request: what becomes of options, the environment and key=value.
#include "cli/run_request.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "cli/launch/launch.h"
#include "common/error.h"

using namespace mtl;

namespace {

using Words = std::vector<std::string>;

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

TEST_CASE("a train.yaml has every setting of a job by the flags' names") {
  std::vector<std::string> flags, keys;
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.group == FlagGroup::slurm) flags.push_back("launch.slurm." + flag.name.substr(6));
    if (flag.group == FlagGroup::kubernetes) {
      flags.push_back("launch.kubernetes." + flag.name.substr(11));
    }
  }
  for (const std::string& key : spec_keys()) {
    if (key.starts_with("launch.slurm.") || key.starts_with("launch.kubernetes.")) {
      keys.push_back(key);
    }
  }
  std::sort(flags.begin(), flags.end());
  std::sort(keys.begin(), keys.end());
  CHECK(flags == keys);
}

TEST_CASE("the section launch of a train.yaml is weaker than flags and variables") {
  ResolvedSpec resolved;
  resolved.file = "train.yaml";
  const auto give = [&](const std::string& name, const std::string& text, Origin origin) {
    resolved.spec.launch.slurm[name] = {text};
    resolved.origins["launch.slurm." + name] = origin;
    resolved.places["launch.slurm." + name] = Place{"train.yaml", 12, 3};
  };
  give("partition", "file", Origin::train_yaml);
  give("time", "10", Origin::command_line);
  give("mem", "1G", Origin::environment);
  give("qos", "x", Origin::train_yaml);
  resolved.spec.launch.via = "slurm";
  resolved.origins["launch.via"] = Origin::train_yaml;
  LaunchGiven given;
  given.flags["slurm_qos"] = {{"flag"}, "--slurm_qos"};
  given.environment["slurm_mem"] = {{"2G"}, "MTL_SLURM_MEM"};
  add_launch_section(resolved, given);
  CHECK(given_text(given, "slurm_partition") == "file");
  CHECK(given.train_yaml["slurm_partition"].origin == "train.yaml:12");
  CHECK(given_text(given, "slurm_qos") == "flag");
  CHECK(given_text(given, "slurm_time") == "10");
  CHECK(given_text(given, "slurm_mem") == "2G");
  CHECK(given_text(given, "via") == "slurm");
  Diagnostics diagnostics;
  const LaunchRequest request = resolve_launch({}, given, true, diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(request.via == "slurm");
  CHECK(request.slurm.at("partition") == Words{"file"});
  CHECK(request.scheduler_origins.at("slurm_partition") == "train.yaml:12");
  // Inside a job the same files mean that it runs here; a flag submits another one.
  setenv("SLURM_JOB_ID", "1", 1);
  CHECK(resolve_launch({}, given, true, diagnostics).via.empty());
  given.flags["via"] = {{"slurm"}, "--via"};
  CHECK(resolve_launch({}, given, true, diagnostics).via == "slurm");
  unsetenv("SLURM_JOB_ID");
}

TEST_CASE("a job for a scheduler asks nothing of this machine") {
  LaunchGiven given;
  given.flags["via"] = {{"slurm"}, "--via"};
  given.flags["num_machines"] = {{"4"}, "--num_machines"};
  const auto resolved = [&](Diagnostics& diagnostics) {
    return resolve_launch({}, given, false, diagnostics);
  };
  Diagnostics none;
  LaunchRequest request = resolved(none);
  CHECK_FALSE(none.has_errors());  // no address, no machine_rank
  CHECK(request.max_nodes == 4);
  CHECK(request.local_ranks == 1);
  CHECK_FALSE(request.ranks_said);
  given.flags["slurm_gpus_per_node"] = {{"8"}, "--slurm_gpus_per_node"};
  CHECK(resolved(none).ranks == 32);
  given.flags.erase("num_machines");
  given.flags["nnodes"] = {{"2:4"}, "--nnodes"};
  request = resolved(none);
  CHECK_FALSE(none.has_errors());
  CHECK(request.elastic);
  given.flags["nproc_per_node"] = {{"gpu"}, "--nproc_per_node"};
  given.flags.erase("slurm_gpus_per_node");
  Diagnostics unknown;
  resolved(unknown);
  CHECK(unknown.has_errors());
  given.flags["hosts"] = {{"a,b"}, "--hosts"};
  Diagnostics hosts;
  resolved(hosts);
  CHECK(hosts.all()[0].code == "launch.conflict");
}
