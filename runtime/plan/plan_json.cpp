// The plan as JSON: plan.json of a run directory, and `mtl plan --json`.
#include <nlohmann/json.hpp>

#include "runtime/plan/plan.h"

namespace mtl {

namespace {

nlohmann::json groups_json(const Grid& grid, AxisSet axes) {
  return nlohmann::json(grid.groups(axes));
}

nlohmann::json stage_json(const Plan& plan, const StagePlan& stage) {
  nlohmann::json chunks = nlohmann::json::array();
  for (const ChunkRange& chunk : stage.chunks) {
    chunks.push_back({{"first_layer", chunk.first_layer},
                      {"layers", chunk.layers},
                      {"embedding", chunk.embedding},
                      {"head", chunk.head}});
  }
  nlohmann::json parameters = nlohmann::json::array();
  for (const ParamPlacement& param : stage.layout.params) {
    const ParamRow& row = plan.table[param.row];
    parameters.push_back({{"name", row.name},
                          {"shape", row.shape},
                          {"local_shape", param.shape},
                          {"tp_axis", row.tp_axis},
                          {"segments", row.segments},
                          {"replicated_over", row.replicated_over.name()},
                          {"grad_sum_over", row.grad_sum_over.name()},
                          {"decays", row.decays}});
  }
  nlohmann::json buckets = nlohmann::json::array();
  for (const Bucket& bucket : stage.layout.buckets) {
    buckets.push_back({{"elements", bucket.numel}, {"complete_after_layer", bucket.layer}});
  }
  nlohmann::json memory = {{"total_bytes", stage.memory.total_bytes},
                           {"slots", stage.memory.slots},
                           {"slot_bytes", stage.memory.slot_bytes}};
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    memory[category_name(category)] = stage.memory.bytes_of_category(category);
  }
  nlohmann::json traffic = nlohmann::json::object();
  for (int i = 0; i < kLinks; ++i) {
    const LinkBytes& bytes = stage.traffic.links[static_cast<size_t>(i)];
    if (bytes == LinkBytes{}) continue;
    traffic[link_name(static_cast<Link>(i))] = {{"all_reduce", bytes.all_reduce},
                                                {"reduce_scatter", bytes.reduce_scatter},
                                                {"all_gather", bytes.all_gather},
                                                {"send", bytes.send}};
  }
  return {{"chunks", chunks},
          {"parameters", parameters},
          {"buckets", buckets},
          {"optimizer_shards", stage.layout.shards},
          {"memory_per_rank", memory},
          {"traffic_per_rank_and_step", traffic}};
}

nlohmann::json schedule_json(const StepSchedule& step) {
  nlohmann::json stages = nlohmann::json::array();
  for (const Program& program : step.programs) {
    nlohmann::json stage = nlohmann::json::array();
    for (const Instruction& in : program) {
      stage.push_back({{"op", op_name(in.op)},
                       {"micro_batch", in.micro_batch},
                       {"chunk", in.chunk},
                       {"slot", in.slot}});
    }
    stages.push_back(std::move(stage));
  }
  return {{"micro_batches", step.shape.micro_batches},
          {"bubble", step.facts.bubble},
          {"peak_in_flight", step.facts.peak_in_flight},
          {"stages", stages}};
}

}  // namespace

nlohmann::json to_json(const Plan& plan) {
  nlohmann::json grid = {{"world", plan.grid.world()}};
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    grid[axis_name(axis)] = plan.grid.sizes()[axis];
  }
  grid["tp_groups"] = groups_json(plan.grid, {Axis::tp});
  grid["dp_groups"] = groups_json(plan.grid, {Axis::dp});
  grid["pp_groups"] = groups_json(plan.grid, {Axis::pp});

  nlohmann::json phases = nlohmann::json::array();
  for (const BatchPhase& phase : plan.batch.phases()) {
    phases.push_back({{"first_step", phase.first_step},
                      {"first_sample", phase.first_sample},
                      {"global_batch", phase.global_batch},
                      {"micro_batches", phase.micro_batches}});
  }
  nlohmann::json stages = nlohmann::json::array();
  for (const StagePlan& stage : plan.stages) stages.push_back(stage_json(plan, stage));
  nlohmann::json schedules = nlohmann::json::array();
  for (const auto& [micro_batches, step] : plan.schedules) schedules.push_back(schedule_json(step));

  return {{"schema", "mtl.plan/2"},
          {"model", to_json(plan.model)},
          {"grid", grid},
          {"sequence_parallel", plan.sequence_parallel},
          {"batch",
           {{"micro_batch", plan.micro_batch}, {"seq_len", plan.seq}, {"phases", phases}}},
          {"steps", plan.steps},
          {"compute", compute_name(plan.compute)},
          {"stages", stages},
          {"schedules", schedules},
          {"cost",
           {{"parameters", plan.cost.parameters},
            {"flops_per_token", plan.cost.flops_per_token}}}};
}

}  // namespace mtl
