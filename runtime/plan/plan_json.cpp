// The plan as JSON: plan.json of a run directory, and `mtl plan --json`.
#include <nlohmann/json.hpp>

#include "runtime/plan/plan.h"

namespace mtl {

namespace {

nlohmann::json groups_json(const Grid& grid, AxisSet axes) {
  return nlohmann::json(grid.groups(axes));
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

  nlohmann::json parameters = nlohmann::json::array();
  for (const ParamPlacement& placement : plan.layout.params) {
    const ParamRow& row = plan.table[placement.row];
    parameters.push_back({{"name", row.name},
                          {"shape", row.shape},
                          {"local_shape", placement.shape},
                          {"tp_axis", row.tp_axis},
                          {"segments", row.segments},
                          {"replicated_over", row.replicated_over.name()},
                          {"grad_sum_over", row.grad_sum_over.name()},
                          {"decays", row.decays}});
  }

  nlohmann::json memory = {{"total_bytes", plan.memory.total_bytes}};
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    memory[category_name(category)] = plan.memory.bytes_of_category(category);
  }

  nlohmann::json schedule = nlohmann::json::array();
  for (const Program& program : plan.schedule) {
    nlohmann::json stage = nlohmann::json::array();
    for (const Instruction& in : program) {
      stage.push_back({{"op", op_name(in.op)},
                       {"micro_batch", in.micro_batch},
                       {"chunk", in.chunk},
                       {"slot", in.slot}});
    }
    schedule.push_back(std::move(stage));
  }

  return {{"schema", "mtl.plan/1"},
          {"model", to_json(plan.model)},
          {"grid", grid},
          {"batch",
           {{"global_batch", plan.global_batch},
            {"micro_batch", plan.micro_batch},
            {"micro_batches", plan.micro_batches},
            {"seq_len", plan.seq}}},
          {"compute", plan.compute == DType::bf16 ? "bf16" : "fp32"},
          {"parameters", parameters},
          {"memory_per_rank", memory},
          {"schedule", schedule},
          {"cost",
           {{"parameters", plan.cost.parameters},
            {"tokens_per_step", plan.cost.tokens_per_step},
            {"flops_per_token", plan.cost.flops_per_token},
            {"flops_per_step", plan.cost.flops_per_step},
            {"tp_bytes_per_step", plan.cost.tp_bytes_per_step},
            {"dp_bytes_per_step", plan.cost.dp_bytes_per_step}}}};
}

}  // namespace mtl
