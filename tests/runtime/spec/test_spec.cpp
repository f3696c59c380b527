// train.yaml: what is read, from which layer, and how every kind of error looks.
#include <algorithm>
#include <rapidcheck.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/spec/load.h"
#include "runtime/spec/schema.h"
#include "runtime/spec/values.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::string values_of(const TrainSpec& train_spec) {
  std::string text;
  for (const spec::Row& row : spec::schema()) {
    text += fmt::format("{}={}\n", row.key, spec::print_value(row, train_spec));
  }
  return text;
}

}  // namespace

TEST_CASE("the smallest file gives the documented defaults") {
  const Loaded loaded = load_more("");
  CHECK(texts(loaded).empty());
  const TrainSpec& s = loaded.resolved.spec;
  CHECK(s.model.layers == 2);
  CHECK(s.train.steps == 10);
  CHECK(s.data.train == "input.txt");
  CHECK(s.model.norm.eps == 1e-5);
  CHECK(s.optimizer.beta2 == 0.95);
  CHECK(s.parallel.dp == 0);
  CHECK(s.data.split == std::vector<double>{90, 10});
  CHECK(s.train.accumulate.empty());
  CHECK(s.parallel.stage_layout.empty());
  CHECK(s.recompute.modules == std::vector<std::string>{"core_attn"});
  CHECK(loaded.resolved.source == kSmallest);
  CHECK(loaded.resolved.origins.size() == spec_keys().size());
  CHECK(loaded.resolved.origins.at("train.steps") == Origin::train_yaml);
  CHECK(loaded.resolved.origins.at("lr.max") == Origin::built_in);
}

TEST_CASE("every key can be set to what it is not") {
  const Loaded loaded = load_more(
      "run: {name: x-1, dir: /tmp/r}\n"
      "parallel:\n"
      "  {tp: 2, cp: 2, ep: 2, ep_room: 1.25, pp: 3, dp: 4, sp: true, virtual_stages: 2,\n"
      "   virtual_group: 5, schedule: gpipe,\n"
      "   stage_layout: [1, 0, 1_0], zero: 0, zero_ranks: 6, bucket_mb: 2.5,\n"
      "   overlap: {grad_reduce: false, param_gather: false, p2p: false, tp: false}}\n"
      "precision:\n"
      "  dtype: bf16\n"
      "  grad_reduce: bf16\n"
      "  loss_scale: {initial: 1024, min: 0.5, window: 2k, hysteresis: 3}\n"
      "  fp8: {bf16_first_layers: 2, bf16_last_layers: 1}\n"
      "recompute: {mode: full, method: block, layers: 3, modules: [norm, mlp], distribute: true}\n"
      "optimizer: {type: sgd, betas: [0.8, .5], eps: 1e-6, weight_decay: 0, clip: 0, offload: cpu, "
      "momentum: "
      "0.5,\n"
      "            weight_decay_ramp: linear, weight_decay_end: 0.2}\n"
      "lr: {max: 1e-3, min: 1.0e-4, schedule: wsd, warmup: 1_000, decay: 2k, wsd_decay: 1k,\n"
      "     wsd_style: linear}\n"
      "health: {nan: skip}\n"
      "launch:\n  spawn: threads\n  via: slurm\n  slurm:\n"
      "    partition: x\n"
      "    account: x\n"
      "    qos: x\n"
      "    time: x\n"
      "    gpus_per_node: x\n"
      "    gpu_type: x\n"
      "    gres: x\n"
      "    cpus_per_task: x\n"
      "    mem: x\n"
      "    constraint: x\n"
      "    exclude: x\n"
      "    nodelist: x\n"
      "    exclusive: x\n"
      "    reservation: x\n"
      "    array: x\n"
      "    dependency: x\n"
      "    job_name: x\n"
      "    signal_s: x\n"
      "    chain: x\n"
      "    srun: [a, b]\n"
      "    container: x\n"
      "    container_runtime: x\n"
      "    container_mounts: [a, b]\n"
      "    modules: [a, b]\n"
      "    setup: [a, b]\n"
      "    mail_user: x\n"
      "    mail_type: x\n"
      "    comment: x\n"
      "    output: x\n"
      "    extra: [a, b]\n"
      "    wait: x\n"
      "  kubernetes:\n"
      "    kind: x\n"
      "    image: x\n"
      "    name: x\n"
      "    namespace: x\n"
      "    gpus: x\n"
      "    gpu_resource: x\n"
      "    cpus: x\n"
      "    memory: x\n"
      "    shm: x\n"
      "    checkpoint_pvc: x\n"
      "    pvc: [a, b]\n"
      "    node_selector: [a, b]\n"
      "    toleration: [a, b]\n"
      "    one_per_host: x\n"
      "    user: x\n"
      "    service_account: x\n"
      "    image_pull_secret: [a, b]\n"
      "    env_secret: [a, b]\n"
      "    queue: x\n"
      "    priority_class: x\n"
      "    grace: x\n"
      "    max_restarts: x\n"
      "    apply: x\n"
      "init: {std: 0.01}\n"
      "checkpoint: {every: 1.5k, keep_last: 0, resume: must}\n"
      "log: {every: 1, tensorboard: false}\n",
      {.train_yaml = {},
       .overrides = {"model.ffn=100",
                     "model.norm={type: rmsnorm, eps: 1e-6}",
                     "model.position={type: rope, base: 5e5, scaling: {type: llama3, factor: 4, "
                     "low_freq_factor: 2, high_freq_factor: 3, original_max_seq: 16, beta_slow: 2, "
                     "beta_fast: 16, truncate: false, attention_factor: 1.25}}",
                     "model.kv_heads=2",
                     "model.head_dim=8",
                     "model.qk_norm=true",
                     "model.qkv_bias=true",
                     "model.sliding_window=40",
                     "model.moe={experts: 4, topk: 3, aux_loss: 0.01, z_loss: 1e-3}",
                     "train.samples=auto",
                     "train.tokens=auto",
                     "train.accumulate=auto",
                     "train.accumulate_by=step",
                     "train.batch_ramp={0: 8, 1k: 16}",
                     "train.deterministic=false",
                     "model.max_seq=64",
                     "model.bias=false",
                     "model.tie_embeddings=false",
                     "model.vocab_pad_to=1",
                     "model.dropout={hidden: 0.1, attention: 0.2}",
                     "model.activation=swiglu",
                     "train.micro_batch=2",
                     "train.logits_rows=100",
                     "train.seed=0",
                     "train.eval.every=5",
                     "train.eval.iters=1e2",
                     "train.eval.generate={prompts: [\"ROMEO:\", 7, 'a\"b\nc'], tokens: 9, "
                     "temperature: 0}",
                     "init.from=there",
                     "data.valid=held_out",
                     "data.format=nanogpt",
                     "data.vocab=50257",
                     "data.eod=0",
                     "data.split=[1, 0]",
                     "data.sampler=sequential",
                     "data.cache=/tmp/c",
                     "data.workers=0",
                     "data.on_change=accept",
                     "data.reset_positions_at_eod=true",
                     "data.reset_attention_at_eod=true",
                     "data.mask_eod_loss=true",
                     "data.tokenizer={file: t, vocab: v, merges: m, eod: e}",
                     "checkpoint={every_time: 30m, async: false, keep_every: 100}",
                     "health={max_time: 11h, spike_factor: 6, straggler_factor: 1.5}",
                     "checkpoint.keep_best={k: 2, metric: loss, mode: max}",
                     "data.tokenizer.type=chars"}});
  CHECK(texts(loaded).empty());
  const TrainSpec& s = loaded.resolved.spec;
  CHECK(s.run.name == "x-1");
  CHECK(s.run.dir == "/tmp/r");
  CHECK(s.parallel.tp == 2);
  CHECK(s.parallel.cp == 2);
  CHECK(s.parallel.ep == 2);
  CHECK(s.parallel.ep_room == 1.25);
  CHECK(s.parallel.pp == 3);
  CHECK(s.parallel.dp == 4);
  CHECK(s.parallel.sp == "true");
  CHECK(s.parallel.virtual_stages == 2);
  CHECK(s.parallel.virtual_group == 5);
  CHECK(s.parallel.schedule == "gpipe");
  CHECK(s.parallel.stage_layout == std::vector<int64_t>{1, 0, 10});
  CHECK(s.parallel.zero == 0);
  CHECK(s.parallel.zero_ranks == 6);
  CHECK(s.parallel.bucket_mb == 2.5);
  CHECK_FALSE(s.parallel.overlap.grad_reduce);
  CHECK(s.parallel.overlap.param_gather == "false");
  CHECK_FALSE(s.parallel.overlap.p2p);
  CHECK(s.parallel.overlap.tp == "false");
  CHECK(s.precision.dtype == "bf16");
  CHECK(s.precision.grad_reduce == "bf16");
  CHECK(s.precision.loss_scale.initial == 1024);
  CHECK(s.precision.loss_scale.min == 0.5);
  CHECK(s.precision.loss_scale.window == 2000);
  CHECK(s.precision.loss_scale.hysteresis == 3);
  CHECK(s.precision.fp8.bf16_first_layers == 2);
  CHECK(s.precision.fp8.bf16_last_layers == 1);
  CHECK(s.recompute.mode == "full");
  CHECK(s.recompute.method == "block");
  CHECK(s.recompute.layers == 3);
  CHECK(s.recompute.modules == std::vector<std::string>{"norm", "mlp"});
  CHECK(s.recompute.distribute);
  CHECK(s.optimizer.type == "sgd");
  CHECK(s.optimizer.momentum == 0.5);
  CHECK(s.optimizer.weight_decay_ramp == "linear");
  CHECK(s.optimizer.weight_decay_end == 0.2);
  CHECK(s.lr.wsd_decay == 1000);
  CHECK(s.lr.wsd_style == "linear");
  CHECK(s.health.nan == "skip");
  CHECK(s.launch.spawn == "threads");
  CHECK(s.launch.via == "slurm");
  CHECK(s.launch.slurm.size() == 31);
  CHECK(s.launch.kubernetes.size() == 23);
  CHECK(s.launch.kubernetes.at("pvc") == std::vector<std::string>{"a", "b"});
  CHECK(s.launch.slurm.at("partition") == std::vector<std::string>{"x"});
  CHECK(s.launch.slurm.at("modules") == std::vector<std::string>{"a", "b"});
  CHECK(s.model.norm.type == "rmsnorm");
  CHECK(s.model.position.type == "rope");
  CHECK(s.model.position.base == 5e5);
  CHECK(s.model.position.scaling.type == "llama3");
  CHECK(s.model.position.scaling.factor == 4);
  CHECK(s.model.position.scaling.low_freq_factor == 2);
  CHECK(s.model.position.scaling.high_freq_factor == 3);
  CHECK(s.model.position.scaling.original_max_seq == 16);
  CHECK(s.model.position.scaling.beta_slow == 2);
  CHECK(s.model.position.scaling.beta_fast == 16);
  CHECK_FALSE(s.model.position.scaling.truncate);
  CHECK(s.model.position.scaling.attention_factor == 1.25);
  CHECK(s.model.kv_heads == 2);
  CHECK(s.model.head_dim == 8);
  CHECK(s.model.qk_norm);
  CHECK(s.model.qkv_bias == "true");
  CHECK(s.model.sliding_window == 40);
  CHECK(s.model.moe.experts == 4);
  CHECK(s.model.moe.topk == 3);
  CHECK(s.model.moe.aux_loss == 0.01);
  CHECK(s.model.moe.z_loss == 1e-3);
  CHECK(s.model.activation == "swiglu");
  CHECK(s.train.accumulate_by == "step");
  CHECK(s.train.batch_ramp == std::map<int64_t, int64_t>{{0, 8}, {1000, 16}});
  CHECK_FALSE(s.train.deterministic);
  CHECK(s.optimizer.beta1 == 0.8);
  CHECK(s.optimizer.beta2 == 0.5);
  CHECK(s.optimizer.eps == 1e-6);
  CHECK(s.optimizer.weight_decay == 0);
  CHECK(s.optimizer.clip == 0);
  CHECK(s.optimizer.offload == "cpu");
  CHECK(s.lr.max == 1e-3);
  CHECK(s.lr.min == 1e-4);
  CHECK(s.lr.schedule == "wsd");
  CHECK(s.lr.warmup == 1000);
  CHECK(s.lr.decay == 2000);
  CHECK(s.init.std == 0.01);
  CHECK(s.checkpoint.every == 1500);
  CHECK(s.checkpoint.keep_last == 0);
  CHECK(s.checkpoint.resume == "must");
  CHECK(s.log.every == 1);
  CHECK(s.model.ffn == 100);
  CHECK(s.model.norm.eps == 1e-6);
  CHECK(s.model.max_seq == 64);
  CHECK_FALSE(s.model.bias);
  CHECK_FALSE(s.model.tie_embeddings);
  CHECK(s.model.vocab_pad_to == 1);
  CHECK(s.model.dropout.hidden == 0.1);
  CHECK(s.model.dropout.attention == 0.2);
  CHECK(s.train.micro_batch == 2);
  CHECK(s.train.logits_rows == 100);
  CHECK(s.train.seed == 0);
  CHECK(s.train.eval.every == 5);
  CHECK(s.train.eval.iters == 100);
  CHECK(s.train.eval.generate.prompts == std::vector<std::string>{"ROMEO:", "7", "a\"b c"});
  CHECK(s.train.eval.generate.tokens == 9);
  CHECK(s.train.eval.generate.temperature == 0);
  CHECK(s.data.split == std::vector<double>{1, 0});
  CHECK(s.data.sampler == "sequential");
  CHECK(s.data.tokenizer.type == "chars");
  CHECK(s.init.from == "there");
  CHECK(s.data.valid == "held_out");
  CHECK(s.data.format == "nanogpt");
  CHECK(s.data.vocab == 50257);
  CHECK(s.data.eod == 0);
  CHECK(s.data.cache == "/tmp/c");
  CHECK(s.data.workers == 0);
  CHECK(s.data.on_change == "accept");
  CHECK(s.data.reset_positions_at_eod);
  CHECK(s.data.reset_attention_at_eod);
  CHECK(s.data.mask_eod_loss);
  CHECK(s.data.tokenizer.file == "t");
  CHECK(s.data.tokenizer.vocab == "v");
  CHECK(s.data.tokenizer.merges == "m");
  CHECK(s.data.tokenizer.eod == "e");
  CHECK(s.checkpoint.every_time == 1800);
  CHECK_FALSE(s.checkpoint.async);
  CHECK(s.checkpoint.keep_every == 100);
  CHECK(s.health.max_time == 11 * 3600);
  CHECK(s.health.spike_factor == 6);
  CHECK(s.health.straggler_factor == 1.5);
  CHECK(s.checkpoint.keep_best.k == 2);
  CHECK(s.checkpoint.keep_best.metric == "loss");
  CHECK(s.checkpoint.keep_best.mode == "max");
  for (const spec::Row& row : spec::schema()) {
    CAPTURE(row.key);
    CHECK(loaded.resolved.origins.at(row.key) != Origin::built_in);
  }
}

TEST_CASE("auto stands for 0, and only where it is meant") {
  const Loaded loaded = load_overrides({"parallel.dp=auto", "train.micro_batch=auto",
                                        "lr.decay=auto", "model.ffn=auto", "model.max_seq=auto"});
  CHECK(texts(loaded).empty());
  CHECK(loaded.resolved.spec.lr.decay == 0);
  CHECK(loaded.resolved.origins.at("lr.decay") == Origin::command_line);
  CHECK(code_of("parallel.tp=auto") == "config.type");
  CHECK(refusal("parallel.dp=0") ==
        "config.range: parallel.dp cannot be `0` | give a whole number from 1 to 1048576, or auto "
        "(world size / (tp x cp x ep x pp))");
}

TEST_CASE("whole numbers") {
  const auto steps = [](const std::string& text) -> int64_t {
    const Loaded loaded = load_overrides({"train.steps=" + text});
    return loaded.problems.empty() ? loaded.resolved.spec.train.steps : -1;
  };
  CHECK(steps("1e9") == 1'000'000'000);
  CHECK(steps("1E+3") == 1000);
  CHECK(steps("1.5e3") == 1500);
  CHECK(steps("1000e-2") == 10);
  CHECK(steps("1_000_000") == 1'000'000);
  CHECK(steps("+7") == 7);
  CHECK(steps("32.0") == 32);
  CHECK(steps("10k") == 10'000);
  CHECK(steps("2.5M") == 2'500'000);
  CHECK(steps("1G") == 1'000'000'000);
  for (const char* bad :
       {"1e-3", "1.5", "010", "0x10", "1__0", "_1",     "1_",  "1 000", "12:30:45",
        "k",    "1kk", "1e",  "e5",   "-",    "+-1",    "ten", "1,000", "true",
        ".inf", ".5",  "nan", "'5'",  "[5]",  "{a: 5}", "~",   ""}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("train.steps={}", bad)) == "config.type");
  }
  for (const char* bad : {"0", "-1", "-5k", "1e13", "1e30", "1e99999999999", "9223372036854775808",
                          "99999999999999999999", "9999999999G"}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("train.steps={}", bad)) == "config.range");
  }
  CHECK(refusal("train.seq_len=4k") ==
        "config.type: train.seq_len: `4k` is not a whole number | write the number in full: "
        "whether k is 1000 or 1024 is a matter of taste");
  CHECK(refusal("train.steps=010").find("leading zeros") != std::string::npos);
  CHECK(load_overrides({"train.seed=9007199254740992"}).resolved.spec.train.seed ==
        9007199254740992u);
  CHECK(code_of("train.seed=9007199254740993") == "config.range");
}

TEST_CASE("numbers") {
  const auto lr = [](const std::string& text) {
    const Loaded loaded = load_overrides({"lr.max=" + text});
    return loaded.problems.empty() ? loaded.resolved.spec.lr.max : -1.0;
  };
  CHECK(lr("1e-3") == 1e-3);
  CHECK(lr("1.0e-3") == 1e-3);
  CHECK(lr("+.5") == 0.5);
  CHECK(lr("1") == 1.0);
  for (const char* bad : {"fast", "1e", "0x1p3", "1_0", "1,5", "+-1", "'1'", "[1]", "1e-3 x"}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("lr.max={}", bad)) == "config.type");
  }
  for (const char* bad : {"0", "-1e-3", "1e999", "inf", "nan", "1e4"}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("lr.max={}", bad)) == "config.range");
  }
  CHECK(refusal("model.dropout.hidden=1") ==
        "config.range: model.dropout.hidden cannot be `1` | give a number at least 0, below 1");
}

TEST_CASE("switches, texts, paths and lists") {
  for (const char* bad : {"yes", "no", "on", "1", "True", "'true'"}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("model.bias={}", bad)) == "config.type");
  }
  CHECK(load_overrides({"run.name=007"}).resolved.spec.run.name == "007");
  CHECK(load_overrides({"run.name='no'"}).resolved.spec.run.name == "no");
  CHECK(load_overrides({"data.train=a=b.txt"}).resolved.spec.data.train == "a=b.txt");
  CHECK(code_of("run.name=a/b") == "config.range");
  CHECK(code_of("run.name=..") == "config.range");
  CHECK(code_of("run.name=''") == "config.range");
  CHECK(code_of("run.dir=~/runs") == "config.range");
  CHECK(code_of("data.train=") == "config.type");
  CHECK(code_of("data.train=[]") == "config.range");
  CHECK(code_of("data.train={path: a}") == "config.type");
  CHECK(code_of("data.train=[{path: a, weigth: 1}]") == "config.type");
  CHECK(code_of("data.train=[{weight: 1}]") == "config.type");
  CHECK(code_of("data.train=[{path: a, weight: 0}]") == "config.range");
  CHECK(code_of("data.train=[{path: a, weight: 1}, b]") == "config.range");
  {
    const TrainSpec s =
        load_overrides({"data.train=[{path: 'a b', weight: 0.3}, {path: c, weight: 7}]"})
            .resolved.spec;
    CHECK(s.data.train.empty());
    CHECK(s.data.train_list == std::vector<TrainSpec::Data::Source>{{"a b", 0.3}, {"c", 7}});
  }
  CHECK(load_overrides({"data.train=[a, b]"}).resolved.spec.data.train_list ==
        std::vector<TrainSpec::Data::Source>{{"a", 0}, {"b", 0}});
  CHECK(load_overrides({"data.train=[a]", "data.train=x"}).resolved.spec.data.train_list.empty());
  CHECK(code_of("optimizer.betas=0.9") == "config.type");
  CHECK(code_of("optimizer.betas=[0.9]") == "config.range");
  CHECK(code_of("optimizer.betas=[0.9, 1]") == "config.range");
  CHECK(code_of("optimizer.betas=[0.9, x]") == "config.type");
  CHECK(code_of("optimizer.betas=[0.9, [1]]") == "config.type");
  CHECK(load_overrides({"data.split=[969, 30, 1]"}).resolved.spec.data.split ==
        std::vector<double>{969, 30, 1});
  CHECK(refusal("data.split=[1, 2, 3, 4]") ==
        "config.range: data.split has 4 numbers instead of one to three | give one to three "
        "numbers from 0 to 1000000000000, like [90, 10]");
  CHECK(code_of("data.split=[0, 1]") == "config.range");
  CHECK(code_of("data.split=[1, -1]") == "config.range");
  CHECK(code_of("model.dropout=0.1") == "config.type");
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

TEST_CASE("what other trainers have and this version lacks is refused by name") {
  for (const char* setting : {"model.moe.capacity=1.25", "parallel.order=x", "launch={kind: local}",
                              "log.jsonl=x", "train.epochs=2", "health={rerun: true}"}) {
    CAPTURE(setting);
    CHECK(refusal(setting).find("not available in this version") != std::string::npos);
    CHECK(code_of(setting) == "config.unknown_key");
  }
  for (const char* setting :
       {"model.activation=geglu", "optimizer.type=lion", "lr.schedule=polynomial",
        "data.tokenizer.type=tiktoken", "recompute.modules=[moe]"}) {
    CAPTURE(setting);
    CHECK(refusal(setting).find("not available") != std::string::npos);
    CHECK(code_of(setting) == "config.enum");
  }
  CHECK(refusal("model.position.scaling.type=dynamic").find("the length of each text") !=
        std::string::npos);
  CHECK(refusal("model.position.scaling.type=longrope").find("lists of factors") !=
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

TEST_CASE("resolved.yaml names the origin of every value") {
  const TempDir dir;
  const Loaded loaded = load(dir, kSmallest,
                             {.train_yaml = {},
                              .default_config = {{"parallel.tp", "2"}},
                              .environment = {{"MTL_LR__MAX", "1e-3"}},
                              .overrides = {"train.eval.every=100"}});
  const std::string text = resolved_yaml(loaded.resolved);
  CHECK(text.find("\n  layers: 2  # train.yaml\n") != std::string::npos);
  CHECK(text.find("\n  ffn: auto  # built-in\n") != std::string::npos);
  CHECK(text.find("\n  norm:\n    type: layernorm  # built-in\n    eps: 1e-05  # built-in\n"
                  "  position:\n") != std::string::npos);
  CHECK(text.find("\nparallel:\n  tp: 2  # default_config.yaml\n") != std::string::npos);
  CHECK(text.find("\n  max: 0.001  # environment\n") != std::string::npos);
  CHECK(text.find("\n  eval:\n    every: 100  # command line\n") != std::string::npos);
  CHECK(text.find("\n  betas: [0.9, 0.95]  # built-in\n") != std::string::npos);
  // What a job could be given, and is not, is left out.
  const std::vector<std::string> keys = spec_keys();
  const auto shown = std::count_if(keys.begin(), keys.end(), [](const std::string& key) {
    return !key.starts_with("launch.slurm.") && !key.starts_with("launch.kubernetes.");
  });
  CHECK(std::count(text.begin(), text.end(), '#') == shown + 1);
}

TEST_CASE("what a job is given is a text or a list and written as it was") {
  const Loaded loaded = load_more(
      "launch:\n  slurm:\n    time: 1:30:00\n    partition: gpu\n    exclusive: true\n"
      "    modules: [cuda/12.4, \"a: b\"]\n    setup: echo x\n    extra: []\n");
  CHECK(texts(loaded).empty());
  const auto& slurm = loaded.resolved.spec.launch.slurm;
  CHECK(slurm.at("time") == std::vector<std::string>{"1:30:00"});
  CHECK(slurm.at("exclusive") == std::vector<std::string>{"true"});
  CHECK(slurm.at("modules") == std::vector<std::string>{"cuda/12.4", "a: b"});
  CHECK(slurm.at("setup") == std::vector<std::string>{"echo x"});
  CHECK(slurm.count("extra") == 0);
  const std::string text = resolved_yaml(loaded.resolved);
  CHECK(text.find("\n    time: \"1:30:00\"  # train.yaml\n") != std::string::npos);
  CHECK(text.find("    qos:") == std::string::npos);
  CHECK(code_of("launch.slurm.time=[1, 2]") == "config.type");
  CHECK(code_of("launch.slurm.time={a: 1}") == "config.type");
  CHECK(code_of("launch.slurm.time=") == "config.type");
  CHECK(code_of("launch.slurm.modules=[[a]]") == "config.type");
  CHECK(code_of("launch.slurm.partitoin=x") == "config.unknown_key");
}

TEST_CASE("resolved.yaml reads back to the same values, bit for bit") {
  const TempDir dir;
  CHECK(rc::check("any allowed values", [&] {
    ResolvedSpec any = load(dir, kSmallest).resolved;
    TrainSpec& s = any.spec;
    const auto unit = [] {
      return static_cast<double>(*rc::gen::inRange<int64_t>(0, int64_t{1} << 53)) * 0x1p-53;
    };
    s.lr.max = unit() + 1e-300;
    s.lr.min = unit() * 1e-200;
    s.optimizer.beta1 = unit();
    s.optimizer.beta2 = unit();
    s.optimizer.weight_decay = unit() * 100;
    s.optimizer.eps = unit() / 3 + 5e-324;
    s.data.split = {unit() * 1e12 + 1, unit()};
    s.train.steps = *rc::gen::inRange<int64_t>(1, 1'000'000'000'001);
    s.train.seed = *rc::gen::inRange<uint64_t>(0, (uint64_t{1} << 53) + 1);
    s.lr.decay = *rc::gen::inRange<int64_t>(0, 3);
    s.parallel.bucket_mb = *rc::gen::arbitrary<bool>() ? 0 : unit() + 1e-9;
    s.parallel.sp = *rc::gen::element<std::string>("auto", "true", "false");
    s.parallel.stage_balance = *rc::gen::element<std::string>("uniform", "balanced");
    s.recompute.method = *rc::gen::element<std::string>("", "uniform", "block");
    s.recompute.modules = *rc::gen::elementOf(std::vector<std::vector<std::string>>{
        {"core_attn"}, {"mlp", "norm"}, {"norm", "mlp_act", "core_attn"}});
    if (*rc::gen::arbitrary<bool>()) {
      s.parallel.stage_layout = *rc::gen::nonEmpty(
          rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 100)));
      s.parallel.stage_balance = "uniform";
    }
    std::map<int64_t, int64_t> ramp = *rc::gen::container<std::map<int64_t, int64_t>>(
        rc::gen::inRange<int64_t>(0, 1'000'000), rc::gen::inRange<int64_t>(1, 1000));
    if (!ramp.empty()) ramp[0] = 7;
    if (*rc::gen::arbitrary<bool>() && !ramp.empty()) {
      s.train.accumulate = ramp;
      s.train.global_batch = 0;
    } else {
      s.train.batch_ramp = ramp;
    }
    s.model.bias = *rc::gen::arbitrary<bool>();
    // A path may hold anything printable, YAML's own signs above all.
    s.data.train = "x" + *rc::gen::container<std::string>(rc::gen::oneOf(
                             rc::gen::inRange(' ', '\x7f'),
                             rc::gen::elementOf(std::string(":#'\"{}[]&*!|>%@`\\ \t"))));
    s.run.dir = *rc::gen::element<std::string>("no", "null", "1e9", "010", "é ü", "- a", "a: b",
                                               "0x1", ".5", "auto", "true", " lead", "trail ");
    const Loaded again = load(dir, resolved_yaml(any));
    for (const Diagnostic& problem : again.problems) RC_LOG(render(problem));
    RC_ASSERT(again.problems.empty());
    RC_ASSERT(values_of(again.resolved.spec) == values_of(s));
    RC_ASSERT(again.resolved.spec.lr.max == s.lr.max);
    RC_ASSERT(again.resolved.spec.train.accumulate == s.train.accumulate);
    RC_ASSERT(again.resolved.spec.train.batch_ramp == s.train.batch_ramp);
    RC_ASSERT(again.resolved.spec.parallel.stage_layout == s.parallel.stage_layout);
    RC_ASSERT(again.resolved.spec.parallel.stage_balance == s.parallel.stage_balance);
    RC_ASSERT(again.resolved.spec.recompute.modules == s.recompute.modules);
    RC_ASSERT(again.resolved.spec.data.split == s.data.split);
    RC_ASSERT(again.resolved.spec.data.train == s.data.train);
  }));
}
