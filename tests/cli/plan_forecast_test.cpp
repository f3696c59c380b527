// mtl plan on machines that are not at hand: --gpus, --gpu-type, --tune, --write, --simulate.
#include "cli/plan/plan_forecast.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "common/error.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using nlohmann::json;

namespace {

// 7 B, whose data are a line of text.
void write_7b(const Shell& shell) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "the quick brown fox. ";
  shell.write("t.txt", text);
  shell.write("train.yaml",
              "# seven billion\n"
              "model: {layers: 32, hidden: 4096, heads: 32, ffn: 11008, activation: swiglu}\n"
              "train:\n  global_batch: 128  # sequences\n  seq_len: 4096\n  tokens: 1e12\n"
              "parallel:\n  tp: 8  # all of a node\n"
              "precision: {dtype: bf16}\n"
              "data: {train: t.txt, tokenizer: {type: bytes}}\n");
}

}  // namespace

TEST_CASE("a plan for GPUs that are not there says step time and days") {
  Shell shell;
  write_7b(shell);
  const Outcome plain = shell.mtl({"plan", "--num_processes", "8", "train.yaml"});
  REQUIRE(plain.code == 0);
  CHECK_FALSE(has(plain.out, "forecast on"));
  const Outcome text = shell.mtl({"plan", "--gpus", "64", "--gpu-type", "h200", "train.yaml"});
  REQUIRE(text.code == 0);
  CHECK(has(text.out, "\nforecast on 64 x H200 141 GB (8 nodes)\n  step "));
  for (const char* part : {"tokens/s", "MFU ", "  computes  matrix products", "  waits ",
                           "  memory ", "  sends ", "GPU-hours", "grid        64 ranks"}) {
    CAPTURE(part);
    CHECK(has(text.out, part));
  }
  // What others report of many such GPUs is beside it, where there are many.
  CHECK(has(text.out, "\n  at scale "));
  const Outcome few = shell.mtl({"plan", "--gpus", "8", "--gpu-type", "h200", "train.yaml"});
  CHECK(has(few.out, "\nforecast on 8 x H200 141 GB (1 node)\n  step "));
  CHECK_FALSE(has(few.out, "\n  at scale "));
  const json both = json::parse(
      shell.mtl({"plan", "--json", "--gpus", "64", "--gpu-type", "h200", "train.yaml"}).out);
  CHECK(both.at("forecast_at_scale").at("step_s").at("total").get<double>() >
        1.1 * both.at("forecast").at("step_s").at("total").get<double>());
  const Outcome out = shell.mtl(
      {"plan", "--json", "--nodes", "8", "--gpu-type", "a100-80g", "--simulate", "train.yaml"});
  REQUIRE(out.code == 0);
  const json plan = json::parse(out.out);
  CHECK(plan.at("schema") == "mtl.plan/2");
  CHECK(plan.at("grid").at("world") == 64);
  const json& forecast = plan.at("forecast");
  double sum = 0;
  for (const auto& [name, value] : forecast.at("step_s").items()) {
    if (name != "total") sum += value.get<double>();
  }
  CHECK(sum == doctest::Approx(forecast.at("step_s").at("total").get<double>()));
  // Memory is the arena's.
  const double arena = plan.at("stages")[0].at("memory_per_rank").at("total_bytes").get<double>();
  CHECK(forecast.at("memory_bytes").at("total").get<double>() ==
        doctest::Approx(arena).epsilon(0.02));
  CHECK(plan.at("simulation").at("gpus") == 64);
  CHECK(plan.at("goodput").at("expected").get<double>() > 0.9);
}

TEST_CASE("a recipe is planned before there is a corpus") {
  Shell shell;
  REQUIRE(shell.mtl({"recipes", "cp", "llama3-70b"}).code == 0);
  const Outcome planned = shell.mtl({"plan", "--gpus", "64", "train.yaml"});
  CHECK_MESSAGE(planned.code == 0, planned.err);
  CHECK(has(planned.out, "forecast on 64 x H100 80 GB"));
  CHECK(has(planned.out, "128 256"));
  CHECK(has(planned.err, "warning[data.missing]: 'data/corpus' does not exist"));
  // Whose vocabulary is not known, is not planned; and nothing is launched without data.
  const Outcome without = shell.mtl({"plan", "--gpus", "64", "train.yaml", "data.vocab=auto"});
  CHECK(without.code != 0);
  CHECK(has(without.err, "error[data.missing]"));
  CHECK(has(shell.mtl({"launch", "--num_processes", "32", "--dry-run", "train.yaml"}).err,
            "error[data.missing]"));
}

TEST_CASE("what no GPU of that type does is said beside its forecast") {
  Shell shell;
  write_7b(shell);
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"plan", "--gpus", "8", "train.yaml"};
    args.insert(args.end(), more.begin(), more.end());
    return shell.mtl(args);
  };
  CHECK(has(plan({"--gpu-type", "a100-80g", "precision.dtype=fp8"}).out,
            "not run by this engine yet: FP8 on a GPU that multiplies none"));
  CHECK_FALSE(has(plan({"--gpu-type", "h100-80g", "precision.dtype=fp8"}).out, "not run"));
  CHECK_FALSE(has(plan({"--gpu-type", "a100-80g", "precision.dtype=bf16"}).out, "not run"));
  // Two numbers of ranks.
  const Outcome both = plan({"-n", "8"});
  CHECK(both.code == 2);
  CHECK(has(both.err, "--num_processes and --gpus both say"));
}

TEST_CASE("a layout that does not fit is told the least recompute that makes it fit") {
  Shell shell;
  write_7b(shell);
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"plan", "--gpus", "8", "train.yaml", "parallel.tp=1"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome out = shell.mtl(args);
    REQUIRE(out.code == 0);
    return out.out;
  };
  const std::string large = plan({"train.micro_batch=2"});
  CHECK(has(large, "DOES NOT FIT into"));
  const std::string begin = "  to fit    recompute.mode=selective 'recompute.modules=";
  const size_t at = large.find(begin);
  REQUIRE(at != std::string::npos);
  const size_t modules = at + begin.size();
  CHECK(large.find(" % slower", modules) != std::string::npos);
  // What it says is what does it.
  const std::string cured =
      plan({"train.micro_batch=2", "recompute.mode=selective",
            "recompute.modules=" + large.substr(modules, large.find('\'', modules) - modules)});
  CHECK_FALSE(has(cured, "DOES NOT FIT"));
  CHECK_FALSE(has(cured, "to fit"));
  CHECK(has(plan({"train.micro_batch=16"}), "no recompute makes it fit"));
}

TEST_CASE("a type of GPU that is not known names those that are") {
  Shell shell;
  write_7b(shell);
  const Outcome out = shell.mtl({"plan", "--gpus", "8", "--gpu-type", "h101", "train.yaml"});
  CHECK(out.code == 2);
  CHECK(has(out.err, "error[usage.value]: --gpu-type 'h101' is not known"));
  CHECK(has(out.err, "a100-80g, a10, "));
  CHECK(has(out.err, "cpu"));
  CHECK(shell.mtl({"plan", "--gpus", "9", "--nodes", "2", "train.yaml"}).code == 2);
  CHECK(shell.mtl({"plan", "--write", "train.yaml"}).code == 2);
  CHECK(shell.mtl({"plan", "--straggler", "1:2", "train.yaml"}).code == 2);
}

TEST_CASE("more ranks than can be counted are refused") {
  Shell shell;
  write_7b(shell);
  for (const auto& [option, value] :
       std::vector<std::pair<const char*, const char*>>{{"--nodes", "268435456"},
                                                        {"--nodes", "9223372036854775807"},
                                                        {"--gpus", "1048577"},
                                                        {"--gpus", "2147483648"},
                                                        {"--gpus", "4294967297"}}) {
    CAPTURE(value);
    const Outcome out = shell.mtl({"plan", option, value, "train.yaml"});
    CHECK(out.code == 2);
    CHECK(has(out.err, "mtl plans at most 1048576 ranks"));
    CHECK(out.out == "");
  }
}

TEST_CASE("a GPU that has only PCIe 3.0 takes the optimizer's state over it") {
  Shell shell;
  write_7b(shell);
  const Outcome out = shell.mtl({"plan", "--json", "--gpus", "8", "--gpu-type", "v100",
                                 "train.yaml", "optimizer.offload=cpu"});
  REQUIRE(out.code == 0);
  CHECK(json::parse(out.out).at("forecast").at("step_s").at("optimizer").get<double>() > 0.1);
}

TEST_CASE("advice and plans wait for what is not to overlap") {
  Shell shell;
  write_7b(shell);
  const auto step = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"plan", "--json", "--gpus", "16", "train.yaml"});
    const Outcome out = shell.mtl(args);
    REQUIRE(out.code == 0);
    const json document = json::parse(out.out);
    const json& one =
        document.contains("tune") ? document.at("tune").at("best")[0] : document.at("forecast");
    return one.at("step_s").at("total").get<double>();
  };
  const double beside = step({});
  for (const char* setting : {"parallel.overlap.grad_reduce=false",
                              "parallel.overlap.param_gather=false", "parallel.overlap.tp=false"}) {
    CAPTURE(setting);
    CHECK(step({setting}) > beside);
  }
  CHECK(step({"--tune", "parallel.overlap.grad_reduce=false"}) > step({"--tune"}));
  CHECK(step({"--tune", "parallel.overlap.param_gather=false"}) > step({"--tune"}));
}

TEST_CASE("a layout that is impossible is no reason to advise none") {
  Shell shell;
  write_7b(shell);
  const std::vector<std::string> asked = {"plan", "--tune",     "--num_processes",
                                          "3",    "train.yaml", "train.global_batch=6"};
  const Outcome out = shell.mtl(asked);
  CAPTURE(out.err);
  CHECK(out.code == 0);
  CHECK(!has(out.out, "  yours "));
  CHECK(shell.mtl({"plan", "--num_processes", "3", "train.yaml"}).code == 3);
}

TEST_CASE("advice is written into train.yaml and runs as planned") {
  Shell shell;
  write_7b(shell);
  const Outcome out = shell.mtl({"plan", "--tune", "--gpus", "8", "--write", "train.yaml"});
  CHECK(out.code == 0);
  CHECK(has(out.out, "layouts for 8 x H100 80 GB (1 node)"));
  CHECK(has(out.out, "  1.    tp "));
  CHECK(has(out.out, "fastest by "));
  CHECK(has(out.out, "  yours tp 8"));
  CHECK(has(out.err, "written into train.yaml: tp "));
  const std::string yaml = file_text(shell.dir() / "train.yaml");
  CHECK(has(yaml, "# seven billion\n"));
  CHECK(has(yaml, "# sequences\n"));
  CHECK(has(yaml, "# all of a node\n"));
  CHECK(has(yaml, "micro_batch: "));
  // What was written is a run, and as fast as was said.
  const Outcome plan = shell.mtl({"plan", "--json", "--gpus", "8", "train.yaml"});
  REQUIRE(plan.code == 0);
  const Outcome again =
      shell.mtl({"plan", "--tune", "--json", "--gpus", "8", "--only-run-here", "train.yaml"});
  REQUIRE(again.code == 0);
  const json best = json::parse(again.out).at("tune").at("best")[0];
  CHECK(json::parse(plan.out).at("forecast").at("step_s").at("total").get<double>() ==
        doctest::Approx(best.at("step_s").at("total").get<double>()).epsilon(1e-6));
  CHECK(best.at("not_run_here").empty());
}

TEST_CASE("advice for a batch that grows is a run in every phase") {
  Shell shell;
  write_7b(shell);
  shell.replace("train.yaml", "global_batch: 128  # sequences\n",
                "global_batch: 512\n  batch_ramp: {0: 96, 500: 512, 900000000: 40}\n");
  const Outcome out = shell.mtl({"plan", "--tune", "--gpus", "64", "--write", "train.yaml"});
  CHECK_MESSAGE(out.code == 0, out.err);
  const Outcome plan = shell.mtl({"plan", "--gpus", "64", "train.yaml"});
  CHECK_MESSAGE(plan.code == 0, plan.err);
}

TEST_CASE("advice needs a batch that does not follow from the layout") {
  Shell shell;
  write_7b(shell);
  shell.replace("train.yaml", "global_batch: 128", "accumulate: 8\n  micro_batch: 4");
  const std::string yaml = file_text(shell.dir() / "train.yaml");
  const Outcome out = shell.mtl({"plan", "--tune", "--gpus", "64", "--write", "train.yaml"});
  CHECK(out.code == 3);
  CHECK(has(out.err, "error[plan.accumulate]: --tune needs train.global_batch"));
  CHECK(out.out == "");
  CHECK(file_text(shell.dir() / "train.yaml") == yaml);
}

TEST_CASE("what belonged to the old layout does not stay behind") {
  Shell shell;
  write_7b(shell);
  shell.write("train.yaml",
              file_text(shell.dir() / "train.yaml") +
                  "recompute: {mode: full, method: block, layers: 2, distribute: true}\n");
  shell.replace("train.yaml", "  tp: 8",
                "  cp: 3\n  dp: 3\n  schedule: gpipe\n  sp: true\n  stage_layout: [16, 16]\n"
                "  tp: 8");
  const Outcome out = shell.mtl({"plan", "--tune", "--gpus", "64", "--write", "train.yaml"});
  CHECK(out.code == 0);
  const Outcome plan = shell.mtl({"plan", "--gpus", "64", "train.yaml"});
  CHECK(plan.code == 0);
  CHECK(plan.err == "");
}

TEST_CASE("a model that fits nowhere is an error and nothing is written") {
  Shell shell;
  write_7b(shell);
  const std::string before = file_text(shell.dir() / "train.yaml");
  const Outcome out = shell.mtl(
      {"plan", "--tune", "--gpus", "1", "--gpu-type", "a100-40g", "--write", "train.yaml"});
  CHECK(out.code == 3);
  CHECK(has(out.out, "nothing fits"));
  CHECK(has(out.err, "error[plan.nothing_fits]"));
  CHECK(file_text(shell.dir() / "train.yaml") == before);
  // What would, where it would.
  CHECK_FALSE(has(out.out, "optimizer.offload=cpu"));
  const Outcome host = shell.mtl({"plan", "--tune", "--gpus", "1", "train.yaml"});
  CHECK(host.code == 3);
  CHECK(has(host.out, "nothing fits"));
  CHECK(has(host.out, "fits with optimizer.offload=cpu"));
  CHECK(shell.mtl({"plan", "--tune", "--gpus", "1", "train.yaml", "optimizer.offload=cpu"}).code ==
        0);
}

TEST_CASE("what hinders every layout is said as what it is") {
  Shell shell;
  write_7b(shell);
  const Outcome out = shell.mtl({"plan", "--tune", "--gpus", "61", "--write", "train.yaml"});
  CHECK(out.code == 3);
  CHECK(has(out.out, "nothing divides; with data parallelism alone: a batch of 128 over 61"));
  CHECK_FALSE(has(out.out, "nothing fits"));
  CHECK(has(out.err, "error[plan.no_layout]: no layout of 61 ranks divides"));
  for (const char* only : {"--only-run-here", "--write"}) {
    const Outcome fp8 = shell.mtl({"plan", "--tune", "--gpus", "8", "--gpu-type", "a100-80g",
                                   "--write", only, "train.yaml", "precision.dtype=fp8"});
    CHECK(fp8.code == 3);
    CHECK(has(fp8.err, "error[plan.no_layout]"));
    CHECK(has(fp8.err, "it does not run FP8 on a GPU that multiplies none"));
  }
}

TEST_CASE("on this machine's CPUs only what fits into its memory is advised") {
  Shell shell;
  write_7b(shell);
  const Outcome out = shell.mtl({"plan", "--tune", "--gpus", "1024", "--gpu-type", "cpu",
                                 "train.yaml", "model.layers=1000", "train.global_batch=1024"});
  CHECK(out.code == 3);
  CHECK(has(out.out, "nothing fits"));
}

TEST_CASE("two layouts that are as fast are not said to differ by nothing") {
  Shell shell;
  REQUIRE(shell.mtl({"recipes", "cp", "llama3-8b"}).code == 0);
  const Outcome out =
      shell.mtl({"plan", "--tune", "--gpus", "8", "--gpu-type", "a100-80g", "train.yaml"});
  CHECK(out.code == 0);
  CHECK(has(out.out, "fastest, with the next: "));
  CHECK(has(out.out, "\n        as fast\n"));
  CHECK_FALSE(has(out.out, "by 0.0 %"));
}

TEST_CASE("a simulated step says what slow ranks cost") {
  Shell shell;
  write_7b(shell);
  const Outcome out = shell.mtl({"plan", "--gpus", "16", "--simulate", "--straggler", "3:1.5",
                                 "--jitter", "0.01", "--mtbf", "1000", "train.yaml"},
                                {{"COLUMNS", "200"}});
  REQUIRE(out.code == 0);
  CHECK(has(out.out, "simulated step of 16 GPUs"));
  CHECK(has(out.out, " replicas differ"));
  const Outcome even = shell.mtl({"plan", "--gpus", "16", "--simulate", "train.yaml"});
  CHECK(has(even.out, "; all replicas are alike"));
  CHECK(has(out.out, "without slow ranks"));
  CHECK(has(out.out, "the last to finish is replica 0"));
  CHECK(has(out.out, "one in 2d14h"));
}

TEST_CASE("advice is simulated for programs, too, and draws nothing") {
  Shell shell;
  write_7b(shell);
  const Outcome out =
      shell.mtl({"plan", "--tune", "--json", "--simulate", "--gpus", "16", "train.yaml"});
  REQUIRE(out.code == 0);
  const json advice = json::parse(out.out);
  CHECK(advice.at("simulation").at("gpus") == 16);
  CHECK(advice.at("goodput").at("expected").get<double>() > 0.9);
  const Outcome svg =
      shell.mtl({"plan", "--tune", "--svg", "step.svg", "--gpus", "16", "train.yaml"});
  CHECK(svg.code == 2);
  CHECK(has(svg.err, "error[usage.option]: --svg draws the schedule of one layout"));
}

TEST_CASE("ranks on CPUs are those of this machine, by any case") {
  Shell shell;
  write_7b(shell);
  const Outcome out =
      shell.mtl({"plan", "--gpus", "2", "--gpu-type", "CPU", "train.yaml", "parallel.tp=1"});
  CHECK(out.code == 0);
  CHECK(has(out.out, "forecast on 2 x CPU rank (1 node)"));
  CHECK((has(out.out, "fits into") || has(out.out, "DOES NOT FIT into")));
  const Outcome nodes = shell.mtl({"plan", "--nodes", "2", "--gpu-type", "cpu", "train.yaml"});
  CHECK(nodes.code == 2);
  CHECK(has(nodes.err, "--gpu-type cpu is this machine"));
}

TEST_CASE("numbers that no sum can hold are refused") {
  Shell shell;
  write_7b(shell);
  for (const auto& [option, value] :
       std::vector<std::pair<const char*, const char*>>{{"--jitter", "1e308"},
                                                        {"--straggler", "1:inf"},
                                                        {"--straggler", "1:nan"},
                                                        {"--mtbf", "1e308"},
                                                        {"--restart-time", "1e300"},
                                                        {"--checkpoint-time", "1e300"}}) {
    CAPTURE(option);
    const Outcome out =
        shell.mtl({"plan", "--gpus", "16", "--simulate", option, value, "train.yaml"});
    CHECK(out.code == 2);
    CHECK(has(out.err, "error[usage.value]"));
  }
}

TEST_CASE("stragglers are ranks and factors") {
  const Stragglers two = parse_stragglers("37:1.2,90:2", 128);
  REQUIRE(two.ranks.size() == 2);
  CHECK(two.ranks[0] == std::pair(37, 1.2));
  CHECK(two.ranks[1] == std::pair(90, 2.0));
  CHECK(parse_stragglers("", 8).ranks.empty());
  for (const char* wrong : {"8:2", "-1:2", "1", "1:", ":2", "1:0", "1:x", "1:2,,", "a:2", "1:inf",
                            "1:nan", "1:1e300"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_stragglers(wrong, 8), Error);
  }
}
