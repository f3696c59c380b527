// Rules of a step: its batch, recompute and the learning rate (rules_test.cpp).
#include "runtime/plan/rules_cases.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("rules of the batch") {
  check_cases({
      {"GBS % d == 0", [](TrainSpec&) {}, 5, "batch.dp", "train.global_batch",
       "train.global_batch 12 cannot be divided over dp 5", "use a multiple of 5: 10 or 15"},
      {"GBS % d == 0 and other layouts", [](TrainSpec&) {}, 8, "batch.dp", "train.global_batch",
       "train.global_batch 12 cannot be divided over dp 8", "use a multiple of 8: 8 or 16",
       "8 processes can be tp=1 pp=2 dp=4, or tp=2 pp=1 dp=4, or tp=1 pp=4 dp=2"},
      {"GBS % (MBS d) == 0", [](TrainSpec& s) { s.train.micro_batch = 5; }, 1, "batch.micro",
       "train.micro_batch",
       "train.micro_batch 5 does not divide the 12 sequences of each replica (global_batch 12 / dp "
       "1)",
       "use 4 or 6"},
      {"a micro-batch larger than the share", [](TrainSpec& s) { s.train.micro_batch = 1'000'000; },
       4, "batch.micro", "train.micro_batch",
       "train.micro_batch 1000000 does not divide the 3 sequences of each replica (global_batch 12 "
       "/ dp 4)",
       "use 3"},
      {"a ramp that does not divide",
       [](TrainSpec& s) {
         s.train.batch_ramp = {{0, 2}, {10, 5}, {20, 7}, {30, 8}};
       },
       2, "batch.dp", "train.batch_ramp", "train.batch_ramp 5 and 7 cannot be divided over dp 2",
       "use multiples of 2", "2 processes can be tp=1 pp=2 dp=1, or tp=2 pp=1 dp=1"},
      {"a ramp with an odd share",
       [](TrainSpec& s) {
         s.train.batch_ramp = {{0, 8}, {10, 12}, {20, 20}};
         s.train.micro_batch = 4;
       },
       2, "batch.micro", "train.micro_batch",
       "train.micro_batch 4 does not divide the 6 and 10 sequences of each replica "
       "(train.batch_ramp / dp 2)",
       "use 2", "2 processes can be tp=1 pp=2 dp=1, or tp=2 pp=1 dp=1"},
      {"accumulation of nothing",
       [](TrainSpec& s) {
         s.train.global_batch = 0;
         s.train.accumulate = {{0, 8}};
       },
       2, "batch.micro", "train.accumulate",
       "train.accumulate counts micro-batches, and train.micro_batch does not say how many "
       "sequences each has",
       "set train.micro_batch: with 4, a step has up to 64 sequences"},
      {"accumulation of nothing with CP",
       [](TrainSpec& s) {
         s.train.global_batch = 0;
         s.train.accumulate = {{0, 8}};
         s.parallel.cp = 2;
       },
       4, "batch.micro", "train.accumulate",
       "train.accumulate counts micro-batches, and train.micro_batch does not say how many "
       "sequences each has",
       "set train.micro_batch: with 1, a step has up to 16 sequences"},
      {"accumulation without end",
       [](TrainSpec& s) {
         s.train.accumulate = {{0, 1'000'000'000}};
         s.train.micro_batch = 1'000'000'000;
       },
       2, "batch.size", "train.accumulate",
       "train.accumulate 1000000000 x train.micro_batch 1000000000 x dp 2 are more than 1000000000 "
       "sequences per step",
       "use a smaller train.accumulate or train.micro_batch"},
      {"accumulation by epochs of unknown length",
       [](TrainSpec& s) {
         s.train.accumulate = {{0, 8}, {4, 4}};
         s.train.micro_batch = 1;
       },
       1, "batch.epoch", "train.accumulate",
       "train.accumulate counts epochs, and how long one is is not known",
       "set train.accumulate_by=step"},
      {"more micro-batches than can be planned",
       [](TrainSpec& s) {
         s.train.global_batch = 1'000'000'000;
         s.train.micro_batch = 1;
         s.parallel.pp = 2;
       },
       2, "batch.size", "train.micro_batch",
       "1000000000 micro-batches per step through 2 stages are more than mtl plans: 524288",
       "use a larger train.micro_batch"},
  });
}

TEST_CASE("rules of recompute") {
  check_cases({
      {"selective has no method",
       [](TrainSpec& s) {
         s.recompute.mode = "selective";
         s.recompute.method = "block";
       },
       1, "recompute.method", "recompute.method",
       "recompute.method belongs to recompute.mode full, and the mode is selective",
       "leave recompute.method out, or set recompute.mode=full"},
      {"layers without full", [](TrainSpec& s) { s.recompute.layers = 2; }, 1, "recompute.layers",
       "recompute.layers", "recompute.layers belongs to recompute.mode full, and the mode is none",
       "leave recompute.layers out, or set recompute.mode=full"},
      {"modules without selective", [](TrainSpec& s) { s.recompute.modules = {"mlp"}; }, 1,
       "recompute.modules", "recompute.modules",
       "recompute.modules belongs to recompute.mode selective, and the mode is none",
       "leave recompute.modules out, or set recompute.mode=selective"},
      {"numbers of modules without selective",
       [](TrainSpec& s) {
         s.recompute.module_layers = {{"core_attn", 2}};
       },
       1, "recompute.modules", "recompute.modules",
       "recompute.modules belongs to recompute.mode selective, and the mode is none",
       "leave recompute.modules out, or set recompute.mode=selective"},
      {"a module of more layers than a stage has",
       [](TrainSpec& s) {
         s.recompute.mode = "selective";
         s.recompute.modules = {"norm", "mlp_act"};
         s.recompute.module_layers = {{"mlp_act", 3}};
         s.parallel.pp = 2;
       },
       2, "recompute.modules", "recompute.modules",
       "recompute.modules: mlp_act: 3 is more than the 2 layers of a stage", "use at most 2",
       "2 processes can be tp=1 pp=1 dp=2, or tp=2 pp=1 dp=1"},
      {"more layers than a stage has",
       [](TrainSpec& s) {
         s.recompute.mode = "full";
         s.recompute.layers = 3;
         s.parallel.pp = 2;
       },
       2, "recompute.layers", "recompute.layers",
       "recompute.layers 3 is more than the 2 layers of a stage", "use at most 2",
       "2 processes can be tp=1 pp=1 dp=2, or tp=2 pp=1 dp=1"},
      {"distribute_saved_activations needs full",
       [](TrainSpec& s) {
         s.recompute.distribute = true;
         s.parallel.tp = 2;
       },
       2, "recompute.distribute", "recompute.distribute",
       "recompute.distribute belongs to recompute.mode full, and the mode is none",
       "leave recompute.distribute out, or set recompute.mode=full"},
      {"distribute_saved_activations needs t > 1",
       [](TrainSpec& s) {
         s.recompute.mode = "full";
         s.recompute.distribute = true;
         s.parallel.sp = "false";
       },
       2, "recompute.distribute", "recompute.distribute",
       "recompute.distribute divides kept inputs over TP ranks, and parallel.tp is 1",
       "use parallel.tp >= 2, or leave recompute.distribute out",
       "2 processes can be tp=2 pp=1 dp=1"},
      {"sequence parallelism divides them already",
       [](TrainSpec& s) {
         s.recompute.mode = "full";
         s.recompute.distribute = true;
         s.parallel.tp = 2;
       },
       2, "recompute.distribute", "recompute.distribute",
       "with sequence parallelism the kept inputs are divided already",
       "leave recompute.distribute out, or set parallel.sp=false"},
      {"distributed inputs divide",
       [](TrainSpec& s) {
         s.recompute.mode = "full";
         s.recompute.distribute = true;
         s.parallel.tp = 3;
       },
       3, "recompute.distribute", "recompute.distribute",
       "train.seq_len 16 cannot be divided over parallel.tp 3",
       "use train.seq_len 15 or 18, or leave recompute.distribute out"},
  });
}

TEST_CASE("rules of the learning rate") {
  check_cases({
      {"min_lr <= lr", [](TrainSpec& s) { s.lr.min = 1; }, 1, "lr.range", "lr.min",
       "lr.min 1 is above lr.max 0.0003", "lower lr.min or raise lr.max"},
      {"the loss scale starts at its smallest value or above",
       [](TrainSpec& s) {
         s.precision.dtype = "fp16";
         s.precision.loss_scale.initial = 0.5;
       },
       1, "precision.loss_scale", "precision.loss_scale.initial",
       "precision.loss_scale.initial 0.5 is below precision.loss_scale.min 1",
       "raise the one or lower the other: at its smallest an overflow ends the run"},
      {"warm-up as long as the run", [](TrainSpec& s) { s.lr.warmup = 100; }, 1, "lr.warmup",
       "lr.warmup", "lr.warmup 100 leaves no step to decay: the run has 100 steps",
       "use lr.warmup < 100"},
      {"warmup < decay",
       [](TrainSpec& s) {
         s.lr.warmup = 60;
         s.lr.decay = 50;
       },
       1, "lr.warmup", "lr.warmup", "lr.warmup 60 leaves no step to decay: lr.decay is 50",
       "use lr.warmup < 50"},
      {"warm-up in a run of one step",
       [](TrainSpec& s) {
         s.lr.warmup = 1;
         s.train.steps = 1;
       },
       1, "lr.warmup", "lr.warmup", "lr.warmup 1 leaves no step to decay: the run has 1 step",
       "use lr.warmup=0"},
      {"more experts per token than there are",
       [](TrainSpec& s) {
         s.model.moe = {.experts = 4, .topk = 5};
         s.model.activation = "swiglu";
         s.model.bias = false;
       },
       1, "model.moe", "model.moe.topk", "model.moe.topk 5 is more than model.moe.experts 4",
       "use topk <= 4"},
      {"a router that cannot learn",
       [](TrainSpec& s) {
         s.model.moe = {.experts = 4, .topk = 1};
         s.model.activation = "swiglu";
         s.model.bias = false;
       },
       1, "model.moe", "model.moe.topk",
       "model.moe.topk 1 with model.moe.normalize: the one expert of a token always weighs 1, and "
       "the router cannot learn",
       "use topk 2 or more, or model.moe.normalize=false"},
      {"biases of experts beside probabilities",
       [](TrainSpec& s) {
         s.model.moe = {.experts = 4, .topk = 2, .expert_bias = true};
         s.model.activation = "swiglu";
         s.model.bias = false;
       },
       1, "model.moe", "model.moe.expert_bias",
       "model.moe.expert_bias is added to sigmoids, and model.moe.score is softmax",
       "set model.moe.score=sigmoid, or balance with model.moe.aux_loss"},
      {"groups of experts that are not alike",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.model.moe.groups = 4;
       },
       1, "model.moe", "model.moe.groups", "6 experts cannot be divided into model.moe.groups 4",
       "use groups 3 or 6"},
      {"more groups of a token than there are",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.model.moe.groups = 2;
         s.model.moe.group_topk = 3;
       },
       1, "model.moe", "model.moe.group_topk",
       "a token with model.moe.topk 2 cannot take experts of model.moe.group_topk 3 of 2 groups",
       "use group_topk <= 2"},
      {"a group's score of more experts than it has",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.model.moe.groups = 2;
         s.model.moe.group_best = 4;
       },
       1, "model.moe", "model.moe.group_best",
       "a group's score cannot be of model.moe.group_best 4 experts, it has 3",
       "use group_best <= 3"},
      {"groups of fewer experts than a token takes",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.model.moe.topk = 3;
         s.model.moe.groups = 3;
       },
       1, "model.moe", "model.moe.group_topk",
       "model.moe.group_topk 1 groups of 2 have fewer experts than model.moe.topk 3",
       "use group_topk >= 2, or fewer groups"},
      {"a dense layer behind the last one",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.model.moe.dense_layers = {0, 9};
         s.model.layers = 9;
       },
       1, "model.moe", "model.moe.dense_layers",
       "model.moe.dense_layers names layer 9, and the model has 9, from 0 on",
       "leave it out, or raise model.layers"},
      {"mixtures nowhere",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.model.layers = 4;
         s.model.moe.every = 2;
         s.model.moe.dense_layers = {0, 2};
       },
       1, "model.moe", "model.moe.dense_layers",
       "no layer is a mixture, and model.moe.experts asks for experts",
       "leave a layer out of model.moe.dense_layers, or set model.moe.experts=0"},
      {"experts of another kind",
       [](TrainSpec& s) {
         s.model.moe.experts = 4;
         s.model.bias = false;
       },
       1, "model.moe", "model.moe.experts",
       "experts are blocks with a gate, and model.activation is gelu",
       "set model.activation=swiglu, geglu or quick_geglu"},
      {"biases beside a block for all tokens",
       [](TrainSpec& s) {
         s.model.moe.experts = 4;
         s.model.moe.shared_ffn = 64;
         s.model.activation = "swiglu";
       },
       1, "model.moe", "model.moe.shared_ffn",
       "the block that all tokens go through has no biases, and model.bias is true",
       "set model.bias=false (model.qkv_bias may stay true) or model.moe.shared_ffn=0"},
      {"a final decay that begins before the warm-up ends",
       [](TrainSpec& s) {
         s.lr.schedule = "wsd";
         s.lr.warmup = 30;
         s.lr.wsd_decay = 80;
       },
       1, "lr.wsd_decay", "lr.wsd_decay",
       "lr.wsd_decay 80 does not fit between lr.warmup 30 and the end of the run at step 100",
       "use at most 70"},
  });
}

TEST_CASE("accumulation from a later epoch on counts epochs though it is one number") {
  ResolvedSpec resolved = ruled_spec();
  resolved.spec.train.global_batch = 0;
  resolved.spec.train.micro_batch = 2;
  resolved.spec.train.accumulate = {{3, 8}};
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65, .sequences = 10}, 1, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.batch.phases() == std::vector<BatchPhase>{{0, 0, 2, 1}, {15, 30, 16, 8}});
}
