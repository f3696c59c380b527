// Every rule that ties settings together is a clear error at plan time: what is wrong, where, and
// the nearest values that work. The tables follow Megatron-LM's validate_args and
// TransformerConfig; below them, that a mistake is reported once, and that what is proposed runs.
//
// What Megatron-LM checks and nothing can break here:
//  - fp16 xor bf16: there is one key, precision.dtype.
//  - cross-entropy in fp16 only with fp16: the loss is always in fp32.
//  - tp_comm_overlap needs sequence parallelism: parallel.overlap.tp works without.
//  - CUDA_DEVICE_MAX_CONNECTIONS: the order of kernels does not depend on it.
//  - save_retain_interval: checkpoint.keep_last counts checkpoints.
// Iterations xor samples, context and expert parallelism, offload to the CPU: the second table.
#include <functional>
#include <rapidcheck.h>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/plan/nearest.h"
#include "runtime/plan/plan.h"
#include "runtime/spec/load.h"

using namespace mtl;

namespace {

// 4 layers, 6 heads of 8, ffn 192; steps of 12 sequences of 16 tokens.
ResolvedSpec base_spec() {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 4;
  spec.model.hidden = 48;
  spec.model.heads = 6;
  spec.train.global_batch = 12;
  spec.train.seq_len = 16;
  spec.train.steps = 100;
  // Every key stands in a file of its own name, so that a test sees where an error points.
  for (const std::string& key : spec_keys()) resolved.places[key] = Place{key};
  return resolved;
}

// The errors; warnings aside.
std::vector<Diagnostic> problems_of(const ResolvedSpec& resolved, int world,
                                    int64_t sequences = 0) {
  Diagnostics diagnostics;
  make_plan(resolved, {.vocab = 65, .sequences = sequences}, world, diagnostics);
  std::vector<Diagnostic> errors;
  for (const Diagnostic& problem : diagnostics.all()) {
    if (problem.severity == Diagnostic::Severity::error) errors.push_back(problem);
  }
  return errors;
}

void with_experts(TrainSpec& spec, int64_t experts) {
  spec.model.moe.experts = experts;
  spec.model.activation = "swiglu";
  spec.model.bias = false;
}

struct Case {
  std::string name;
  std::function<void(TrainSpec&)> change;
  int world;
  std::string code, key, what, help;
  std::string note = {};
};

void check_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    CAPTURE(c.name);
    ResolvedSpec resolved = base_spec();
    c.change(resolved.spec);
    const std::vector<Diagnostic> problems = problems_of(resolved, c.world);
    CHECK(problems.size() == 1);
    if (problems.empty()) continue;
    const Diagnostic& problem = problems[0];
    CHECK(problem.code == c.code);
    CHECK(problem.place.value_or(Place{}).file == c.key);
    CHECK(problem.what == c.what);
    CHECK(problem.help == c.help);
    CHECK((problem.notes.empty() ? std::string() : problem.notes[0]) == c.note);
  }
}

}  // namespace

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
      {"rotary positions and odd heads",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.heads = 16;
       },
       1, "model.rope", "model.heads",
       "rotary positions turn pairs of elements, and each head has 3 of them",
       "use other model.heads, so that model.hidden / model.heads is even, or give model.head_dim"},
      {"rotary positions and an odd head_dim",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.head_dim = 9;
       },
       1, "model.rope", "model.head_dim",
       "rotary positions turn pairs of elements, and each head has 9 of them",
       "use an even model.head_dim, such as 10"},
      {"Llama 3's scaling without rotary positions",
       [](TrainSpec& s) { s.model.position.scaling.type = "llama3"; }, 1, "model.rope",
       "model.position.scaling.type",
       "model.position.scaling changes rotary frequencies, and model.position.type learned has "
       "none",
       "set model.position.type=rope, or model.position.scaling.type=none"},
      {"Llama 3's scaling the wrong way round",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling.type = "llama3";
         s.model.position.scaling.low_freq_factor = 4;
       },
       1, "model.rope", "model.position.scaling.low_freq_factor",
       "model.position.scaling.low_freq_factor 4 is not below high_freq_factor 4",
       "Llama 3.1 has 1 and 4"},
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
      {"one sequence at a time with CP",
       [](TrainSpec& s) {
         s.train.micro_batch = 4;
         s.parallel.cp = 2;
       },
       2, "mesh.cp", "train.micro_batch",
       "train.micro_batch 4, and with parallel.cp 2 a rank has its share of one sequence at a time",
       "use train.micro_batch=1 (a step has as many as its batch asks for), or parallel.cp=1"},
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
      {"E % e == 0",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.parallel.ep = 4;
       },
       4, "mesh.ep", "parallel.ep", "6 experts cannot be divided over parallel.ep 4",
       "use ep 3 or 6"},
      {"EP without shards of layers",
       [](TrainSpec& s) {
         with_experts(s, 6);
         s.parallel.ep = 2;
         s.parallel.zero = 3;
       },
       2, "mesh.ep", "parallel.zero",
       "parallel.zero 3 keeps gradients and weights of whole layers in shards over all replicas, "
       "and with parallel.ep 2 these hold different experts",
       "use parallel.zero=1 (experts are divided already), or parallel.ep=1"},
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
       "use at least 4, or leave it out", "4 processes can be tp=1 pp=2 dp=2, or tp=2 pp=2 dp=1"},
      {"G <= m",
       [](TrainSpec& s) {
         s.parallel.pp = 2;
         s.parallel.virtual_stages = 2;
         s.train.micro_batch = 12;
       },
       2, "schedule.group", "parallel.virtual_stages",
       "a step has 1 micro-batch, and each chunk of an interleaved schedule takes 2 in turn "
       "(parallel.pp 2)",
       "use a batch of at least 24 sequences (now 12), a smaller train.micro_batch (now 12), or "
       "virtual_stages 1",
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
       "use 11 or 22 micro-batches: a batch of 11 or 22 sequences (now 12)"},
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
      {"experts of another kind",
       [](TrainSpec& s) {
         s.model.moe.experts = 4;
         s.model.bias = false;
       },
       1, "model.moe", "model.moe.experts",
       "experts are SwiGLU blocks, and model.activation is gelu", "set model.activation=swiglu"},
      {"experts with biases",
       [](TrainSpec& s) {
         s.model.moe.experts = 4;
         s.model.activation = "swiglu";
       },
       1, "model.moe", "model.moe.experts", "experts have no biases, and model.bias is true",
       "set model.bias=false (model.qkv_bias may stay true)"},
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

TEST_CASE("what other trainers check between keys is refused key by key here") {
  const std::pair<const char*, const char*> cases[] = {
      // fp16 xor bf16
      {"precision.fp16=true", "config.unknown_key"},
      {"model.moe.num_experts=8", "config.unknown_key"},
      // offload to the CPU: no PP, no recompute, fewer layers than there are
      {"parallel.cpu_offloading=true", "config.unknown_key"},
      // save_retain_interval % save_interval == 0
      {"checkpoint.save_retain_interval=10", "config.unknown_key"},
      // training by iterations xor by samples
      {"train.samples=100", "config.conflict"},
      // phases without a batch
      {"train.batch_ramp={0: 0}", "config.range"},
  };
  for (const auto& [setting, code] : cases) {
    CAPTURE(setting);
    CHECK(test::code_of(setting) == code);
  }
}

TEST_CASE("mistakes are reported together and each of them once") {
  const auto codes = [](const std::function<void(TrainSpec&)>& change, int world) {
    ResolvedSpec resolved = base_spec();
    change(resolved.spec);
    std::vector<std::string> all;
    for (const Diagnostic& problem : problems_of(resolved, world)) all.push_back(problem.code);
    return all;
  };
  using Codes = std::vector<std::string>;
  CHECK(codes(
            [](TrainSpec& s) {
              s.model.max_seq = 8;
              s.parallel.tp = 4;
              s.parallel.pp = 3;
              s.train.micro_batch = 5;
              s.recompute.layers = 2;
              s.lr.min = 1;
            },
            4) == Codes{"model.max_seq", "mesh.heads", "mesh.layers", "batch.micro",
                        "recompute.layers", "lr.range"});
  // A degree that neither heads, KV heads nor ffn allow, in a world that it does not divide.
  CHECK(codes(
            [](TrainSpec& s) {
              s.model.kv_heads = 3;
              s.model.ffn = 100;
              s.parallel.tp = 5;
              s.parallel.sp = "true";
            },
            7) == Codes{"mesh.heads"});
  // Shards of layers do not go with EP, whose degree counts in the batch all the same.
  CHECK(codes(
            [](TrainSpec& s) {
              with_experts(s, 6);
              s.parallel.ep = 2;
              s.parallel.zero = 2;
              s.train.global_batch = 9;
            },
            4) == Codes{"mesh.ep", "batch.dp"});
  // What follows from a wrong number of heads is no second mistake.
  CHECK(codes(
            [](TrainSpec& s) {
              s.model.kv_heads = 5;
              s.parallel.tp = 2;
            },
            2) == Codes{"model.kv_heads"});
  CHECK(codes(
            [](TrainSpec& s) {
              s.model.heads = 32;
              s.model.position.type = "rope";
            },
            1) == Codes{"model.head_dim"});
  // Without a layout there are no replicas to divide the batch over, and no stages.
  CHECK(codes(
            [](TrainSpec& s) {
              s.parallel.pp = 3;
              s.parallel.virtual_stages = 2;
              s.recompute.mode = "full";
              s.recompute.layers = 3;
            },
            15) == Codes{"mesh.layers"});
  CHECK(codes(
            [](TrainSpec& s) {
              s.parallel.tp = 3;
              s.parallel.sp = "true";
              s.recompute.mode = "full";
              s.recompute.distribute = true;
            },
            3) == Codes{"mesh.sp"});
}

TEST_CASE("absurd degrees are errors and not overflows") {
  for (const int tp : {1, 6, 65536}) {
    for (const int pp : {1, 4, 65536}) {
      for (const int virtual_stages : {1, 1024}) {
        for (const int world : {1, 65536, 2147483647}) {
          CAPTURE(tp);
          CAPTURE(pp);
          CAPTURE(virtual_stages);
          CAPTURE(world);
          ResolvedSpec resolved = base_spec();
          resolved.spec.parallel.tp = tp;
          resolved.spec.parallel.pp = pp;
          resolved.spec.parallel.virtual_stages = virtual_stages;
          const bool sound = tp == 1 && virtual_stages == 1 && world == 1 && pp == 1;
          CHECK(problems_of(resolved, world).empty() == sound);
        }
      }
    }
  }
}

TEST_CASE("a stage may be left empty where its layers are given") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.parallel.pp = 4;
  resolved.spec.parallel.stage_layout = {0, 4, 0, 0};
  CHECK(problems_of(resolved, 4).empty());
}

TEST_CASE("without replicas there is nothing to keep in shards and pipelines are as ever") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.parallel.pp = 2;
  resolved.spec.parallel.zero = 3;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 2, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.stages[0].layout.zero == 0);
  CHECK(plan.stages[0].layout.windows.empty());
}

TEST_CASE("without a micro-batch a ramp takes the largest that divides each phase") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.train.batch_ramp = {{0, 32}, {10, 48}, {20, 16}};
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 2, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.micro_batch == 8);
}

TEST_CASE("phases that begin after the end of the run are no part of the plan") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.train.batch_ramp = {{0, 2}, {99, 4}, {100, 8}};
  resolved.spec.train.micro_batch = 1;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 1, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.batch.phases().size() == 2);
  CHECK(plan.largest().shape.micro_batches == 4);
}

TEST_CASE("every layout that a note proposes can be planned") {
  int proposed = 0;
  CHECK(rc::check([&proposed] {
    ResolvedSpec resolved = base_spec();
    TrainSpec& spec = resolved.spec;
    spec.model.layers = *rc::gen::inRange(1, 13);
    spec.model.heads = *rc::gen::element(2, 4, 6, 12, 16);
    spec.model.hidden = spec.model.heads * 8;
    spec.model.kv_heads = spec.model.heads / *rc::gen::element(1, 1, 2);
    spec.model.ffn = *rc::gen::element(0, 96, 100);
    spec.train.global_batch = *rc::gen::element(8, 12, 32, 96);
    spec.train.micro_batch = *rc::gen::element(0, 1, 2);
    spec.parallel.tp = *rc::gen::inRange(1, 9);
    spec.parallel.pp = *rc::gen::inRange(1, 9);
    spec.parallel.virtual_stages = *rc::gen::element(1, 1, 2, 3);
    spec.parallel.sp = *rc::gen::element<std::string>("auto", "true", "false");
    spec.parallel.stage_balance = *rc::gen::element<std::string>("uniform", "balanced");
    if (*rc::gen::inRange(0, 4) == 0) spec.parallel.stage_layout = {spec.model.layers - 1, 1};
    spec.recompute.mode = *rc::gen::element<std::string>("none", "full");
    if (spec.recompute.mode == "full") spec.recompute.layers = *rc::gen::inRange(0, 4);
    const int world = *rc::gen::inRange(1, 33);

    std::string note;
    bool others = false;  // mistakes that no layout mends
    for (const Diagnostic& problem : problems_of(resolved, world)) {
      if (!problem.notes.empty()) note = problem.notes[0];
      others = others || problem.what.starts_with("train.micro_batch") ||
               problem.what.starts_with("recompute.");
    }
    if (note.empty() || others) return;
    RC_ASSERT(note.starts_with(fmt::format("{} process{} can be ", world, world == 1 ? "" : "es")));
    std::string rest = note.substr(note.find("tp="));
    while (!rest.empty()) {
      const size_t end = rest.find(", or ");
      std::string layout = rest.substr(0, end) + ' ';
      rest = end == std::string::npos ? "" : rest.substr(end + 5);
      ResolvedSpec other = resolved;
      while (!layout.empty()) {
        const std::string setting = layout.substr(0, layout.find(' '));
        layout.erase(0, setting.size() + 1);
        const std::string key = setting.substr(0, setting.find('='));
        const std::string value = setting.substr(setting.find('=') + 1);
        TrainSpec::Parallel& parallel = other.spec.parallel;
        if (key == "tp") parallel.tp = std::stoi(value);
        if (key == "pp") parallel.pp = std::stoi(value);
        if (key == "dp") parallel.dp = std::stoi(value);
        if (key == "virtual_stages") parallel.virtual_stages = std::stoi(value);
        if (key == "stage_layout") {
          parallel.stage_balance = value;
          parallel.stage_layout.clear();
        }
      }
      RC_ASSERT(problems_of(other, world).empty());
      ++proposed;
    }
  }));
  CHECK(proposed > 20);  // the property is not empty
}

TEST_CASE("values next to one that does not work") {
  CHECK(divisors(1) == std::vector<int64_t>{1});
  CHECK(divisors(36) == std::vector<int64_t>{1, 2, 3, 4, 6, 9, 12, 18, 36});
  CHECK(nearest_divisors(12, 5) == "4 or 6");
  CHECK(nearest_divisors(12, 6) == "6");
  CHECK(nearest_divisors(12, 50) == "12");
  CHECK(nearest_divisors(999'999'937, 1000) == "1 or 999999937");
  CHECK(nearest_multiples(10, 4) == "8 or 12");
  CHECK(nearest_multiples(3, 4) == "4");
  ModelShape model;
  model.heads = 24;
  model.kv_heads = 6;
  model.ffn = 96;
  CHECK(tensor_degrees(model) == std::vector<int64_t>{1, 2, 3, 6, 12, 24});
}

TEST_CASE("what is written and changes nothing is a warning with its place") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.optimizer.momentum = 0.5;
  resolved.spec.lr.wsd_style = "linear";
  resolved.spec.train.deterministic = false;
  Diagnostics diagnostics;
  make_plan(resolved, {.vocab = 65}, 1, diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  REQUIRE(diagnostics.all().size() == 3);
  CHECK(diagnostics.all()[0].code == "config.no_effect");
  CHECK(diagnostics.all()[1].what == "optimizer.momentum has no effect: optimizer.type is not sgd");
  resolved.spec.optimizer.type = "sgd";
  Diagnostics fewer;
  make_plan(resolved, {.vocab = 65}, 1, fewer);
  CHECK(fewer.all().size() == 2);
  resolved.spec.data.split = {80, 20};
  Diagnostics split;
  make_plan(resolved, {.vocab = 65}, 1, split);
  CHECK(split.all().size() == 2);
  resolved.spec.data.valid = "v.txt";
  Diagnostics own_valid;
  make_plan(resolved, {.vocab = 65}, 1, own_valid);
  REQUIRE(own_valid.all().size() == 3);
  CHECK(own_valid.all()[2].what.starts_with("data.split has no effect: data.valid is given"));
}

TEST_CASE("a schedule whose stages would wait for each other's full buffers is refused") {
  ResolvedSpec resolved = base_spec();
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 4;
  spec.parallel.pp = 2;
  spec.parallel.virtual_stages = 2;
  spec.parallel.schedule = "gpipe";
  spec.train.micro_batch = 1;
  for (const auto& [batch, fits] : {std::pair{32, true}, {160, false}}) {
    spec.train.global_batch = batch;
    Diagnostics diagnostics;
    make_plan(resolved, {.vocab = 65}, 2, diagnostics);
    CHECK(diagnostics.has_errors() == !fits);
    if (!fits) CHECK(diagnostics.all().front().code == "schedule.buffers");
  }
}
