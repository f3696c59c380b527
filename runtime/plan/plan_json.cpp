// The plan as JSON: plan.json of a run directory, and `mtl plan --json`.
#include "runtime/plan/plan_json.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/plan/memory/gpu_memory.h"
#include "runtime/plan/plan.h"

namespace mtl {

namespace {

// The programs are by far the longest part of a plan, so an instruction is a word: "step", or
// `op:micro_batch.chunk`, with `@slot` behind where the activations have one. Words take a tenth of
// the time and space of objects, and there is one form for small and large plans.
std::string program_words(const Program& program, bool weights_later) {
  std::string words;
  const auto out = std::back_inserter(words);
  for (const Instruction& in : program) {
    if (!words.empty()) words += ' ';
    words += op_name(in.op);
    if (in.op == Op::reduce_grads || in.op == Op::step) continue;
    fmt::format_to(out, ":{}.{}", in.micro_batch, in.chunk);
    if (in.op != Op::recv_grad && in.op != Op::send_grad) fmt::format_to(out, "@{}", in.slot);
    const bool gradients = in.op == Op::backward || in.op == Op::weight_grads;
    if (weights_later && gradients) fmt::format_to(out, "/{}", in.later);
  }
  return words;
}

const char* kind_name(ScheduleKind kind) {
  if (kind == ScheduleKind::gpipe) return "gpipe";
  return kind == ScheduleKind::interleaved ? "interleaved" : "1f1b";
}

nlohmann::json recompute_json(const Recompute& recompute) {
  const char* full = recompute.full == Recompute::Full::none      ? "none"
                     : recompute.full == Recompute::Full::uniform ? "uniform"
                                                                  : "block";
  nlohmann::json json = {{"full", full},
                         {"layers", recompute.full == Recompute::Full::none ? 0 : recompute.layers},
                         {"distribute", recompute.distribute},
                         {"first_layers", nlohmann::json::object()}};
  const auto part = [&](const char* name, const FirstLayers& layers) {
    json[name] = bool(layers);
    if (layers && !layers.all()) json["first_layers"][name] = layers.count();
  };
  part("core_attention", recompute.core_attention);
  part("mlp_activation", recompute.mlp_activation);
  part("norms", recompute.norms);
  part("latents", recompute.latents);
  part("mlp", recompute.mlp);
  return json;
}

nlohmann::json stage_json(const Plan& plan, const StagePlan& stage) {
  std::vector<int64_t> elements(stage.chunks.size());
  for (const ParamLayout* layout : {&stage.layout, &stage.frozen}) {
    for (const ParamPlacement& param : layout->params) {
      elements[static_cast<size_t>(param.chunk)] += param.numel;
    }
  }
  nlohmann::json chunks = nlohmann::json::array();
  for (size_t i = 0; i < stage.chunks.size(); ++i) {
    const ChunkRange& chunk = stage.chunks[i];
    chunks.push_back({{"first_layer", chunk.first_layer},
                      {"layers", chunk.layers},
                      {"embedding", chunk.embedding},
                      {"head", chunk.head},
                      {"parameters_per_rank", elements[i]}});
  }
  nlohmann::json parameters = nlohmann::json::array();
  // Of the first rank along ep: the others have other experts in their places.
  const auto add = [&](const ParamPlacement& param) {
    const ParamRow& row = plan.table[param.row];
    parameters.push_back({{"name", row.name},
                          {"shape", row.shape},
                          {"local_shape", param.shape},
                          {"tp_axis", row.tp_axis},
                          {"segments", row.segments},
                          {"replicated_over", row.replicated_over.name()},
                          {"grad_sum_over", row.grad_sum_over.name()},
                          {"trained", !row.frozen},
                          {"decays", row.decays}});
  };
  for (const ParamPlacement& param : stage.layout.params) add(param);
  for (const ParamPlacement& param : stage.frozen.params) add(param);
  nlohmann::json buckets = nlohmann::json::array();
  for (const Bucket& bucket : stage.layout.buckets) {
    buckets.push_back({{"elements", bucket.numel},
                       {"complete_after_layer", bucket.layer},
                       {"experts", bucket.experts},
                       {"shards", bucket.shards}});
  }
  nlohmann::json memory = {{"total_bytes", stage.memory.total_bytes},
                           {"slots", stage.memory.slots},
                           {"slot_bytes", stage.memory.slot_bytes}};
  if (stage.memory.later_slots > 0) {
    memory["later_slots"] = stage.memory.later_slots;
    memory["later_bytes"] = stage.memory.later_bytes;
  }
  for (const bool hopper : {false, true}) {
    const GpuMemory gpu = gpu_memory(stage.kernels, hopper);
    memory["beside_it_on_gpu"][hopper ? "hopper" : "others"] = {{"kernels", gpu.scratch},
                                                                {"products", gpu.workspace}};
  }
  memory["beside_it_on_gpu"]["messages"] = message_memory(plan, stage);
  if (stage.memory.host_bytes > 0) memory["optimizer_on_host"] = stage.memory.host_bytes;
  if (stage.snapshot_bytes > 0) memory["checkpoint_copy_on_host"] = stage.snapshot_bytes;
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    memory[category_name(category)] = stage.memory.bytes_of_category(category);
  }
  nlohmann::json traffic = nlohmann::json::object();
  for (int i = 0; i < kLinks; ++i) {
    const auto link = static_cast<Link>(i);
    const LinkBytes& bytes = stage.traffic[link];
    if (bytes == LinkBytes{}) continue;
    const int ranks = link_ranks(link, plan.model, plan.grid.sizes());
    traffic[link_name(link)] = {{"ranks", ranks},
                                {"all_reduce", bytes.all_reduce},
                                {"reduce_scatter", bytes.reduce_scatter},
                                {"all_gather", bytes.all_gather},
                                {"send", bytes.send},
                                {"all_to_all", bytes.all_to_all},
                                {"on_the_wire", bytes.on_the_wire(ranks)}};
  }
  return {{"chunks", chunks},
          {"parameters", parameters},
          {"buckets", buckets},
          {"optimizer_shards", stage.layout.sharded ? plan.grid.holders({}).shards() : 1},
          {"zero_copies", plan.grid.sizes().copies},
          {"zero", stage.layout.zero},
          {"memory_per_rank", memory},
          {"traffic_per_rank_and_step", traffic}};
}

nlohmann::json schedule_json(const StepSchedule& step) {
  nlohmann::json stages = nlohmann::json::array();
  for (const Program& program : step.programs)
    stages.push_back(program_words(program, step.shape.weights_later));
  return {{"kind", kind_name(step.shape.kind)},
          {"micro_batches", step.shape.micro_batches},
          {"chunks", step.shape.chunks},
          {"group", step.shape.group},
          {"weights_later", step.shape.weights_later},
          {"bubble", step.facts.bubble},
          {"makespan", step.facts.makespan},
          {"ideal", step.facts.ideal},
          {"peak_in_flight", step.facts.peak_in_flight},
          {"slots", step.facts.slots},
          {"stages", stages}};
}

}  // namespace

const char* optimizer_name(OptimizerKind kind) {
  if (kind == OptimizerKind::sgd) return "sgd";
  if (kind == OptimizerKind::lion) return "lion";
  if (kind == OptimizerKind::muon) return "muon";
  return kind == OptimizerKind::adam ? "adam" : "adamw";
}

nlohmann::json to_json(const Plan& plan) {
  nlohmann::json grid = {{"world", plan.grid.world()}};
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    grid[axis_name(axis)] = plan.grid.sizes()[axis];
  }
  grid["tp_groups"] = plan.grid.groups({Axis::tp});
  grid["dp_groups"] = plan.grid.groups({Axis::dp});
  grid["ep_groups"] = plan.grid.groups({Axis::ep});
  grid["cp_groups"] = plan.grid.groups({Axis::cp});
  grid["pp_groups"] = plan.grid.groups({Axis::pp});

  nlohmann::json phases = nlohmann::json::array();
  for (const BatchPhase& phase : plan.batch.phases()) {
    phases.push_back({{"first_step", phase.first_step},
                      {"first_sample", phase.first_sample},
                      {"global_batch", phase.global_batch},
                      {"micro_batches", phase.micro_batches},
                      {"bubble", plan.schedules.at(phase.micro_batches).facts.bubble}});
  }
  nlohmann::json stages = nlohmann::json::array();
  for (const StagePlan& stage : plan.stages) stages.push_back(stage_json(plan, stage));
  nlohmann::json schedules = nlohmann::json::array();
  for (const auto& [micro_batches, step] : plan.schedules) schedules.push_back(schedule_json(step));

  return {{"schema", "mtl.plan/2"},
          {"model", to_json(plan.model)},
          {"grid", grid},
          {"sequence_parallel", plan.sequence_parallel},
          {"batch", {{"micro_batch", plan.micro_batch}, {"seq_len", plan.seq}, {"phases", phases}}},
          {"steps", plan.steps},
          {"compute", compute_name(plan.compute)},
          {"fp8_layers", plan.float8.layers(plan.model)},
          {"optimizer", optimizer_name(plan.optimizer)},
          {"optimizer_offload", plan.offload},
          {"recompute", recompute_json(plan.recompute)},
          {"memory", {{"largest_rank", plan.peak_bytes()}, {"all_ranks", plan.total_bytes()}}},
          {"stages", stages},
          {"schedules", schedules},
          {"cost",
           {{"parameters", plan.cost.parameters},
            {"active_parameters", plan.cost.active_parameters},
            {"trained_parameters", plan.cost.trained},
            {"flops_per_token", plan.cost.flops_per_token}}}};
}

BatchSchedule batch_from_json(const nlohmann::json& batch) {
  std::vector<BatchPhase> phases;
  for (const nlohmann::json& phase : batch.at("phases")) {
    phases.push_back({.first_step = phase.at("first_step").get<int64_t>(),
                      .first_sample = phase.at("first_sample").get<int64_t>(),
                      .global_batch = phase.at("global_batch").get<int64_t>(),
                      .micro_batches = phase.at("micro_batches").get<int64_t>()});
  }
  const auto begin_earlier = [](const BatchPhase& a, const BatchPhase& b) {
    return a.first_step < b.first_step;
  };
  const bool good = !phases.empty() && phases.front().first_step == 0 &&
                    std::is_sorted(phases.begin(), phases.end(), begin_earlier);
  return BatchSchedule(good ? std::move(phases) : std::vector<BatchPhase>());
}

}  // namespace mtl
