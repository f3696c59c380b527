// The parallel engine from the outside: layouts, families, precision and health, as a user meets
// them.
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "cli/tiny_run.h"

using namespace mtl::test;

namespace {

// The settings of a small model of the LLaMA family.
const std::vector<std::string> kLlama = {"model.kv_heads=2",
                                         "model.activation=swiglu",
                                         "model.norm.type=rmsnorm",
                                         "model.position.type=rope",
                                         "model.bias=false",
                                         "model.tie_embeddings=false",
                                         "model.ffn=64"};

// Trains with `settings` beside the recipe and expects it to end well.
Outcome launch(const Shell& shell, int ranks, std::vector<std::string> settings,
               const std::vector<std::string>& more = {}) {
  settings.insert(settings.begin(),
                  {"launch", "--num_processes", std::to_string(ranks), "train.yaml"});
  settings.insert(settings.end(), more.begin(), more.end());
  const Outcome outcome = shell.mtl(settings);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  return outcome;
}

// What must not depend on the clock.
std::vector<json> timeless_metrics(const fs::path& run) {
  std::vector<json> lines = metrics_of(run);
  for (json& line : lines) {
    for (const char* timed :
         {"time", "tokens_per_s", "step_time_s", "mfu", "mfu_of_flops", "memory_bytes"}) {
      line.erase(timed);
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("two pipeline stages write the run of one process") {
  std::vector<json> metrics;
  std::map<std::string, std::string> tensors;
  for (const int stages : {1, 2}) {
    CAPTURE(stages);
    Shell shell;
    write_recipe(shell, 10);
    const Outcome outcome =
        launch(shell, stages,
               {"parallel.pp=" + std::to_string(stages), "train.micro_batch=1", "log.every=1"});
    CHECK(has(outcome.err, "2 pipeline stages, bubble ") == (stages == 2));
    const fs::path run = run_of(shell);
    if (stages == 2) {
      CHECK(timeless_metrics(run) == metrics);
      CHECK(tensors_of(run / "latest") == tensors);
    }
    metrics = timeless_metrics(run);
    tensors = tensors_of(run / "latest");
    CHECK(metrics.size() == 11);
    CHECK(metrics[0].size() == 5);  // step, loss, lr, grad_norm, mfu_of: nothing was skipped
  }
}

TEST_CASE("a LLaMA on four ranks has the same bits as processes and as threads and it writes") {
  std::map<std::string, std::vector<json>> metrics;
  std::map<std::string, std::map<std::string, std::string>> tensors;
  for (const std::string spawn : {"processes", "threads"}) {
    CAPTURE(spawn);
    Shell shell;
    write_recipe(shell, 10);
    const Outcome outcome =
        launch(shell, 4, {"parallel.tp=2", "parallel.pp=2", "log.every=1", "launch.spawn=" + spawn},
               kLlama);
    CHECK(has(outcome.err, "1 data x 2 tensor parallel x 2 pipeline stages"));
    CHECK(has(outcome.err, "sequence parallel"));
    const fs::path run = run_of(shell);
    metrics[spawn] = timeless_metrics(run);
    tensors[spawn] = tensors_of(run / "latest");
    if (spawn == "processes") continue;
    const Outcome words = shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "});
    CAPTURE(words.err);
    CHECK(words.code == 0);
    CHECK(words.out.size() >= 20);
  }
  CHECK(metrics["processes"].size() == 11);
  CHECK(metrics["threads"] == metrics["processes"]);
  CHECK(tensors["processes"].size() > 20);
  CHECK(tensors["threads"] == tensors["processes"]);
}

TEST_CASE("ranks that share sequences have the same bits as processes and as threads") {
  std::map<std::string, std::vector<json>> metrics;
  for (const std::string spawn : {"processes", "threads"}) {
    CAPTURE(spawn);
    Shell shell;
    write_recipe(shell, 10);
    const Outcome outcome = launch(shell, 4,
                                   {"parallel.cp=2", "parallel.zero=3", "train.micro_batch=1",
                                    "log.every=1", "launch.spawn=" + spawn},
                                   kLlama);
    CHECK(has(outcome.err, "4 " + std::string(spawn == "threads" ? "threads" : "processes")));
    CHECK(has(outcome.err, "2 data x 1 tensor parallel x 2 context parallel, ZeRO-3"));
    metrics[spawn] = timeless_metrics(run_of(shell));
  }
  CHECK(metrics["processes"].size() == 11);
  CHECK(metrics["threads"] == metrics["processes"]);
}

TEST_CASE("ranks that divide experts have the same bits as processes and as threads") {
  std::map<std::string, std::vector<json>> metrics;
  for (const std::string spawn : {"processes", "threads"}) {
    CAPTURE(spawn);
    Shell shell;
    write_recipe(shell, 10);
    const Outcome outcome =
        launch(shell, 4,
               {"parallel.ep=2", "parallel.ep_room=1", "train.micro_batch=1", "model.moe.experts=4",
                "model.moe.topk=2", "log.every=1", "launch.spawn=" + spawn},
               kLlama);
    CHECK(has(outcome.err, "2 data x 1 tensor parallel x 2 expert parallel, ZeRO-1"));
    metrics[spawn] = timeless_metrics(run_of(shell));
  }
  CHECK(metrics["processes"].size() == 11);
  CHECK(metrics["threads"] == metrics["processes"]);
}

TEST_CASE("ZeRO-1 writes the run of whole replicas") {
  std::vector<json> metrics;
  for (const std::string zero : {"0", "1"}) {
    Shell shell;
    write_recipe(shell, 6);
    const Outcome outcome =
        launch(shell, 8,
               {"parallel.tp=2", "parallel.pp=2", "launch.spawn=threads", "parallel.zero=" + zero},
               kLlama);
    CHECK(has(outcome.err, "ZeRO-1") == (zero == "1"));
    if (zero == "1") CHECK(timeless_metrics(run_of(shell)) == metrics);
    metrics = timeless_metrics(run_of(shell));
  }
}

TEST_CASE("a run of two stages goes on as two replicas") {
  double whole = 0;
  for (const bool interrupted : {false, true}) {
    Shell shell;
    write_recipe(shell, 10);
    const std::vector<std::string> constant = {"lr.schedule=constant", "log.every=1"};
    if (interrupted) launch(shell, 2, {"parallel.pp=2"}, constant);
    launch(shell, 2, {interrupted ? "parallel.dp=2" : "parallel.pp=2", "train.steps=15"}, constant);
    const fs::path run = run_of(shell);
    CHECK(has(file_text(run / "events.jsonl"), "\"resumed\"") == interrupted);
    double last = 0;
    for (const json& line : metrics_of(run)) {
      if (line["step"] == 15 && line.contains("loss")) last = line["loss"];
    }
    if (interrupted) {
      CHECK(last == doctest::Approx(whole).epsilon(1e-5));
    } else {
      whole = last;
    }
  }
}

TEST_CASE("a run may be as long as so many tokens") {
  Shell shell;
  write_recipe(shell, 1);
  std::string recipe = file_text(shell.dir() / "train.yaml");
  recipe.replace(recipe.find("steps: 1\n"), 9, "tokens: 450\n");
  shell.write("train.yaml", recipe);
  launch(shell, 1, {"log.every=1"});
  const json status = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(status["step"] == 8);  // of 64 tokens each
  CHECK(status["steps"] == 8);
}

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

TEST_CASE("accumulation by epoch changes the step of a run") {
  Shell shell;
  write_recipe(shell, 1);
  std::string recipe = file_text(shell.dir() / "train.yaml");
  recipe.replace(recipe.find("global_batch: 4\n"), 16, "accumulate: {0: 64, 1: 8, 2: 1}\n");
  shell.write("train.yaml", recipe);
  // 1034 sequences in an epoch: nine steps of 128 begin in the first, 58 of 16 in the second.
  const Outcome outcome = launch(shell, 2, {"parallel.pp=2", "train.steps=80"});
  CHECK(has(outcome.err, "128 sequences of 16 = 2048 tokens per step, 64 micro-batches"));
  CHECK(has(outcome.err, "; 16 from step 9; 2 from step 67"));
  const json state = json::parse(file_text(run_of(shell) / "latest/manifest.json"))["state"];
  CHECK(state["step"] == 80);
  CHECK(state["samples"] == 9 * 128 + 58 * 16 + 13 * 2);
  CHECK(state["tokens"] == state["samples"].get<int64_t>() * 16);
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
    const json status = json::parse(file_text(run_of(shell) / "status.json"));
    CHECK(status["state"] == "failed");
  }
}

TEST_CASE("health.nan=skip counts the steps that it leaves out") {
  Shell shell;
  write_recipe(shell, 12);
  const Outcome outcome = launch(shell, 1,
                                 {"optimizer.type=sgd", "optimizer.clip=0", "lr.max=1000",
                                  "health.nan=skip", "lr.schedule=constant"});
  const json status = json::parse(file_text(run_of(shell) / "status.json"));
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
  const json last = lines[39];
  const int64_t skipped = last["skipped"];
  CHECK(skipped < 35);
  CHECK(last["loss_scale"].get<double>() == std::ldexp(1e12, -static_cast<int>(skipped)));
  CHECK(last["loss"].get<double>() < lines[0]["loss"].get<double>());
  launch(shell, 2, {"parallel.dp=2", "train.steps=42"}, fp16);
  const json resumed = metrics_of(run_of(shell)).back();
  const json status = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(status["step"] == 42);
  CHECK(status["skipped"] == skipped);
  CHECK(status["loss_scale"] == last["loss_scale"]);
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
  }
  const Outcome larger =
      shell.mtl({"launch", "train.yaml", "train.steps=10", "train.global_batch=8"});
  CAPTURE(larger.err);
  REQUIRE(larger.code == 0);
  const json state = json::parse(file_text(run / "latest" / "manifest.json"))["state"];
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
    std::string yaml = file_text(shell.dir() / "train.yaml");
    yaml.replace(yaml.find("  steps: 5"), 10, "  samples: 80");
    shell.write("train.yaml", yaml);
    const Outcome longer = shell.mtl({"launch", "train.yaml", batch(of.after)});
    CAPTURE(longer.err);
    REQUIRE(longer.code == 0);
    const fs::path run = run_of(shell);
    const json state = json::parse(file_text(run / "latest" / "manifest.json"))["state"];
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
  const json state = json::parse(file_text(run_of(shell) / "latest" / "manifest.json"))["state"];
  CHECK(state["samples"] == 10 * 16 + 10 * 4);
}

TEST_CASE("an order that follows from the length of a run stays when length and batch change") {
  Shell shell;
  write_recipe(shell, 5);
  // An epoch has some 1,050 sequences.
  const std::string sampler = "data.sampler=megatron";
  REQUIRE(shell.mtl({"launch", "train.yaml", sampler, "train.global_batch=200"}).code == 0);
  const auto state_of = [&] {
    return json::parse(file_text(run_of(shell) / "latest" / "manifest.json"))["state"];
  };
  CHECK(state_of()["data"]["orders"][0]["epochs"] == 1);
  const Outcome outcome =
      shell.mtl({"launch", "train.yaml", sampler, "train.global_batch=8", "train.steps=15"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const json state = state_of();
  CHECK(state["samples"] == 5 * 200 + 10 * 8);
  const json orders = state["data"]["orders"];
  CHECK(orders[0]["epochs"] == 1);
  REQUIRE(orders[0]["then"].size() == 1);  // for the samples that the first does not have
  CHECK(orders[0]["then"][0]["epochs"] == 1);
}

TEST_CASE("epochs of accumulation are counted by the sequences that a run has seen") {
  Shell shell;
  write_recipe(shell, 2);
  std::string recipe = file_text(shell.dir() / "train.yaml");
  recipe.replace(recipe.find("global_batch: 4\n"), 16, "accumulate: {0: 128, 1: 8}\n");
  shell.write("train.yaml", recipe);
  // 1034 sequences in an epoch. Two steps of 512; then, with micro-batches of 2, 256 a step: one
  // that begins in the first epoch, and behind it 16 a step.
  REQUIRE(launch(shell, 1, {"train.micro_batch=4"}).code == 0);
  const Outcome outcome = launch(shell, 1, {"train.micro_batch=2", "train.steps=5"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const json state = json::parse(file_text(run_of(shell) / "latest" / "manifest.json"))["state"];
  CHECK(state["step"] == 5);
  CHECK(state["samples"] == 2 * 512 + 256 + 2 * 16);
  CHECK(has(outcome.err, "; 16 from step 3"));
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

TEST_CASE("an evaluation is of the same samples while the batch grows") {
  Shell shell;
  write_recipe(shell, 8);
  std::string yaml = file_text(shell.dir() / "train.yaml");
  yaml.replace(yaml.find("  global_batch: 4\n"), 18,
               "  batch_ramp: {0: 2, 4: 8}\n  global_batch: 8\n");
  shell.write("train.yaml", yaml);
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

TEST_CASE("a stage without parameters has nothing on the host and trains") {
  Shell shell;
  write_recipe(shell, 2);
  const Outcome outcome =
      shell.mtl({"launch", "--num_processes", "3", "train.yaml", "parallel.pp=3",
                 "parallel.stage_layout=[1,0,1]", "optimizer.offload=cpu"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
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
