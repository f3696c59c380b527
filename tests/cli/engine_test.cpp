// The engine from the outside: settings, precision, memory and health, as a user meets them.
#include <cmath>

#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE("resolved.yaml gives the same plan for every new key") {
  Shell shell;
  write_recipe(shell, 10);
  const std::vector<std::string> settings = {"model.layers=4",
                                             "model.kv_heads=2",
                                             "model.head_dim=16",
                                             "model.ffn=96",
                                             "model.activation=swiglu",
                                             "model.norm.type=rmsnorm",
                                             "model.norm.eps=1e-6",
                                             "model.position.type=rope",
                                             "model.position.base=50000",
                                             "model.position.scaling.type=llama3",
                                             "model.position.scaling.factor=4",
                                             "model.position.scaling.low_freq_factor=2",
                                             "model.position.scaling.high_freq_factor=5",
                                             "model.position.scaling.original_max_seq=16",
                                             "model.qk_norm=true",
                                             "model.bias=false",
                                             "parallel.tp=2",
                                             "parallel.pp=2",
                                             "parallel.dp=2",
                                             "parallel.sp=true",
                                             "parallel.virtual_stages=2",
                                             "parallel.virtual_group=2",
                                             "parallel.stage_layout=[1,1,1,1]",
                                             "parallel.zero=1",
                                             "parallel.overlap.tp=false",
                                             "parallel.overlap.p2p=false",
                                             "parallel.overlap.grad_reduce=true",
                                             "parallel.overlap.param_gather=true",
                                             "parallel.bucket_mb=0.5",
                                             "train.global_batch=8",
                                             "train.batch_ramp={0: 8, 4: 16}",
                                             "precision.dtype=fp16",
                                             "precision.loss_scale.initial=4096",
                                             "precision.loss_scale.min=2",
                                             "precision.loss_scale.window=50",
                                             "precision.loss_scale.hysteresis=3",
                                             "recompute.mode=full",
                                             "recompute.method=uniform",
                                             "recompute.layers=1",
                                             "optimizer.type=sgd",
                                             "optimizer.momentum=0.8",
                                             "optimizer.weight_decay_ramp=cosine",
                                             "optimizer.weight_decay_end=0.3",
                                             "lr.schedule=wsd",
                                             "lr.wsd_decay=4",
                                             "lr.wsd_style=minus_sqrt",
                                             "health.nan=skip",
                                             "launch.spawn=threads"};
  launch(shell, 8, settings);
  const fs::path resolved = run_of(shell) / "resolved.yaml";
  std::vector<std::string> command = {"plan", "--json", "--num_processes", "8", "train.yaml"};
  command.insert(command.end(), settings.begin(), settings.end());
  const Outcome given = shell.mtl(command);
  const Outcome again = shell.mtl({"plan", "--json", "--num_processes", "8", resolved.string()});
  CAPTURE(again.err);
  REQUIRE(given.code == 0);
  REQUIRE(again.code == 0);
  CHECK(json::parse(again.out) == json::parse(given.out));
  const Outcome dry = shell.mtl({"launch", "--dry-run", "--num_processes", "8", resolved.string()});
  CHECK(dry.code == 0);
  for (const char* kept : {"virtual_group: 2", "batch_ramp: {0: 8, 4: 16}", "hysteresis: 3",
                           "weight_decay_ramp: cosine", "wsd_style: minus_sqrt", "nan: skip"}) {
    CAPTURE(kept);
    CHECK(has(dry.out, kept));
  }
}

TEST_CASE("every recipe makes a plan") {
  Shell shell;
  write_recipe(shell, 10);
  int recipes = 0;
  for (const auto& entry : fs::directory_iterator(MTL_SOURCE_DIR "/templates/recipes")) {
    ++recipes;
    CAPTURE(entry.path().string());
    const std::string text = file_text(entry.path());
    const size_t at = text.find("# Runs on: ");
    REQUIRE(at != std::string::npos);
    const bool gpus = text.find(" GPUs", at) < text.find('\n', at);
    const std::string ranks = gpus ? std::to_string(std::stoi(text.substr(at + 11))) : "2";
    const Outcome outcome =
        shell.mtl({"plan", "--num_processes", ranks, entry.path().string(), "data.train=corpus.txt",
                   "data.valid=auto", "data.vocab=auto", "data.eod=-1", "data.tokenizer.type=bytes",
                   "data.sampler=random", "data.split=[50,50]"});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
  }
  CHECK(recipes >= 20);
}

TEST_CASE("memory that is missing is counted by ranks") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome outcome =
      shell.mtl({"launch", "--num_processes", "2", "train.yaml", "model.hidden=32768",
                 "model.layers=200", "launch.spawn=threads"});
  CHECK(outcome.code == 5);
  CHECK(has(outcome.err, "2 ranks need "));
}

TEST_CASE("a run that diverges says where as its last words") {
  for (const std::string spawn : {"processes", "threads"}) {
    CAPTURE(spawn);
    Shell shell;
    write_recipe(shell, 1000);
    const Outcome outcome = shell.mtl(
        {"launch", "--num_processes", "2", "train.yaml", "parallel.pp=2", "optimizer.type=sgd",
         "optimizer.clip=0", "lr.max=1000", "lr.schedule=constant", "launch.spawn=" + spawn});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 1);
    const size_t headline = outcome.err.rfind("error[rank.died]");
    REQUIRE(headline != std::string::npos);
    const std::string report = outcome.err.substr(headline);
    CHECK(has(report, "error[loss.nan]"));
    CHECK(has(report, ": loss nan and gradient norm nan: the run has diverged"));
    CHECK(has(report, "note: first not finite: layer "));
    CHECK(has(report, "health.nan=skip"));
    const json status = status_of(run_of(shell));
    CHECK(status["state"] == "failed");
    CHECK(has(status["reason"].get<std::string>(), ": error[loss.nan]: "));
  }
}

TEST_CASE("health.nan=skip counts the steps that it leaves out") {
  Shell shell;
  write_recipe(shell, 12);
  const Outcome outcome = launch(shell, 1,
                                 {"optimizer.type=sgd", "optimizer.clip=0", "lr.max=1000",
                                  "health.nan=skip", "lr.schedule=constant"});
  const json status = status_of(run_of(shell));
  CHECK(status["state"] == "done");
  const int64_t skipped = status["skipped"];
  CHECK(skipped > 0);
  CHECK(has(outcome.err, "no update; 1 step skipped so far"));
  CHECK(has(outcome.err, "skipped  " + std::to_string(skipped) + " of them: no update"));
}

TEST_CASE("fp16 finds its loss scale and a resumed run keeps it") {
  Shell shell;
  write_recipe(shell, 40);
  const std::vector<std::string> fp16 = {"precision.dtype=fp16",
                                         "precision.loss_scale.initial=1e12",
                                         "precision.loss_scale.hysteresis=1", "log.every=1"};
  const Outcome outcome = launch(shell, 2, {"parallel.tp=2"}, fp16);
  CHECK(has(outcome.err, "step=1 skipped: loss "));
  CHECK(has(outcome.err, ": no update, loss scale 1000000000000; 1 step skipped so far"));
  const std::vector<json> lines = metrics_of(run_of(shell));
  CHECK(lines[0]["loss_scale"] == 1e12);
  CHECK(lines[1]["loss_scale"] == 5e11);
  CHECK(lines[0]["skipped"] == 1);
  CHECK(lines[0]["grad_norm"].is_null());
  const json& last = lines[39];
  const int64_t skipped = last["skipped"];
  CHECK(skipped < 35);
  CHECK(last["loss_scale"].get<double>() == std::ldexp(1e12, -static_cast<int>(skipped)));
  CHECK(last["loss"].get<double>() < lines[0]["loss"].get<double>());
  launch(shell, 2, {"parallel.dp=2", "train.steps=42"}, fp16);
  const json resumed = metrics_of(run_of(shell)).back();
  const json status = status_of(run_of(shell));
  CHECK(status["step"] == 42);
  CHECK(status["skipped"] == skipped);
  CHECK(status["loss_scale"] == last["loss_scale"]);
}

TEST_CASE("what routers are reported to lose does not depend on what the loss leaves out") {
  std::vector<json> lines;
  for (const char* mask : {"false", "true"}) {
    Shell shell;
    write_recipe(shell, 1);
    const Outcome outcome = shell.mtl({"launch", "train.yaml", "model.moe.experts=4",
                                       "model.bias=false", "model.activation=swiglu", "data.eod=1",
                                       std::string("data.mask_eod_loss=") + mask});
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    lines.push_back(metrics_of(run_of(shell)).front());
  }
  CHECK(lines[0]["loss"] != lines[1]["loss"]);
  CHECK(lines[0]["moe_aux_loss"] == lines[1]["moe_aux_loss"]);
  CHECK(lines[0]["moe_z_loss"] == lines[1]["moe_z_loss"]);
}

TEST_CASE("longrope divides by its long factors where sequences are long, else by the short ones") {
  Shell shell;
  write_recipe(shell, 3);
  const auto losses = [&](const char* name, std::vector<std::string> settings) {
    settings.insert(settings.end(),
                    {"model.position.type=rope", "log.every=1", std::string("run.dir=") + name});
    launch(shell, 1, settings);
    return losses_below(shell.dir() / name / "tiny");
  };
  const auto longrope = [&](const char* name, const char* original) {
    return losses(name, {"model.position.scaling.type=longrope",
                         std::string("model.position.scaling.original_max_seq=") + original,
                         "model.position.scaling.short_factor=[1, 1, 1, 1]",
                         "model.position.scaling.long_factor=[4, 4, 4, 4]",
                         "model.position.scaling.attention_factor=1"});
  };
  const auto plain = losses("plain", {});
  const auto linear =
      losses("linear", {"model.position.scaling.type=linear", "model.position.scaling.factor=4"});
  REQUIRE(plain.size() == 3);
  CHECK(plain != linear);
  CHECK(longrope("short", "16") == plain);  // sequences have 16 tokens
  CHECK(longrope("long", "15") == linear);
  // What a resolved.yaml says is read again.
  const fs::path resolved = shell.dir() / "long/tiny";
  const fs::path run = fs::directory_iterator(resolved)->path();
  CHECK(has(file_text(run / "resolved.yaml"), "long_factor: [4, 4, 4, 4]"));
  CHECK(shell.mtl({"plan", (run / "resolved.yaml").string()}).code == 0);
}
