#include "runtime/plan/forecast.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "runtime/plan/cost.h"
#include "runtime/plan/forecast_links.h"
#include "runtime/plan/nearest.h"

namespace mtl {

Software software_mtl() {
  Software software;
  software.head_in_forward = true;
  software.exchanges_heads = true;
  software.expert_room = true;
  // x along one way forward and along the other backward, where it is not kept (model/linear.h).
  software.float8 = {.x = 5, .dy = 6, .x_again = 3, .found = 2};
  software.keeps_float8_x = true;
  // Along the rows and along the columns apart, with an amax for each (model/float8_rows.h).
  software.float8_up = {.x = 5, .dy = 8, .x_again = 5, .found = 2};
  software.float8_down = {.x = 5, .dy = 10, .x_again = 5, .found = 2};
  return software;
}

double StageTimes::forward() const {
  return std::accumulate(chunks.begin(), chunks.end(), 0.0,
                         [](double sum, const ChunkTimes& chunk) { return sum + chunk.forward; });
}
double StageTimes::backward() const {
  return std::accumulate(chunks.begin(), chunks.end(), 0.0,
                         [](double sum, const ChunkTimes& chunk) { return sum + chunk.backward; });
}

bool runs_context(const ModelShape& model, const LayoutChoice& layout) {
  return layout.cp > 1 && layout.micro_batch == 1 && heads_divide(model, layout.tp, layout.cp);
}

bool exchanges_heads(const ModelShape& model, const LayoutChoice& layout,
                     const Software& software) {
  return software.exchanges_heads && runs_context(model, layout);
}

std::vector<std::string> not_run_here(const ModelShape& model, const LayoutChoice& layout,
                                      const Cluster& cluster) {
  std::vector<std::string> parts;
  if (layout.cp > 1 && !runs_context(model, layout)) {
    parts.emplace_back(layout.micro_batch > 1 ? "context parallelism of several sequences at a time"
                                              : "context parallelism of more ranks than heads");
  }
  if (layout.ep > 1 && layout.zero > 1) {
    parts.emplace_back("expert parallelism with ZeRO-2 or 3");
  }
  if (layout.keep_every_second) parts.emplace_back("selective recompute by product");
  if (!cluster.cpu && layout.float8.on && cluster.gpu.fp8 == 0) {
    parts.emplace_back("FP8 on a GPU that multiplies none");
  }
  if (!cluster.cpu && cluster.gpu.major < 8) {
    parts.emplace_back("GPUs of a compute capability below 8.0");
  }
  return parts;
}

namespace {

std::string impossible_batch(int64_t batch, const LayoutChoice& layout) {
  const int64_t per_round = layout.micro_batch * layout.replicas();
  if (batch % per_round != 0) {
    return fmt::format("a batch of {} over {} replicas x {} per micro-batch", batch,
                       layout.replicas(), layout.micro_batch);
  }
  // As rules_batch.cpp: interleaved micro-batches go in groups of pp.
  if (layout.chunks > 1 && batch / per_round % layout.pp != 0) {
    return fmt::format("{} micro-batches in groups of {} stages", batch / per_round, layout.pp);
  }
  return {};
}

}  // namespace

std::string impossible(const Workload& work, const LayoutChoice& layout) {
  const ModelShape& model = work.model;
  if (model.heads % layout.tp != 0) {
    return fmt::format("{} heads over tp {}", model.heads, layout.tp);
  }
  if (model.kv_heads % layout.tp != 0 && layout.tp % model.kv_heads != 0) {
    return fmt::format("{} KV heads over tp {}", model.kv_heads, layout.tp);
  }
  if (model.ffn % layout.tp != 0) return fmt::format("ffn {} over tp {}", model.ffn, layout.tp);
  if (layout.pp * layout.chunks > model.layers) {
    return fmt::format("{} layers over {} stages", model.layers, layout.pp * layout.chunks);
  }
  if (layout.chunks > 1 && layout.pp == 1) return "virtual stages of one stage";
  // In a ring, a rank has two pieces, so that all have as much to do.
  const int pieces = layout.cp > 1 && !runs_context(model, layout) ? 2 * layout.cp : layout.cp;
  if (work.seq % pieces != 0) {
    return fmt::format("sequences of {} over cp {}", work.seq, layout.cp);
  }
  if (layout.sequence_parallel && work.seq / layout.cp % layout.tp != 0) {
    return fmt::format("sequences of {} over tp {}", work.seq, layout.tp);
  }
  if (layout.ep > 1 && (model.experts == 0 || model.experts % layout.ep != 0)) {
    return fmt::format("{} experts over ep {}", model.experts, layout.ep);
  }
  std::string of_batch = impossible_batch(work.global_batch, layout);
  for (size_t i = 0; of_batch.empty() && i < work.other_batches.size(); ++i) {
    of_batch = impossible_batch(work.other_batches[i], layout);
  }
  if (!of_batch.empty()) return of_batch;
  if (layout.zero > 1 && layout.pp > 1) {
    return fmt::format("ZeRO-{} with a pipeline", layout.zero);
  }
  return {};
}

namespace {

// Of `block`, the first layers of a chunk are made again; else all of them (which, with selective
// recompute, is some of each) or none.
int64_t layers_again(const LayoutChoice& layout, const ChunkRange& chunk) {
  const bool block = layout.recompute.full == Recompute::Full::block;
  return block ? std::min(chunk.layers, layout.recompute.layers) : chunk.layers;
}

double stage_send_bytes(const Workload& work, const LayoutChoice& layout) {
  const double rows = static_cast<double>(layout.micro_batch * work.seq) / layout.cp /
                      (layout.sequence_parallel ? layout.tp : 1);
  return rows * static_cast<double>(work.model.hidden) * bytes_of(work.compute);
}

// Layers of a chunk that are alike, and how many of them backward makes again, in groups.
struct AlikeLayers {
  const LayerKind& kind;
  double layers, again, groups;
  double back(const LinkPart& part) const {
    return layers * part.backward + again * part.again - groups * part.unneeded;
  }
  double wire(const LinkPart& part) const {
    return layers * part.wire + again * part.wire_again - groups * part.wire_unneeded;
  }
};

std::array<AlikeLayers, 2> alike_layers(const ModelShape& model, const LayoutChoice& layout,
                                        const ChunkRange& chunk, const LayerKinds& kinds) {
  const int64_t again = layers_again(layout, chunk);
  const int64_t begin = chunk.first_layer;
  const int64_t float8 = layout.float8.layers_in(model, begin, chunk.end_layer());
  const int64_t float8_again = layout.float8.layers_in(model, begin, begin + again);
  const bool uniform = layout.recompute.full == Recompute::Full::uniform;
  const int64_t of_group = uniform ? layout.recompute.layers : 1;
  const double groups = layout.recompute.full == Recompute::Full::none
                            ? 0
                            : static_cast<double>((again + of_group - 1) / of_group);
  const auto alike = [&](const LayerKind& kind, int64_t layers, int64_t made_again) {
    // A group of both kinds is half of each.
    const double share =
        again > 0 ? static_cast<double>(made_again) / static_cast<double>(again) : 0;
    return AlikeLayers{kind, static_cast<double>(layers), static_cast<double>(made_again),
                       groups * share};
  };
  return {alike(kinds.in_float8, float8, float8_again),
          alike(kinds.plain, chunk.layers - float8, again - float8_again)};
}

}  // namespace

std::vector<StageTimes> stage_times(const Workload& work, const LayoutChoice& layout,
                                    const Cluster& cluster, const Software& software) {
  const LayerKinds kinds = layer_kinds(work, layout, cluster, software);
  const PassWork head = head_work(work, layout, cluster, software);
  const Work embedding = embedding_work(work, layout, cluster);
  const double sent = layout.pp > 1 ? stage_send_bytes(work, layout) : 0;
  std::vector<StageTimes> stages;
  for (const std::vector<ChunkRange>& chunks : layout_chunks(work, layout)) {
    StageTimes stage;
    StepTime& parts = stage.parts;
    for (const ChunkRange& chunk : chunks) {
      ChunkTimes times;
      Work forward, backward, recompute;
      double tensor = 0, tensor_back = 0, context = 0, context_back = 0;
      double expert = 0, expert_back = 0;
      for (const AlikeLayers& alike : alike_layers(work.model, layout, chunk, kinds)) {
        if (alike.layers == 0) continue;
        const PassWork& pass = alike.kind.work;
        const LayerLinks& links = alike.kind.links;
        forward += pass.forward * alike.layers;
        backward += pass.backward * alike.layers;
        recompute += pass.again * alike.again;
        tensor += alike.layers * links.tensor.forward;
        tensor_back += alike.back(links.tensor);
        context += alike.layers * links.context.forward;
        context_back += alike.back(links.context);
        expert += alike.layers * links.expert.forward;
        expert_back += alike.back(links.expert);
        stage.links.tensor += alike.wire(links.tensor);
        stage.links.context += alike.wire(links.context);
        stage.links.expert += alike.wire(links.expert);
      }
      if (chunk.head) {
        forward += head.forward;
        backward += head.backward;
      }
      if (chunk.embedding) {
        forward += embedding * 0.3;
        backward += embedding * 0.7;
      }
      const EndsTensor ends = ends_tensor(work, layout, cluster, chunk.embedding, chunk.head);
      tensor += ends.time / 2;
      tensor_back += ends.time / 2;
      stage.links.tensor += ends.wire;
      // An activation to the next virtual stage, a gradient to the one before.
      stage.links.pipeline += ((chunk.head ? 0 : 1) + (chunk.embedding ? 0 : 1)) * sent;
      times.forward = forward.sum() + tensor + context + expert;
      times.backward = backward.sum() + recompute.sum() + tensor_back + context_back + expert_back;
      stage.chunks.push_back(times);
      parts.matmul += forward.matmul + backward.matmul;
      parts.attention += forward.attention + backward.attention;
      parts.memory_bound += forward.memory_bound + backward.memory_bound;
      parts.recompute += recompute.sum();
      parts.tensor += tensor + tensor_back;
      parts.context += context + context_back;
      parts.expert += expert + expert_back;
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

double stage_send_time(const Workload& work, const LayoutChoice& layout, const Cluster& cluster) {
  if (layout.pp <= 1) return 0;
  return send_time(cluster, layout.tp * layout.cp * layout.ep * layout.dp,
                   stage_send_bytes(work, layout));
}

namespace {

constexpr double kLeastExposed = 0.05;  // the bucket that backward fills last

double hidden_rest(const Cluster& cluster, bool overlap, double time, double beside) {
  if (!overlap) return time;
  const double hidden = std::min(time * (1 - kLeastExposed), beside);
  return time - hidden + cluster.overlap_cost * hidden;
}

}  // namespace

StepEnd step_end(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                 const Software& software, const std::vector<ChunkRange>& chunks,
                 const StageTimes& times) {
  StepEnd end;
  const StageParams params = stage_params(work, layout, chunks);
  const double element = bytes_of(work.compute);
  const int64_t micro_batches = work.global_batch / (layout.micro_batch * layout.replicas());
  // Dense parameters are shared by dp x ep x cp ranks, experts by dp x cp; of one copy of shards.
  const int inner = layout.tp, copies = layout.copies;
  const int dense = layout.cp * layout.ep * layout.dp / copies;
  const int expert = layout.cp * layout.dp / copies;
  const GroupLink link = group_link(cluster, dense, inner, layout.world());
  const GroupLink expert_link =
      group_link(cluster, expert, inner * (params.experts > 0 ? layout.ep : 1), layout.world());
  const auto gather = [&](double bytes_per_param) {
    double time = gather_time(link, params.dense * bytes_per_param);
    if (params.experts > 0) time += gather_time(expert_link, params.experts * bytes_per_param);
    return time;
  };
  const auto sent = [](double elements, double ranks) { return elements * (ranks - 1) / ranks; };
  const double ring = sent(params.dense, dense) + sent(params.experts, expert);
  const double shard_elements =
      layout.zero > 0 ? params.dense / dense + params.experts / expert : params.sum();
  // Once per step, beside the last backward: what the shards of a copy have, over the copies.
  const double over_copies = all_reduce_time(
      group_link(cluster, copies, inner * dense, layout.world()), 4 * shard_elements);
  end.bytes += 2 * sent(4 * shard_elements, copies);
  if (dense > 1) {
    // torchao gathers weights in fp8; mtl rounds what it has gathered.
    const double weight = layout.float8.on && software.torch_fsdp ? 1 : element;
    const bool narrow = layout.zero > 0 && work.grad_reduce != DType::f32;
    const double grad = narrow ? bytes_of(work.grad_reduce) : software.grad_bytes;
    const auto beside_backward = [&](double time) {
      return hidden_rest(cluster, layout.overlap_data, time, times.backward());
    };
    if (layout.zero == 3) {
      // Weights before forward and before backward, gradients scattered, every micro-batch; each
      // unit is fetched while the one before computes (arXiv 2304.11277).
      const double weights = gather(weight);
      // Each waited for where it is not to run beside.
      const auto backward = [&](double grads) {
        double beside = 0, waited = 0;
        (layout.overlap_gather ? beside : waited) += weights;
        (layout.overlap_data ? beside : waited) += grads;
        return waited + hidden_rest(cluster, true, beside, times.backward());
      };
      end.data = static_cast<double>(micro_batches) *
                     hidden_rest(cluster, layout.overlap_gather, weights, times.forward()) +
                 static_cast<double>(micro_batches - 1) * backward(gather(grad)) +
                 backward(gather(grad) + over_copies);
      end.bytes += static_cast<double>(micro_batches) * ring * (2 * weight + grad);
    } else {
      // Gradients beside the backward of the last micro-batch; weights (ZeRO) beside the forward
      // of the next step's first. ZeRO-2 scatters every micro-batch.
      const double rounds = layout.zero == 2 ? static_cast<double>(micro_batches) : 1;
      const double reduce = layout.zero == 0 ? 2 * gather(grad) : gather(grad);
      // What is rounded, the ranks of a copy add when all of it is there.
      const double beside = narrow && layout.zero == 1 ? 0 : over_copies;
      end.data = (rounds - 1) * beside_backward(reduce) + beside_backward(reduce + beside) +
                 over_copies - beside;
      end.bytes += ring * grad * (layout.zero == 0 ? 2 : rounds);
      if (layout.zero > 0) {
        end.data += hidden_rest(cluster, layout.overlap_gather, gather(element), times.forward());
        end.bytes += ring * element;
      }
    }
  }
  // Adam: master and two moments read and written, gradient read, weight written; and the norm
  // reads every gradient once more. SGD has one moment.
  const double moments = work.optimizer == OptimizerKind::sgd ? 1 : 2;
  const double master = work.compute == DType::f32 ? 0 : 8;
  const double state = shard_elements * (8 * moments + master);
  const double rest = shard_elements * (8 + element) + (layout.zero < 2 ? params.sum() * 4 : 0);
  if (work.offload && !cluster.cpu) {
    // As much comes over PCIe as goes back.
    end.optimizer =
        stream_time(cluster, rest) + state / 2 / (cluster.gpu.host_rate * cluster.host_share);
  } else {
    end.optimizer = stream_time(cluster, state + rest);
  }
  return end;
}

double full_flops_per_token(const ModelShape& model, int64_t seq) {
  ModelShape whole = model;
  whole.sliding_window = 0;
  const auto other_half = static_cast<double>(6 * model.query_width() * seq);
  return static_cast<double>(model.layers) * (flops_per_token_of_layer(whole, seq) + other_half) +
         flops_per_token_of_head(model);
}

double hardware_flops_per_token(const ModelShape& model, int64_t seq, const LayoutChoice& layout) {
  const double all = full_flops_per_token(model, seq);
  const double layers = all - flops_per_token_of_head(model);
  const double attention = 4.0 * static_cast<double>(model.query_width() * model.layers * seq);
  const Recompute& recompute = layout.recompute;
  if (recompute.full != Recompute::Full::none) {
    int64_t made_again = 0;
    for (const auto& stage : layout_chunks({.model = model, .seq = seq}, layout)) {
      for (const ChunkRange& chunk : stage) made_again += layers_again(layout, chunk);
    }
    return all + layers / 3 * static_cast<double>(made_again) / static_cast<double>(model.layers);
  }
  double again = 0;
  if (recompute.core_attention) again += attention;
  if (recompute.mlp) {
    again += 2.0 * static_cast<double>(model.layers * model.active_experts() *
                                       (model.mlp_parts() + 1) * model.ffn * model.hidden);
  }
  return all + again;
}

namespace {

// The busiest stage works all the time but for this.
double simulated_bubble(const LayoutChoice& layout, int64_t micro_batches,
                        const std::vector<StageTimes>& stages, double busiest) {
  ScheduleShape shape;
  shape.kind = layout.chunks > 1 ? ScheduleKind::interleaved : layout.schedule;
  shape.stages = layout.pp;
  shape.chunks = layout.chunks;
  shape.micro_batches = static_cast<int>(micro_batches);
  ScheduleTimes times;
  const ChunkTimes mean = stages.front().chunks.front();
  times.forward = mean.forward;
  times.backward = mean.backward;
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
  double most = 0, sum = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const double one = stages[s].forward() + stages[s].backward();
    sum += one;
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
  const auto layer_flops =
      static_cast<double>(work.model.layers) * flops_per_token_of_layer(work.model, work.seq);
  const double causal = layer_flops + flops_per_token_of_head(work.model);
  result.mfu = causal * result.tokens_per_s_gpu / peak;
  result.mfu_full = full_flops_per_token(work.model, work.seq) * result.tokens_per_s_gpu / peak;
  result.hfu =
      hardware_flops_per_token(work.model, work.seq, layout) * result.tokens_per_s_gpu / peak;
  if (work.total_tokens > 0) {
    const double seconds = work.total_tokens / result.tokens_per_s;
    result.days = seconds / 86400;
    result.gpu_hours = seconds / 3600 * world;
  }
  result.memory = forecast_memory(work, layout, software);
  result.fits = needed_memory(result.memory, cluster) <= usable_memory(cluster);
  return result;
}

Workload workload_of(const Plan& plan) {
  Workload work;
  work.model = plan.model;
  work.seq = plan.seq;
  std::set<int64_t> batches;
  for (const BatchPhase& phase : plan.batch.phases()) batches.insert(phase.global_batch);
  work.global_batch = *batches.rbegin();
  work.other_batches.assign(batches.begin(), std::prev(batches.end()));
  work.total_tokens =
      static_cast<double>(plan.batch.first_sample(plan.steps)) * static_cast<double>(plan.seq);
  work.logits_rows = plan.logits_rows;
  work.ep_room = plan.ep_room;
  work.compute = plan.compute;
  work.optimizer = plan.optimizer;
  work.offload = plan.offload;
  work.grad_reduce = plan.grad_reduce;
  return work;
}

LayoutChoice layout_of(const Plan& plan) {
  LayoutChoice layout;
  const GridSizes& sizes = plan.grid.sizes();
  layout.tp = sizes[Axis::tp];
  layout.pp = sizes[Axis::pp];
  layout.cp = sizes[Axis::cp];
  layout.ep = sizes[Axis::ep];
  layout.dp = sizes[Axis::dp];
  layout.copies = sizes.copies;
  layout.chunks = plan.largest().shape.chunks;
  layout.schedule = plan.largest().shape.kind;
  layout.sequence_parallel = plan.sequence_parallel;
  const ParamLayout& params = plan.stages.front().layout;
  layout.zero = params.zero;
  for (size_t i = 0; params.shards_gradients() && i < params.buckets.size(); ++i) {
    const Bucket& bucket = params.buckets[i];
    const int64_t next =
        i + 1 < params.buckets.size() ? params.buckets[i + 1].layer : plan.model.layers;
    if (bucket.layer >= 0)
      layout.window_layers = std::max(layout.window_layers, next - bucket.layer);
  }
  layout.micro_batch = plan.micro_batch;
  layout.recompute = plan.recompute;
  layout.float8 = plan.float8;
  const int stages = layout.pp;
  layout.layers_of_virtual.assign(static_cast<size_t>(stages * layout.chunks), 0);
  for (int stage = 0; stage < stages; ++stage) {
    const std::vector<ChunkRange>& chunks = plan.stages[static_cast<size_t>(stage)].chunks;
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      layout.layers_of_virtual[chunk * static_cast<size_t>(stages) + static_cast<size_t>(stage)] =
          chunks[chunk].layers;
    }
  }
  return layout;
}

}  // namespace mtl
