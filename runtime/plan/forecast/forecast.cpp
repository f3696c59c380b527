#include "runtime/plan/forecast/forecast.h"

#include "runtime/plan/cost.h"
#include "runtime/plan/forecast/stage_params.h"
#include "runtime/plan/memory/master_type.h"

namespace mtl {

Software software_mtl() {
  Software software;
  software.head_in_forward = true;
  software.exchanges_heads = true;
  software.expert_room = true;
  software.whole_masters = false;
  software.tensor_core_head = 256;  // device/cuda/attention.h
  software.heads_have_kernels = true;
  // x along one way forward and along the other backward, where it is not kept (model/linear.h).
  software.float8 = {.x = 5, .dy = 6, .x_again = 3, .found = 2};
  software.keeps_float8_x = true;
  // Along the rows and along the columns apart, with an amax for each (model/float8_rows.h).
  software.float8_up = {.x = 5, .dy = 8, .x_again = 5, .found = 2};
  software.float8_down = {.x = 5, .dy = 10, .x_again = 5, .found = 2};
  return software;
}

double master_bytes(const Software& software, DType compute) {
  const auto bytes = static_cast<double>(master_bytes(compute));
  return bytes > 0 && software.whole_masters ? bytes_of(DType::f32) : bytes;
}

double full_flops_per_token(const ModelShape& model, int64_t seq) {
  ModelShape whole = model;
  whole.sliding_window = 0;
  const auto other_half =
      static_cast<double>(3 * (model.query_width() + model.context_width()) * model.layers * seq);
  return flops_per_token_of_layers(whole, seq, 0, model.layers) + other_half +
         flops_per_token_of_head(model);
}

double hardware_flops_per_token(const ModelShape& model, int64_t seq, const LayoutChoice& layout) {
  const double all = full_flops_per_token(model, seq);
  const double layers = all - flops_per_token_of_head(model);
  const Recompute& recompute = layout.recompute;
  if (recompute.full != Recompute::Full::none) {
    double made_again = 0;
    for (const auto& stage : layout_chunks({.model = model, .seq = seq}, layout)) {
      for (const ChunkRange& chunk : stage) {
        const int64_t end = chunk.first_layer + layers_again(layout.recompute, chunk);
        made_again += flops_per_token_of_layers(model, seq, chunk.first_layer, end);
      }
    }
    return all + layers * forward_part(model) * made_again /
                     flops_per_token_of_layers(model, seq, 0, model.layers);
  }
  if (!recompute.core_attention && !recompute.mlp && !recompute.latents) return all;
  int64_t attend_again = 0, latents_again = 0, mixtures_again = 0, dense_again = 0;  // layers
  for (const auto& stage : layout_chunks({.model = model, .seq = seq}, layout)) {
    for (const ChunkRange& chunk : stage) {
      attend_again += recompute.core_attention.of(chunk);
      if (model.has_latents()) latents_again += recompute.latents.of(chunk);
      const int64_t mlps = recompute.mlp.of(chunk);
      const int64_t mixtures = model.mixtures_in(chunk.first_layer, chunk.first_layer + mlps);
      mixtures_again += mixtures;
      dense_again += mlps - mixtures;
    }
  }
  const int64_t ffn =
      mixtures_again * model.active_ffn() + dense_again * model.of_dense_layers().active_ffn();
  const int64_t widths = model.query_width() + model.context_width();
  const int64_t ups = model.latent.q_rank * model.query_width() +
                      model.latent.kv_rank * model.heads * model.latent_pair();
  return all + 2.0 * static_cast<double>(widths * attend_again * seq) +
         2.0 * static_cast<double>(ups * latents_again) +
         2.0 * static_cast<double>((model.mlp_parts() + 1) * ffn * model.hidden);
}

ScheduleShape schedule_shape(const LayoutChoice& layout, int64_t micro_batches) {
  return {.kind = layout.kind(),
          .stages = layout.pp,
          .chunks = layout.chunks,
          .micro_batches = static_cast<int>(micro_batches),
          .group = layout.in_turn(),
          .weights_later = layout.weights_later};
}

namespace {

// The busiest stage works all the time but for this.
double simulated_bubble(const LayoutChoice& layout, int64_t micro_batches,
                        const std::vector<StageTimes>& stages, double busiest) {
  const ScheduleShape shape = schedule_shape(layout, micro_batches);
  ScheduleTimes times;
  const ChunkTimes mean = stages.front().chunks.front();
  times.forward = mean.forward;
  times.backward = mean.backward;
  times.weight_grads = mean.weight_grads;
  for (const StageTimes& stage : stages) {
    times.weight.emplace_back();
    for (const ChunkTimes& chunk : stage.chunks) {
      times.weight.back().push_back((chunk.forward + chunk.backward) /
                                    (mean.forward + mean.backward));
    }
  }
  std::string problem;
  const auto facts = simulate(make_schedule(shape), shape, problem, times);
  return facts ? facts->makespan - static_cast<double>(micro_batches) * busiest : 0;
}

}  // namespace

Forecast forecast(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                  const Software& software, bool simulate_schedule) {
  Forecast result;
  result.layout = layout;
  result.not_run = not_run_here(work.model, layout, cluster);
  result.micro_batches = work.global_batch / (layout.micro_batch * layout.replicas());
  const auto m = static_cast<double>(result.micro_batches);
  const std::vector<StageTimes> stages = stage_times(work, layout, cluster, software);
  const std::vector<std::vector<ChunkRange>> held = layout_chunks(work, layout);
  size_t busiest = 0;
  double most = 0, sum = 0, later = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const double one = stages[s].forward() + stages[s].backward();
    sum += one;
    later += stages[s].weight_grads();
    if (one > most) {
      most = one;
      busiest = s;
    }
  }
  const StepTime& of_one = stages[busiest].parts;
  StepTime& time = result.time;
  time.matmul = m * of_one.matmul;
  time.attention = m * of_one.attention;
  time.memory_bound = m * of_one.memory_bound;
  time.recompute = m * of_one.recompute;
  time.tensor = m * of_one.tensor;
  time.context = m * of_one.context;
  time.expert = m * of_one.expert;
  if (layout.pp > 1) {
    const double chunks = layout.chunks;
    if (simulate_schedule) {
      time.bubble = simulated_bubble(layout, result.micro_batches, stages, most);
    } else {
      // arXiv 2104.04473, section 2.2: (p - 1) / (m v) of the work, in GPipe, 1F1B and interleaved.
      time.bubble = (sum - most) / chunks;
      // arXiv 2401.10241: with the weights' gradients taken out, and filled in.
      if (layout.weights_later) {
        time.bubble -= 2 * (later - stages[busiest].weight_grads()) / chunks;
      }
    }
    const double send = stage_send_time(work, layout, cluster);
    // An activation and a gradient travel each way per pass and chunk, both directions at once.
    // Overlapped, only filling and draining wait for the way of a message, and the others take
    // some of the multiprocessors.
    const double passes = 2 * m * chunks * send;
    time.pipeline =
        layout.overlap_send ? 2 * (layout.pp - 1) * send + cluster.overlap_cost * passes : passes;
  }
  // Stages end one after the other; the first has the last backward, and often most parameters.
  StepEnd end;
  for (const size_t stage : {size_t{0}, stages.size() - 1}) {
    const StepEnd one = step_end(work, layout, cluster, software, held[stage], stages[stage]);
    if (one.data + one.optimizer > end.data + end.optimizer) end = one;
  }
  time.data = end.data;
  time.optimizer = end.optimizer;
  const LinkForecast& links = stages[busiest].links;
  result.links = {.tensor = m * links.tensor,
                  .context = m * links.context,
                  .expert = m * links.expert,
                  .pipeline = m * links.pipeline,
                  .data = end.bytes};

  time.total = time.matmul + time.attention + time.memory_bound + time.recompute + time.exposed() +
               time.bubble + time.optimizer;
  const double tokens = static_cast<double>(work.global_batch * work.seq);
  const double world = layout.world();
  result.tokens_per_s = tokens / time.total;
  result.tokens_per_s_gpu = result.tokens_per_s / world;
  const double peak = peak_flops(cluster.gpu, work.compute);
  const double causal = flops_per_token_of_layers(work.model, work.seq, 0, work.model.layers) +
                        flops_per_token_of_head(work.model);
  result.mfu = causal * result.tokens_per_s_gpu / peak;
  result.mfu_full = full_flops_per_token(work.model, work.seq) * result.tokens_per_s_gpu / peak;
  result.hfu =
      hardware_flops_per_token(work.model, work.seq, layout) * result.tokens_per_s_gpu / peak;
  if (work.total_tokens > 0) {
    const double steps_s = work.total_tokens / result.tokens_per_s;
    result.run = {.steps = steps_s};
    if (work.beside.steps > 0) {
      result.run = seconds_of_run(work.beside, 1, steps_s, time.total,
                                  beside_seconds(work, layout, cluster, software, time));
    }
    const double seconds = result.run.total();
    result.days = seconds / 86400;
    result.gpu_hours = seconds / 3600 * world;
  }
  result.memory = forecast_memory(work, layout, software);
  result.memory.nccl = nccl_memory(work.model, layout, cluster);
  result.fits = needed_memory(result.memory, cluster) <= usable_memory(cluster);
  return result;
}

std::optional<Forecast> forecast_at_scale(const Workload& work, const LayoutChoice& layout,
                                          const Cluster& cluster) {
  if (!cluster.others || layout.world() <= cluster.near_domain) return std::nullopt;
  return forecast(work, layout, with_kernels_of_others(cluster), software_mtl(), true);
}

}  // namespace mtl
