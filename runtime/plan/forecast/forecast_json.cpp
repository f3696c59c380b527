#include "runtime/plan/forecast/forecast_json.h"

#include <cmath>

#include <nlohmann/json.hpp>

namespace mtl {

nlohmann::json to_json(const LayoutChoice& layout) {
  const Recompute& recompute = layout.recompute;
  const std::string modules = modules_of(recompute);
  nlohmann::json json = {{"tp", layout.tp},
                         {"pp", layout.pp},
                         {"virtual_stages", layout.chunks},
                         {"cp", layout.cp},
                         {"ep", layout.ep},
                         {"dp", layout.dp},
                         {"zero", layout.zero},
                         {"zero_copies", layout.copies},
                         {"sequence_parallel", layout.sequence_parallel},
                         {"micro_batch", layout.micro_batch},
                         {"recompute", recompute.full != Recompute::Full::none ? "full"
                                       : modules != "[]"                       ? "selective"
                                                                               : "none"},
                         {"fp8", layout.float8.on}};
  // As train.yaml says it.
  if (modules != "[]") json["recompute_modules"] = modules;
  if (recompute.full == Recompute::Full::block) json["recompute_layers"] = recompute.layers;
  return json;
}

nlohmann::json to_json(const Forecast& one) {
  const StepTime& time = one.time;
  const MemoryForecast& memory = one.memory;
  return {{"layout", to_json(one.layout)},
          {"micro_batches", one.micro_batches},
          {"step_s",
           {{"total", time.total},
            {"matmul", time.matmul},
            {"attention", time.attention},
            {"elementwise", time.memory_bound},
            {"recompute", time.recompute},
            {"exposed_tensor", time.tensor},
            {"exposed_context", time.context},
            {"exposed_expert", time.expert},
            {"exposed_pipeline", time.pipeline},
            {"exposed_data", time.data},
            {"bubble", time.bubble},
            {"optimizer", time.optimizer}}},
          {"tokens_per_s", one.tokens_per_s},
          {"tokens_per_s_gpu", one.tokens_per_s_gpu},
          {"mfu", one.mfu},
          {"mfu_full", one.mfu_full},
          {"hfu", one.hfu},
          {"memory_bytes",
           {{"total", memory.total},
            {"weights", memory.weights},
            {"gradients", memory.gradients},
            {"optimizer", memory.optimizer},
            {"activations", memory.activations},
            {"scratch", memory.scratch},
            {"on_host", memory.on_host},
            {"nccl", memory.nccl},
            {"stage", memory.stage}}},
          {"wire_bytes_per_rank",
           {{"tensor", one.links.tensor},
            {"context", one.links.context},
            {"expert", one.links.expert},
            {"pipeline", one.links.pipeline},
            {"data", one.links.data}}},
          {"run_s",
           {{"total", one.run.total()},
            {"steps", one.run.steps},
            {"evaluations", one.run.evaluations},
            {"texts", one.run.texts},
            {"checkpoints", one.run.saves}}},
          {"days", one.days},
          {"gpu_hours", one.gpu_hours},
          {"fits", one.fits},
          {"not_run_here", one.not_run}};
}

nlohmann::json to_json(const Cluster& cluster) {
  return {{"type", cluster.name},
          {"gpus_per_node", cluster.gpus_per_node},
          {"memory_bytes", cluster.gpu.memory_bytes},
          {"usable_bytes", std::isfinite(usable_memory(cluster)) ? usable_memory(cluster) : 0},
          {"memory_bytes_per_s", cluster.gpu.memory_rate},
          {"near_bytes_per_s", cluster.near_rate},
          {"nvlink_bytes_per_s", cluster.gpu.nvlink_rate / 2},
          {"nic_bytes_per_s", cluster.nic_rate},
          {"matmul_share", cluster.matmul_share}};
}

namespace {

nlohmann::json advice_json(const Advice& advice) {
  nlohmann::json json = to_json(advice.forecast);
  json["why"] = advice.why;
  return json;
}

}  // namespace

nlohmann::json to_json(const Tuning& tuning) {
  nlohmann::json best = nlohmann::json::array();
  for (const Advice& advice : tuning.best) best.push_back(advice_json(advice));
  nlohmann::json json = {
      {"considered", tuning.considered}, {"too_large", tuning.too_large}, {"best", best}};
  if (!tuning.indivisible.empty()) json["indivisible"] = tuning.indivisible;
  if (!tuning.left_out.empty()) json["left_out"] = tuning.left_out;
  if (tuning.if_it_fitted) json["if_it_fitted"] = advice_json(*tuning.if_it_fitted);
  if (tuning.run_here) json["run_here"] = advice_json(*tuning.run_here);
  if (tuning.offloaded) json["offloaded"] = advice_json(*tuning.offloaded);
  return json;
}

nlohmann::json to_json(const ClusterStep& step) {
  return {{"gpus", step.gpus},          {"events", step.events},
          {"replicas", step.replicas},  {"replicas_run", step.replicas_run},
          {"step_s", step.seconds},     {"step_s_without_stragglers", step.even_seconds},
          {"idle_by_stage", step.idle}, {"slowest_replica", step.slowest_replica}};
}

nlohmann::json to_json(const Goodput& goodput) {
  return {{"mtbf_s", goodput.mtbf_s},
          {"checkpoint_interval_s", goodput.interval_s},
          {"checkpoint_every_steps", goodput.interval_steps},
          {"expected", goodput.expected},
          {"simulated", goodput.simulated},
          {"failures", goodput.failures},
          {"wall_s", goodput.wall_s}};
}

}  // namespace mtl
