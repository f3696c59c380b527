// Rules of the model, the ranks and the pipeline (rules_test.cpp).
#include "runtime/plan/rules_cases.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("rules of the model") {
  check_cases({
      {"h % a == 0 unless head_dim is given", [](TrainSpec& s) { s.model.heads = 7; }, 1,
       "model.head_dim", "model.heads", "model.hidden 48 cannot be divided into model.heads 7",
       "use heads 6 or 8, or give model.head_dim"},
      {"a % g == 0", [](TrainSpec& s) { s.model.kv_heads = 4; }, 1, "model.kv_heads",
       "model.kv_heads", "model.kv_heads 4 does not divide model.heads 6", "use kv_heads 3 or 6"},
      {"a % g == 0, said once with CP",
       [](TrainSpec& s) {
         s.model.kv_heads = 4;
         s.parallel.cp = 3;
       },
       3, "model.kv_heads", "model.kv_heads", "model.kv_heads 4 does not divide model.heads 6",
       "use kv_heads 3 or 6"},
      {"more KV heads than heads", [](TrainSpec& s) { s.model.kv_heads = 12; }, 1, "model.kv_heads",
       "model.kv_heads", "model.kv_heads 12 does not divide model.heads 6", "use kv_heads 6"},
      {"mixtures side by side with attention",
       [](TrainSpec& s) {
         s.model.activation = "swiglu";
         s.model.bias = false;
         s.model.moe.experts = 4;
         s.model.parallel_residual = true;
       },
       1, "model.moe", "model.parallel_residual",
       "model.parallel_residual reads a layer's input twice, and mixtures of experts stand behind "
       "attention",
       "set model.parallel_residual=false or model.moe.experts=0"},
      {"a norm behind each block, where both are one sum",
       [](TrainSpec& s) {
         s.model.norm.place = "both";
         s.model.parallel_residual = true;
       },
       1, "model.norm", "model.norm.place",
       "model.norm.place both has a norm behind each block, and with model.parallel_residual both "
       "are one sum",
       "set model.parallel_residual=false or model.norm.place=input"},
      {"one norm of blocks behind each other", [](TrainSpec& s) { s.model.norm.shared = true; }, 1,
       "model.norm", "model.norm.shared",
       "model.norm.shared is of blocks that read the same, and the feed-forward block reads what "
       "attention has added",
       "set model.parallel_residual=true or model.norm.shared=false"},
      {"a bias of RMS norms",
       [](TrainSpec& s) {
         s.model.norm.type = "rmsnorm";
         s.model.norm.bias = "true";
       },
       1, "model.norm", "model.norm.bias",
       "model.norm.bias is of layer norms, and model.norm.type is rmsnorm",
       "set model.norm.type=layernorm, or leave model.norm.bias out"},
      {"more parameters than anybody counts",
       [](TrainSpec& s) {
         s.model.ffn = 1 << 24;
         s.model.hidden = 6 << 17;
         s.model.layers = 100'000;
       },
       1, "model.size", "model.hidden", "some 3e+18 parameters are more than a model can have",
       "use smaller sizes: at most 1e15"},
      {"max_position_embeddings >= seq_length", [](TrainSpec& s) { s.model.max_seq = 8; }, 1,
       "model.max_seq", "model.max_seq", "model.max_seq 8 is shorter than train.seq_len 16",
       "use max_seq >= 16, or leave it out"},
  });
}

TEST_CASE("rules of the ranks") {
  check_cases({
      {"a % t == 0", [](TrainSpec& s) { s.parallel.tp = 4; }, 4, "mesh.heads", "parallel.tp",
       "model.heads 6 cannot be split over parallel.tp 4", "use tp 3 or 6",
       "4 processes can be tp=2 pp=1 dp=2, or tp=1 pp=1 dp=4, or tp=2 pp=2 dp=1"},
      {"more TP ranks than can be", [](TrainSpec& s) { s.parallel.tp = 65536; }, 1, "mesh.heads",
       "parallel.tp", "model.heads 6 cannot be split over parallel.tp 65536", "use tp 6",
       "1 process can be tp=1 pp=1 dp=1"},
      {"g % t == 0 or t % g == 0",
       [](TrainSpec& s) {
         s.model.heads = 24;
         s.model.kv_heads = 6;
         s.parallel.tp = 4;
       },
       4, "mesh.kv_heads", "parallel.tp",
       "model.kv_heads 6 can be neither split nor copied over parallel.tp 4", "use tp 3 or 6",
       "4 processes can be tp=2 pp=1 dp=2, or tp=1 pp=1 dp=4, or tp=2 pp=2 dp=1"},
      {"the help names degrees that heads and ffn both allow",
       [](TrainSpec& s) {
         s.parallel.tp = 3;
         s.model.ffn = 100;
       },
       3, "mesh.ffn", "parallel.tp", "model.ffn 100 cannot be split over parallel.tp 3", "use tp 2",
       "3 processes can be tp=1 pp=1 dp=3"},
      {"world % (t p) == 0", [](TrainSpec& s) { s.parallel.tp = 2; }, 3, "mesh.product",
       "parallel.tp", "tp 2 x pp 1 = 2 does not divide 3 processes",
       "start a multiple of 2 processes (--num_processes 4)",
       "3 processes can be tp=3 pp=1 dp=1, or tp=1 pp=1 dp=3"},
      {"a stage for each of too few processes", [](TrainSpec& s) { s.parallel.pp = 4; }, 1,
       "mesh.product", "parallel.pp", "tp 1 x pp 4 = 4 does not divide 1 process",
       "start a multiple of 4 processes (--num_processes 4)", "1 process can be tp=1 pp=1 dp=1"},
      {"world == t p d",
       [](TrainSpec& s) {
         s.parallel.tp = 2;
         s.parallel.dp = 4;
       },
       4, "mesh.product", "parallel.dp", "tp 2 x pp 1 x dp 4 = 8, but 4 processes are requested",
       "start 8 processes (--num_processes 8), or leave parallel.dp out",
       "4 processes can be tp=2 pp=1 dp=2, or tp=1 pp=1 dp=4, or tp=2 pp=2 dp=1"},
      {"SP needs t > 1", [](TrainSpec& s) { s.parallel.sp = "true"; }, 2, "mesh.sp", "parallel.sp",
       "sequence parallelism divides tokens over TP ranks, and parallel.tp is 1",
       "use parallel.tp >= 2, or parallel.sp=auto", "2 processes can be tp=2 pp=1 dp=1"},
      {"SP divides the tokens",
       [](TrainSpec& s) {
         s.parallel.sp = "true";
         s.parallel.tp = 3;
       },
       3, "mesh.sp", "parallel.sp", "train.seq_len 16 cannot be divided over parallel.tp 3",
       "use train.seq_len 15 or 18, or parallel.sp=auto"},
      {"SP divides what CP leaves",
       [](TrainSpec& s) {
         s.parallel.sp = "true";
         s.parallel.tp = s.parallel.cp = 2;
         s.model.heads = 12;
         s.train.seq_len = 18;
       },
       4, "mesh.sp", "parallel.sp",
       "train.seq_len 18 cannot be divided over parallel.cp 2 x parallel.tp 2",
       "use train.seq_len 16 or 20, or parallel.sp=auto"},
      {"a % (t c) == 0", [](TrainSpec& s) { s.parallel.cp = 4; }, 4, "mesh.cp", "parallel.cp",
       "6 heads and 6 KV heads cannot be split over parallel.cp 4: each rank attends with heads of "
       "its own",
       "use cp 2"},
      {"a % (t c) == 0 with TP",
       [](TrainSpec& s) {
         s.parallel.tp = 3;
         s.parallel.cp = 4;
       },
       12, "mesh.cp", "parallel.cp",
       "6 heads and 6 KV heads cannot be split over parallel.tp 3 x parallel.cp 4: each rank "
       "attends with heads of its own",
       "use cp 2"},
      {"(g / t) % c == 0 or c % (g / t) == 0",
       [](TrainSpec& s) {
         s.model.heads = 24;
         s.model.kv_heads = 6;
         s.parallel.cp = 4;
       },
       4, "mesh.cp", "parallel.cp",
       "24 heads and 6 KV heads cannot be split over parallel.cp 4: each rank attends with heads "
       "of its own",
       "use cp 2"},
      {"S % c == 0",
       [](TrainSpec& s) {
         s.train.seq_len = 15;
         s.parallel.cp = 2;
       },
       2, "mesh.cp", "parallel.cp", "train.seq_len 15 cannot be divided over parallel.cp 2",
       "use cp 1 or 3"},
      {"shards in copies need ZeRO",
       [](TrainSpec& s) {
         s.parallel.zero = 0;
         s.parallel.zero_ranks = 2;
       },
       4, "mesh.zero_ranks", "parallel.zero_ranks",
       "parallel.zero_ranks are ranks that divide what ZeRO divides, and parallel.zero is 0",
       "set parallel.zero to 1, 2 or 3, or leave parallel.zero_ranks out"},
      {"copies of shards are whole",
       [](TrainSpec& s) {
         s.parallel.tp = 2;
         s.parallel.zero_ranks = 10;
       },
       24, "mesh.zero_ranks", "parallel.zero_ranks",
       "parallel.zero_ranks 10 is no multiple of tp x cp x ep = 2 that divides the 24 ranks of a "
       "stage",
       "use 4, 6, 8, 12, or auto (all ranks)"},
      {"a copy has several ranks",
       [](TrainSpec& s) {
         s.parallel.tp = 2;
         s.parallel.zero_ranks = 2;
       },
       8, "mesh.zero_ranks", "parallel.zero_ranks",
       "with parallel.zero_ranks 2 every copy is on one replica, which divides nothing",
       "use 4, or auto (all ranks)"},
      {"EP divides experts", [](TrainSpec& s) { s.parallel.ep = 2; }, 2, "mesh.ep", "parallel.ep",
       "parallel.ep 2 divides experts, and model.moe.experts is 0",
       "use parallel.ep=1 (replicas are parallel.dp)"},
      {"EP divides experts, beside a dp that is given",
       [](TrainSpec& s) {
         s.parallel.ep = 2;
         s.parallel.dp = 1;
       },
       2, "mesh.ep", "parallel.ep", "parallel.ep 2 divides experts, and model.moe.experts is 0",
       "use parallel.ep=1 with parallel.dp=2 (replicas are parallel.dp)"},
      {"width of dense layers % t == 0",
       [](TrainSpec& s) {
         with_experts(s, 4);
         s.model.ffn = 50;
         s.model.moe.ffn = 16;
         s.model.moe.every = 2;
         s.model.heads = 8;
         s.model.hidden = 64;
         s.parallel.tp = 4;
       },
       4, "mesh.ffn", "parallel.tp", "model.ffn 50 cannot be split over parallel.tp 4", "use tp 2",
       "4 processes can be tp=2 pp=1 dp=2, or tp=1 pp=1 dp=4, or tp=2 pp=2 dp=1"},
      {"E % e == 0",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.parallel.ep = 4;
       },
       4, "mesh.ep", "parallel.ep", "6 experts cannot be divided over parallel.ep 4",
       "use ep 3 or 6"},
      {"world % (t e p) == 0",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.parallel.ep = 3;
       },
       4, "mesh.product", "parallel.ep", "tp 1 x ep 3 x pp 1 = 3 does not divide 4 processes",
       "start a multiple of 3 processes (--num_processes 6)"},
      {"B % (e d) == 0",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.parallel.ep = 2;
         s.train.global_batch = 9;
       },
       4, "batch.dp", "train.global_batch",
       "train.global_batch 9 cannot be divided over ep 2 x dp 2", "use a multiple of 4: 8 or 12"},
      {"world % (t c p) == 0", [](TrainSpec& s) { s.parallel.cp = 2; }, 3, "mesh.product",
       "parallel.cp", "tp 1 x cp 2 x pp 1 = 2 does not divide 3 processes",
       "start a multiple of 2 processes (--num_processes 4)"},
      {"world == t c p d", [](TrainSpec& s) { s.parallel.cp = s.parallel.dp = 2; }, 12,
       "mesh.product", "parallel.dp",
       "tp 1 x cp 2 x pp 1 x dp 2 = 4, but 12 processes are requested",
       "start 4 processes (--num_processes 4), or leave parallel.dp out",
       "12 processes can be tp=1 pp=1 dp=6 cp=2, or tp=1 pp=2 dp=3 cp=2, or tp=3 pp=1 dp=2 cp=2"},
      {"overlap_param_gather needs ZeRO-1",
       [](TrainSpec& s) {
         s.parallel.overlap.param_gather = "true";
         s.parallel.zero = 0;
       },
       2, "mesh.overlap", "parallel.overlap.param_gather",
       "parallel.overlap.param_gather belongs to ZeRO with overlapped reductions, and "
       "parallel.zero is 0",
       "set parallel.zero=1, or parallel.overlap.param_gather=auto"},
      {"overlap_param_gather needs overlap_grad_reduce",
       [](TrainSpec& s) {
         s.parallel.overlap.param_gather = "true";
         s.parallel.overlap.grad_reduce = false;
       },
       2, "mesh.overlap", "parallel.overlap.param_gather",
       "parallel.overlap.param_gather belongs to ZeRO with overlapped reductions, and "
       "parallel.overlap.grad_reduce is false",
       "set parallel.overlap.grad_reduce=true, or parallel.overlap.param_gather=auto"},
      {"gradients in bf16 without shards",
       [](TrainSpec& s) {
         s.precision.grad_reduce = "bf16";
         s.parallel.zero = 0;
       },
       2, "mesh.grad_reduce", "precision.grad_reduce",
       "gradients in bf16 are added by the rank that keeps their shard, and parallel.zero 0 keeps "
       "everything on every rank",
       "set parallel.zero=1, or precision.grad_reduce=fp32"},
      {"shards of gradients and weights in a pipeline",
       [](TrainSpec& s) {
         s.parallel.zero = 3;
         s.parallel.pp = 2;
       },
       4, "mesh.zero", "parallel.zero",
       "parallel.zero 3 keeps gradients and weights in shards, which a pipeline (parallel.pp 2) "
       "would bring together for every micro-batch",
       "use parallel.zero=1, or parallel.pp=1 (with parallel.tp where the activations of a layer "
       "are too large)"},
      {"the same of ranks that divide experts",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.parallel.ep = 2;
         s.parallel.zero = 2;
         s.parallel.pp = 2;
       },
       4, "mesh.zero", "parallel.zero",
       "parallel.zero 2 keeps gradients in shards, which a pipeline (parallel.pp 2) would bring "
       "together for every micro-batch",
       "use parallel.zero=1, or parallel.pp=1 (with parallel.tp where the activations of a layer "
       "are too large)"},
  });
}

TEST_CASE("rules of the pipeline") {
  check_cases({
      {"L % p == 0", [](TrainSpec& s) { s.parallel.pp = 3; }, 3, "mesh.layers", "parallel.pp",
       "model.layers 4 cannot be divided evenly over parallel.pp 3",
       "use pp 2 or 4, or parallel.stage_layout=balanced",
       "3 processes can be tp=1 pp=1 dp=3, or tp=3 pp=1 dp=1"},
      {"L % (p v) == 0",
       [](TrainSpec& s) {
         s.model.layers = 12;
         s.parallel.pp = 2;
         s.parallel.virtual_stages = 4;
         s.train.micro_batch = 1;
       },
       2, "mesh.layers", "parallel.pp",
       "model.layers 12 cannot be divided evenly over 8 stages (pp 2 x virtual_stages 4)",
       "use pp x virtual_stages of 6 or 12, or parallel.stage_layout=balanced",
       "2 processes can be tp=1 pp=2 dp=1 virtual_stages=1, or tp=1 pp=1 dp=2 virtual_stages=1, or "
       "tp=2 pp=1 dp=1 virtual_stages=1"},
      {"more stages than layers", [](TrainSpec& s) { s.parallel.pp = 1000; }, 1, "mesh.layers",
       "parallel.pp",
       "model.layers 4 cannot be divided over parallel.pp 1000: a stage has at least one layer",
       "use pp 4", "1 process can be tp=1 pp=1 dp=1"},
      {"more stages than layers are not balanced either",
       [](TrainSpec& s) {
         s.parallel.pp = 6;
         s.parallel.stage_balance = "balanced";
       },
       6, "mesh.layers", "parallel.pp",
       "model.layers 4 cannot be divided over parallel.pp 6: a stage has at least one layer",
       "use pp 4", "6 processes can be tp=1 pp=3 dp=2, or tp=1 pp=2 dp=3, or tp=2 pp=3 dp=1"},
      {"virtual stages need p > 1", [](TrainSpec& s) { s.parallel.virtual_stages = 2; }, 2,
       "mesh.virtual", "parallel.virtual_stages",
       "parallel.virtual_stages 2 divides the layers of a pipeline stage, and parallel.pp is 1",
       "use parallel.pp >= 2, or virtual_stages 1",
       "2 processes can be tp=1 pp=1 dp=2 virtual_stages=1, or tp=1 pp=2 dp=1 virtual_stages=1, or "
       "tp=2 pp=1 dp=1 virtual_stages=1"},
      {"a layout of too few stages",
       [](TrainSpec& s) {
         s.parallel.pp = 4;
         s.parallel.stage_layout = {1, 3};
       },
       4, "mesh.stage_layout", "parallel.stage_layout",
       "parallel.stage_layout has 2 entries, and there are 4 stages (parallel.pp)",
       "give the layers of each stage, such as [1, 1, 1, 1]",
       "4 processes can be tp=1 pp=4 dp=1 stage_layout=uniform, or tp=1 pp=2 dp=2, or tp=1 pp=1 "
       "dp=4 stage_layout=uniform"},
      {"a layout with a layer too few",
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.stage_layout = {1, 2};
       },
       2, "mesh.stage_layout", "parallel.stage_layout",
       "parallel.stage_layout adds up to 3 layers, and model.layers is 4",
       "every layer belongs to one stage, such as [2, 2]",
       "2 processes can be tp=1 pp=1 dp=2 stage_layout=uniform, or tp=2 pp=1 dp=1 "
       "stage_layout=uniform"},
      {"a group needs virtual stages",
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.virtual_group = 4;
       },
       2, "schedule.group", "parallel.virtual_group",
       "parallel.virtual_group belongs to an interleaved schedule, and parallel.virtual_stages is "
       "1",
       "leave it out, or set parallel.virtual_stages >= 2"},
      {"gpipe has no groups",
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.virtual_stages = 2;
         s.parallel.virtual_group = 4;
         s.parallel.schedule = "gpipe";
       },
       2, "schedule.group", "parallel.virtual_group",
       "parallel.virtual_group belongs to an interleaved schedule, and parallel.schedule is gpipe",
       "leave it out, or set parallel.schedule=1f1b"},
      {"G >= p",
       [](TrainSpec& s) {
         s.parallel.pp = 4;
         s.model.layers = 8;
         s.parallel.virtual_stages = 2;
         s.parallel.virtual_group = 3;
         s.train.micro_batch = 1;
       },
       4, "schedule.group", "parallel.virtual_group",
       "parallel.virtual_group 3 is less than parallel.pp 4: the first stage would wait for each "
       "chunk of the last",
       "use at least 4, or leave it out",
       "4 processes can be tp=1 pp=4 dp=1 virtual_stages=1 virtual_group=auto, or tp=1 pp=2 dp=2, "
       "or tp=1 pp=2 dp=2 virtual_stages=1 virtual_group=auto"},
      {"G <= m",
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.virtual_stages = 2;
         s.train.micro_batch = 12;
       },
       2, "schedule.group", "parallel.virtual_stages",
       "a step has 1 micro-batch, and each chunk of an interleaved schedule takes 2 in turn "
       "(parallel.pp 2)",
       "use a batch of at least 24 sequences (now 12), or set train.micro_batch=6 (now 12), or set "
       "parallel.virtual_stages=1",
       "2 processes can be tp=1 pp=2 dp=1 virtual_stages=1, or tp=2 pp=1 dp=1 virtual_stages=1"},
      {"m % G is 0 or >= p",
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.virtual_stages = 2;
         s.parallel.virtual_group = 11;
         s.train.micro_batch = 1;
       },
       2, "schedule.group", "parallel.virtual_group",
       "a step has 12 micro-batches, in groups of 11 (parallel.virtual_group 11): the last group "
       "has 1, fewer than the 2 stages",
       "leave parallel.virtual_group out, or use 11 or 22 micro-batches: a batch of 11 or 22 "
       "sequences (now 12)",
       "2 processes can be tp=1 pp=2 dp=1 virtual_stages=1 virtual_group=auto, or tp=1 pp=1 dp=2 "
       "virtual_stages=1 virtual_group=auto, or tp=2 pp=1 dp=1 virtual_stages=1 "
       "virtual_group=auto"},
      {"a larger batch is no cure where micro-batches grow with it",
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.virtual_stages = 2;
         s.train.micro_batch = 0;
       },
       2, "schedule.group", "parallel.virtual_stages",
       "a step has 1 micro-batch, and each chunk of an interleaved schedule takes 2 in turn "
       "(parallel.pp 2)",
       "set train.micro_batch=6 (now 12), or set parallel.virtual_stages=1",
       "2 processes can be tp=1 pp=2 dp=1 virtual_stages=1, or tp=1 pp=1 dp=2 virtual_stages=1, or "
       "tp=2 pp=1 dp=1 virtual_stages=1"},
      {"every phase of a ramp has whole groups",
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.virtual_stages = 2;
         s.train.accumulate = {{0, 4}, {50, 3}};
         s.train.accumulate_by = "step";
         s.train.micro_batch = 2;
       },
       2, "schedule.group", "parallel.virtual_stages",
       "a step from step 50 on has 3 micro-batches, in groups of 2 (parallel.pp 2): the last group "
       "has 1, fewer than the 2 stages",
       "use train.accumulate 2 or 4",
       "2 processes can be tp=1 pp=2 dp=1 virtual_stages=1, or tp=1 pp=1 dp=2 virtual_stages=1, or "
       "tp=2 pp=1 dp=1 virtual_stages=1"},
  });
}
