// The keys of train.yaml: what they are without it, and that each can be set.
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/spec/load.h"
#include "runtime/spec/schema.h"

using namespace mtl;
using namespace mtl::test;

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
      "            weight_decay_ramp: linear, weight_decay_end: 0.2,\n"
      "            muon: {momentum: 0.8, nesterov: false, steps: 6, coefficients: quintic,\n"
      "                   scale: shape, factor: 1}}\n"
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
      "lora: {rank: 8, alpha: 4, targets: [down, qkv]}\n"
      "checkpoint: {every: 1.5k, keep_last: 0, resume: must}\n"
      "log: {every: 1, tensorboard: false}\n",
      {.train_yaml = {},
       .overrides = {
           "model.ffn=100",
           "model.norm={type: rmsnorm, eps: 1e-6, place: both, bias: false, shared: true}",
           "model.position={type: rope, base: 5e5, fraction: 0.25, scaling: {type: llama3, factor: "
           "4, "
           "low_freq_factor: 2, high_freq_factor: 3, original_max_seq: 16, beta_slow: 2, "
           "beta_fast: 16, truncate: false, attention_factor: 1.25, short_factor: [1, 1.5], "
           "long_factor: [2]}}",
           "model.kv_heads=2",
           "model.head_dim=8",
           "model.qk_norm=true",
           "model.qk_norm_whole=true",
           "model.latent.kv_rank=512",
           "model.latent.q_rank=1536",
           "model.latent.rope_dim=32",
           "model.latent.value_dim=96",
           "model.latent.norm_eps=1e-5",
           "model.parallel_residual=true",
           "model.embedding_scale=45.25",
           "model.residual_scale=0.22",
           "model.logit_scale=0.125",
           "model.head_bias=true",
           "model.qkv_bias=true",
           "model.sliding_window=40",
           "model.full_attention={every: 3, layers: [0, 7]}",
           "model.attention_scale=0.0625",
           "model.attention_cap=20",
           "model.logit_cap=15",
           "model.attention_sinks=true",
           "model.glu_offset=1",
           "model.glu_clamp=7",
           "model.position.window_base=100",
           "model.position.skip={every: 4, layers: [1]}",
           "model.moe={experts: 4, ffn: 64, every: 2, dense_layers: [4, 6], topk: 3, scale: 2.5, "
           "groups: 2, group_topk: 2, group_best: 2, aux_loss: 0.01, z_loss: 1e-3, score: sigmoid, "
           "normalize: false, shared_ffn: 96, shared_gate: true, expert_bias: true, "
           "bias_rate: 0.01}",
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
  CHECK(s.optimizer.muon.momentum == 0.8);
  CHECK_FALSE(s.optimizer.muon.nesterov);
  CHECK(s.optimizer.muon.steps == 6);
  CHECK(s.optimizer.muon.coefficients == "quintic");
  CHECK(s.optimizer.muon.scale == "shape");
  CHECK(s.optimizer.muon.factor == 1);
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
  CHECK(s.model.position.fraction == 0.25);
  CHECK(s.model.position.scaling.type == "llama3");
  CHECK(s.model.position.scaling.factor == 4);
  CHECK(s.model.position.scaling.low_freq_factor == 2);
  CHECK(s.model.position.scaling.high_freq_factor == 3);
  CHECK(s.model.position.scaling.original_max_seq == 16);
  CHECK(s.model.position.scaling.beta_slow == 2);
  CHECK(s.model.position.scaling.beta_fast == 16);
  CHECK_FALSE(s.model.position.scaling.truncate);
  CHECK(s.model.position.scaling.attention_factor == 1.25);
  CHECK(s.model.position.scaling.short_factor == std::vector<double>{1, 1.5});
  CHECK(s.model.position.scaling.long_factor == std::vector<double>{2});
  CHECK(s.model.kv_heads == 2);
  CHECK(s.model.head_dim == 8);
  CHECK(s.model.norm.place == "both");
  CHECK(s.model.norm.bias == "false");
  CHECK(s.model.norm.shared);
  CHECK(s.model.qk_norm);
  CHECK(s.model.qk_norm_whole);
  CHECK(s.model.latent.kv_rank == 512);
  CHECK(s.model.latent.q_rank == 1536);
  CHECK(s.model.latent.rope_dim == 32);
  CHECK(s.model.latent.value_dim == 96);
  CHECK(s.model.latent.norm_eps == 1e-5);
  CHECK(s.model.parallel_residual);
  CHECK(s.model.embedding_scale == 45.25);
  CHECK(s.model.residual_scale == 0.22);
  CHECK(s.model.logit_scale == 0.125);
  CHECK(s.model.head_bias);
  CHECK(s.model.qkv_bias == "true");
  CHECK(s.model.sliding_window == 40);
  CHECK(s.model.full_attention.every == 3);
  CHECK(s.model.full_attention.layers == std::vector<int64_t>{0, 7});
  CHECK(s.model.attention_scale == 0.0625);
  CHECK(s.model.attention_cap == 20);
  CHECK(s.model.logit_cap == 15);
  CHECK(s.model.attention_sinks);
  CHECK(s.model.glu_offset == 1);
  CHECK(s.model.glu_clamp == 7);
  CHECK(s.model.position.window_base == 100);
  CHECK(s.model.position.skip.every == 4);
  CHECK(s.model.position.skip.layers == std::vector<int64_t>{1});
  CHECK(s.model.moe.experts == 4);
  CHECK(s.model.moe.ffn == 64);
  CHECK(s.model.moe.every == 2);
  CHECK(s.model.moe.dense_layers == std::vector<int64_t>{4, 6});
  CHECK(s.model.moe.scale == 2.5);
  CHECK(s.model.moe.groups == 2);
  CHECK(s.model.moe.group_topk == 2);
  CHECK(s.model.moe.group_best == 2);
  CHECK(s.model.moe.topk == 3);
  CHECK(s.model.moe.aux_loss == 0.01);
  CHECK(s.model.moe.z_loss == 1e-3);
  CHECK(s.model.moe.score == "sigmoid");
  CHECK_FALSE(s.model.moe.normalize);
  CHECK(s.model.moe.shared_ffn == 96);
  CHECK(s.model.moe.shared_gate);
  CHECK(s.model.moe.expert_bias);
  CHECK(s.model.moe.bias_rate == 0.01);
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
