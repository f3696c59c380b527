#include "runtime/plan/plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "runtime/plan/matrices.h"
#include "runtime/plan/memory/gpu_memory.h"
#include "runtime/plan/memory/saved_parts.h"
#include "runtime/plan/rules/no_effect.h"
#include "runtime/plan/rules/rules.h"

namespace mtl {

namespace {

// Elements of a bucket: large enough that the latency of a reduction does not count (Megatron-LM:
// 40 M elements, more with many ranks); everything in one when nothing overlaps. Where a bucket is
// whole in a window, whose memory is not for nothing: a layer.
int64_t bucket_numel(const TrainSpec::Parallel& parallel, int data_ranks) {
  const bool windows = parallel.zero >= 2 && data_ranks > 1;
  if (!windows && !parallel.overlap.grad_reduce) return std::numeric_limits<int64_t>::max();
  if (parallel.bucket_mb > 0) return static_cast<int64_t>(parallel.bucket_mb * 1e6 / 4);
  if (windows) return 1;
  return std::max<int64_t>(40'000'000, 1'000'000 * static_cast<int64_t>(data_ranks));
}

OptimizerKind optimizer_kind(const std::string& type) {
  if (type == "adam") return OptimizerKind::adam;
  if (type == "lion") return OptimizerKind::lion;
  if (type == "muon") return OptimizerKind::muon;
  return type == "sgd" ? OptimizerKind::sgd : OptimizerKind::adamw;
}

DType compute_type(const std::string& dtype) {
  if (dtype == "bf16" || dtype == "fp8") return DType::bf16;
  return dtype == "fp16" ? DType::f16 : DType::f32;
}

// FLOPs of a token's products that a backward leaves for later, where the schedule lets it.
double flops_left_for_later(const Plan& plan, const std::vector<std::vector<ChunkRange>>& chunks) {
  const LayerShapes shapes(plan.model);
  double flops = 0;
  const auto add_layer = [&](const ModelShape& layer) {
    for (const LocalLinear& linear : layer_linears(layer, 1, 1)) {
      if (linear.expert >= layer.experts_per_token) continue;  // a token has no more of them
      const ModelShape::Lora& lora = plan.model.lora;
      // What the adapter makes of x and of dy it makes once more.
      const int64_t of_adapter =
          lora.adapts(linear.slot) ? 2 * lora.rank * (linear.in + linear.out) : 0;
      flops += 2.0 * static_cast<double>(lora ? of_adapter : linear.in * linear.out);
    }
  };
  for (const std::vector<ChunkRange>& stage : chunks) {
    for (const ChunkRange& chunk : stage) {
      for (const LayerGroup& group : layer_groups(plan.recompute, chunk)) {
        for (int64_t layer = group.first_layer; layer < group.end_layer(); ++layer) {
          if (group.leaves_weights()) add_layer(shapes.of(layer));
        }
      }
    }
  }
  return flops;
}

// How long a chunk takes against the others: its FLOPs, as a share of an evenly cut model's.
ScheduleTimes schedule_times(const Plan& plan, const std::vector<std::vector<ChunkRange>>& chunks) {
  ScheduleTimes times;
  const ModelShape& model = plan.model;
  times.backward = times.forward / forward_part(model) - times.forward;
  const auto layers = [&](int64_t begin, int64_t end) {
    return flops_per_token_of_layers(model, plan.seq, begin, end);
  };
  const double head = flops_per_token_of_head(model), all = layers(0, model.layers) + head;
  const double mean = all / static_cast<double>(chunks.size() * chunks.front().size());
  times.weight_grads = (times.forward + times.backward) * flops_left_for_later(plan, chunks) / all;
  for (const std::vector<ChunkRange>& stage : chunks) {
    times.weight.emplace_back();
    for (const ChunkRange& chunk : stage) {
      const double flops = layers(chunk.first_layer, chunk.end_layer()) + (chunk.head ? head : 0);
      times.weight.back().push_back(flops / mean);
    }
  }
  return times;
}

StepSchedule step_schedule(ScheduleShape shape, int64_t micro_batches, const ScheduleTimes& times) {
  StepSchedule step;
  shape.micro_batches = static_cast<int>(micro_batches);
  step.shape = shape;
  step.programs = make_schedule(shape);
  std::string problem;
  shape.channel_capacity = 0;
  std::optional<ScheduleFacts> facts = simulate(step.programs, shape, problem, times);
  if (!facts) {
    throw Error(Exit::run_failed,
                {.code = "internal.schedule",
                 .what = "the generated schedule is invalid: " + problem,
                 .help = "this is a bug in mtl: please report it with your train.yaml"});
  }
  step.facts = std::move(*facts);
  return step;
}

// Messages of a stage that the transport holds until they are received (Communicator::send: 64
// pieces of up to 1 MiB).
int channel_capacity(const Plan& plan, const GridSizes& sizes) {
  constexpr int64_t kPieces = 64, kPieceBytes = 1 << 20;
  const int64_t rows =
      plan.micro_batch * plan.share() / (plan.sequence_parallel ? sizes[Axis::tp] : 1);
  const int64_t bytes = rows * plan.model.hidden * bytes_of(plan.compute);
  return static_cast<int>(
      std::max<int64_t>(1, kPieces / ((bytes + kPieceBytes - 1) / kPieceBytes)));
}

// Stages that wait for each other's full buffers would wait for ever.
void check_buffers(const StepSchedule& step, const ResolvedSpec& resolved,
                   Diagnostics& diagnostics) {
  std::string problem;
  if (simulate(step.programs, step.shape, problem)) return;
  diagnostics.add(
      {.code = "schedule.buffers",
       .what = fmt::format("this schedule sends more of the {} micro-batches ahead than the {} "
                           "messages that fit between two stages, and they would wait for each "
                           "other",
                           step.shape.micro_batches, step.shape.channel_capacity),
       .place = resolved.place_of("parallel.schedule"),
       .notes = {problem},
       .help = "use parallel.schedule=1f1b without parallel.virtual_group, a smaller "
               "train.micro_batch, or fewer micro-batches per step"});
}

// A schedule that divides what its backwards cannot divide.
void warn_of_nothing_later(const Plan& plan, const ResolvedSpec& resolved,
                           Diagnostics& diagnostics) {
  const auto leaves = [](const StagePlan& stage) { return stage.memory.later_bytes > 0; };
  if (!plan.largest().shape.weights_later ||
      std::any_of(plan.stages.begin(), plan.stages.end(), leaves)) {
    return;
  }
  diagnostics.add(
      {.code = "schedule.nothing_later",
       .what = "parallel.schedule zb-h1 has nothing to leave for later: every layer makes "
               "attention, its MLP or all of itself again in backward, and gradients of weights "
               "with that; stages wait as in 1f1b, and keep more",
       .place = resolved.place_of("parallel.schedule"),
       .help = "use parallel.schedule=1f1b, or recompute.modules of norm and mlp_act alone",
       .severity = Diagnostic::Severity::warning});
}

// A launch's file asks for copies of shards whatever is launched, and a train.yaml for those of the
// machines that it was written for.
void warn_of_one_copy(const Plan& plan, const ResolvedSpec& resolved, Diagnostics& diagnostics) {
  const GridSizes& sizes = plan.grid.sizes();
  const TrainSpec::Parallel& parallel = resolved.spec.parallel;
  const int64_t ranks = sizes.world() / sizes[Axis::pp], given = parallel.zero_ranks;
  if (given == 0 || given == ranks || parallel.zero == 0 || sizes.copies > 1) return;
  const bool more = given > ranks;
  diagnostics.add(
      {.code = "mesh.zero_ranks",
       .what = more ? fmt::format("parallel.zero_ranks {} are more than a stage has ranks ({}): "
                                  "there is one copy, on all of these",
                                  given, ranks)
                    : fmt::format("parallel.zero_ranks {} are no whole copies of what this run "
                                  "divides: there is one copy on all ranks",
                                  given),
       .place = resolved.place_of("parallel.zero_ranks"),
       .help = more ? "leave it out here, or start more processes"
                    : "say it in train.yaml, as ranks that are a multiple of tp x cp x ep",
       .severity = Diagnostic::Severity::warning});
}

// A linear that FP8 does not take stays in bf16: no error, since the run is right, only slower.
void warn_of_bf16_linears(const Plan& plan, const ResolvedSpec& resolved,
                          Diagnostics& diagnostics) {
  if (!plan.float8.on) return;
  const int tp = plan.grid.sizes()[Axis::tp];
  const int64_t share = plan.share();
  // One expert speaks for all, and their rows are filled up whatever sequences are.
  const int experts = static_cast<int>(std::max<int64_t>(1, plan.model.experts));
  std::string which;
  bool of_sequences = false;
  const auto look_at = [&](const ModelShape& layers, const char* of_dense) {
    const std::vector<LocalLinear> fit = float8_linears(layers, share, tp, experts);
    for (const LocalLinear& linear : layer_linears(layers, tp, experts)) {
      const bool fits = std::any_of(
          fit.begin(), fit.end(), [&](const LocalLinear& one) { return one.slot == linear.slot; });
      if (fits || (*of_dense != '\0' && !linear.slot.starts_with("mlp."))) continue;
      of_sequences = of_sequences || linear.expert < 0;
      const std::string name =
          linear.expert < 0 ? linear.slot : fmt::format("experts' {}", linear.part);
      which += fmt::format("{}{}{} ({} x {})", which.empty() ? "" : ", ", of_dense, name, linear.in,
                           linear.out);
    }
  };
  look_at(plan.model, "");
  if (!plan.model.dense_layers.empty()) look_at(plan.model.of_dense_layers(), "dense layers' ");
  if (which.empty()) return;
  const std::string tokens =
      fmt::format(", of train.seq_len ({}{}) too", plan.seq,
                  share == plan.seq ? "" : fmt::format(", {} on a rank", share));
  diagnostics.add(
      {.code = "precision.fp8_shape",
       .what = fmt::format("in bf16 on every layer: {}; fp8 takes multiples of 16 on each rank{}",
                           which, of_sequences ? tokens : ""),
       .place = resolved.place_of("precision.dtype"),
       .help = "use such sizes, or precision.dtype=bf16",
       .severity = Diagnostic::Severity::warning});
}

// For each number of micro-batches that a step of the run has.
void make_schedules(Plan& plan, const Layout& layout,
                    const std::vector<std::vector<ChunkRange>>& chunks,
                    const ResolvedSpec& resolved, Diagnostics& diagnostics) {
  const ScheduleTimes times = schedule_times(plan, chunks);
  ScheduleShape shape = layout.schedule;
  shape.channel_capacity = channel_capacity(plan, layout.sizes);
  for (const BatchPhase& phase : plan.batch.phases()) {
    const auto [step, added] = plan.schedules.try_emplace(
        phase.micro_batches, step_schedule(shape, phase.micro_batches, times));
    if (added) check_buffers(step->second, resolved, diagnostics);
  }
}

MemoryNeeds memory_needs(const Plan& plan, const TrainSpec& spec, int stage,
                         const std::vector<ChunkRange>& chunks) {
  const GridSizes& sizes = plan.grid.sizes();
  MemoryNeeds needs;
  needs.chunks = chunks;
  needs.micro_batch = plan.micro_batch;
  needs.seq = plan.seq;
  needs.micro_batches = plan.largest().shape.micro_batches;
  // Phases with fewer micro-batches never need more slots than those with more.
  needs.slots = plan.largest().facts.slots[static_cast<size_t>(stage)];
  needs.later = plan.largest().facts.later[static_cast<size_t>(stage)];
  needs.tp = sizes[Axis::tp];
  needs.cp = sizes[Axis::cp];
  needs.ep = sizes[Axis::ep];
  needs.ep_room = plan.ep_room;
  needs.sequence_parallel = plan.sequence_parallel;
  needs.compute = plan.compute;
  needs.float8 = plan.float8;
  needs.optimizer = plan.optimizer;
  needs.offload = plan.offload;
  needs.recompute = plan.recompute;
  needs.logits_rows = plan.logits_rows;
  needs.first_keys = spec.data.resets_attention();
  needs.position_ids =
      spec.data.resets_positions() &&
      (plan.model.position == PositionType::rope ||
       (plan.model.position == PositionType::learned && needs.chunks.front().embedding));
  return needs;
}

// Of a plan that has its schedules.
StagePlan stage_plan(const Plan& plan, const TrainSpec& spec, int stage,
                     const std::vector<ChunkRange>& chunks) {
  const GridSizes& sizes = plan.grid.sizes();
  StagePlan result;
  result.chunks = chunks;
  result.layout = param_layout(plan.table, sizes, chunks, plan.model.layers, spec.parallel.zero,
                               bucket_numel(spec.parallel, plan.grid.data_ranks()),
                               plan.model.tie_embeddings && sizes[Axis::pp] > 1,
                               plan.optimizer == OptimizerKind::muon, RowsOf::trained);
  // Of these ZeRO divides the weights or nothing.
  result.frozen =
      param_layout(plan.table, sizes, chunks, plan.model.layers, spec.parallel.zero >= 3 ? 3 : 0,
                   bucket_numel(spec.parallel, plan.grid.data_ranks()),
                   plan.model.tie_embeddings && sizes[Axis::pp] > 1, false, RowsOf::frozen);
  if (result.layout.sharded) result.layout.wire = plan.grad_reduce;
  if (spec.checkpoint.async) {
    result.snapshot_bytes = snapshot_bytes(result.layout, plan.table, plan.grid, plan.optimizer);
  }
  MemoryNeeds needs = memory_needs(plan, spec, stage, chunks);
  if (plan.optimizer == OptimizerKind::muon) {
    needs.matrices = matrix_needs(result.layout, plan.table, sizes);
  }
  needs.frozen = result.frozen.weights_total();
  if (result.frozen.shards_weights()) needs.frozen_shards = result.frozen.shard_total();
  result.memory = memory_plan(plan.model, result.layout, needs, plan.table.size());
  result.kernels = kernel_needs(plan.model, needs, result.memory);
  result.traffic = stage_traffic(plan.model, plan.table, result.layout, result.frozen, needs, sizes,
                                 needs.micro_batches);
  return result;
}

}  // namespace

StagePlan Plan::stage_of(int rank) const {
  const Coord coord = grid.coord(rank);
  StagePlan stage = stages[static_cast<size_t>(coord[Axis::pp])];
  stage.layout.move_to(coord[Axis::ep]);
  stage.frozen.move_to(coord[Axis::ep]);
  if (optimizer == OptimizerKind::muon) {
    stage.traffic.set_matrices(matrix_traffic_of(stage.layout, table, grid.sizes(), coord),
                               compute);
  }
  return stage;
}

const char* compute_name(DType compute) {
  if (compute == DType::bf16) return "bf16";
  return compute == DType::f16 ? "fp16" : "fp32";
}

int64_t Plan::peak_bytes() const {
  int64_t peak = 0;
  for (const StagePlan& stage : stages) peak = std::max(peak, stage.memory.total_bytes);
  return peak;
}

int64_t Plan::total_bytes() const {
  int64_t total = 0;
  for (const StagePlan& stage : stages) total += stage.memory.total_bytes;
  return total * (grid.world() / grid.sizes()[Axis::pp]);
}

int64_t Plan::host_bytes() const {
  int64_t total = 0;
  for (const StagePlan& stage : stages) total += stage.host_bytes();
  return total * (grid.world() / grid.sizes()[Axis::pp]);
}

Plan make_plan(const ResolvedSpec& resolved, const DataFacts& data, int world,
               Diagnostics& diagnostics) {
  const TrainSpec& spec = resolved.spec;
  Plan plan;
  plan.model = model_shape(spec, data.vocab);
  plan.seq = spec.train.seq_len;
  Diagnostics problems;
  const Layout layout = check_rules(resolved, plan.model, data, world, problems);
  for (const Diagnostic& problem : problems.all()) diagnostics.add(problem);
  if (problems.has_errors()) return plan;
  warn_of_no_effect(resolved, diagnostics);

  plan.grid = Grid(layout.sizes);
  warn_of_one_copy(plan, resolved, diagnostics);
  plan.micro_batch = layout.micro_batch;
  plan.logits_rows = spec.train.logits_rows;
  plan.batch = layout.batch;
  plan.steps = layout.steps;
  plan.compute = compute_type(spec.precision.dtype);
  plan.grad_reduce = compute_type(spec.precision.grad_reduce);
  plan.float8 = {.on = spec.precision.dtype == "fp8",
                 .first = spec.precision.fp8.bf16_first_layers,
                 .last = spec.precision.fp8.bf16_last_layers};
  warn_of_bf16_linears(plan, resolved, diagnostics);
  plan.sequence_parallel = layout.sequence_parallel;
  plan.ep_room = spec.parallel.ep_room;
  plan.recompute = recompute_of(spec);
  plan.optimizer = optimizer_kind(spec.optimizer.type);
  plan.muon_steps = spec.optimizer.muon.steps;
  plan.offload = spec.optimizer.offload == "cpu";
  plan.table = shard_table(plan.model, plan.sequence_parallel);
  plan.cost = cost(plan.model, plan.table, plan.seq);

  const auto chunks =
      pipeline_layout(layout.layers_of_virtual, layout.sizes[Axis::pp], layout.schedule.chunks);
  make_schedules(plan, layout, chunks, resolved, diagnostics);
  for (int stage = 0; stage < layout.sizes[Axis::pp]; ++stage) {
    plan.stages.push_back(stage_plan(plan, spec, stage, chunks[static_cast<size_t>(stage)]));
  }
  warn_of_nothing_later(plan, resolved, diagnostics);
  return plan;
}

int64_t Plan::tokens_of_pass(int64_t room) const {
  constexpr int64_t kRowUnit = 16;  // what products of 16-bit and 8-bit numbers like a multiple of
  const GridSizes& sizes = grid.sizes();
  const int64_t multiple = kRowUnit * sizes[Axis::cp] * sizes[Axis::tp];
  return std::min(seq, (room + multiple - 1) / multiple * multiple);
}

}  // namespace mtl
