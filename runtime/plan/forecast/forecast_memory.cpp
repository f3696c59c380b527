// Bytes of a rank in closed form: what memory.cpp lays out buffer by buffer (a test holds the two
// together), and what it would be with states and tokens divided further than the engine does.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/plan/forecast/forecast_layer.h"
#include "runtime/plan/forecast/forecast_matrices.h"
#include "runtime/plan/forecast/stage_params.h"
#include "runtime/plan/matrices.h"

namespace mtl {

double usable_memory(const Cluster& cluster) {
  if (cluster.cpu) {
    const double bytes = cluster.gpu.memory_bytes;
    return bytes > 0 ? bytes : std::numeric_limits<double>::infinity();
  }
  return 0.98 * cluster.gpu.memory_bytes - 1e9;
}

double needed_memory(const MemoryForecast& memory, const Cluster& cluster) {
  return memory.total + (cluster.cpu ? memory.on_host : memory.nccl);
}

namespace {

// What does not change from stage to stage.
struct MemoryInput {
  MemoryInput(const Workload& w, const LayoutChoice& l, const Software& s)
      : work(w),
        layout(l),
        software(s),
        mixture(w, l, s),
        micro_batches(static_cast<double>(w.global_batch / (l.micro_batch * l.replicas()))) {
    if (w.model.dense_layers.empty()) return;
    Workload of_dense = w;
    of_dense.model = w.model.of_dense_layers();
    dense.emplace(of_dense, l, s);
  }
  const Workload& work;
  const LayoutChoice& layout;
  const Software& software;
  LayerMemory mixture;               // or what all layers are
  std::optional<LayerMemory> dense;  // beside mixtures
  double micro_batches;

  const ModelShape& model() const { return work.model; }
  const KeptSizes& d() const { return mixture.d; }
  const LayerMemory& of(int64_t layer) const {
    return dense && !model().is_mixture(layer) ? *dense : mixture;
  }
  // As if layers of one kind lay behind those of the other.
  StageParams free(int64_t first_layer, int64_t end_layer) const {
    if (!dense) return mixture.free(end_layer - first_layer);
    const int64_t mixtures = model().mixtures_in(first_layer, end_layer);
    return sum(mixture.free(mixtures), dense->free(end_layer - first_layer - mixtures));
  }
  // Of these layers in a bucket, before it is filled up.
  StageParams laid_out(int64_t first_layer, int64_t end_layer) const {
    StageParams all = free(first_layer, end_layer);
    for (int64_t layer = first_layer; layer < end_layer; ++layer) all = sum(all, of(layer).params);
    return all;
  }
};

// Elements of a bucket that is cut into so many shards, of whole chunks of the gradient norm.
double filled_up(double elements, double shards) {
  const double unit = static_cast<double>(kSquaresChunk) * shards;
  return std::ceil(elements / unit) * unit;
}

// Ranks that divide what ZeRO divides, of all but experts and of these.
struct ShardRanks {
  explicit ShardRanks(const LayoutChoice& layout)
      : dense(static_cast<double>(layout.cp) * layout.replicas() / layout.copies),
        experts(static_cast<double>(layout.cp) * layout.dp / layout.copies) {}
  double dense, experts;
};

// Calls `use` with what lies free in each window of ZeRO-2 and 3, and with all of the window.
template <typename Use>
void for_windows(const MemoryInput& in, int64_t first_layer, int64_t end_layer, Use use) {
  const std::vector<int64_t>& layers = in.layout.window_layers;
  size_t window = 0;
  for (int64_t first = first_layer; first < end_layer; ++window) {
    const int64_t at_once = window < layers.size() ? layers[window] : 1;
    const int64_t end = std::min(first + at_once, end_layer);
    use(in.free(first, end), in.laid_out(first, end));
    first = end;
  }
}

// Of a rank with all that param_layout() leaves free: between tensors, and at the ends of buckets,
// of which a chunk is one (very large models have more), or with ZeRO-2 and 3 the layers of a
// window.
StageParams laid_out(const MemoryInput& in, const std::vector<ChunkRange>& chunks) {
  if (in.software.torch_fsdp) return stage_params(in.work, in.layout, chunks);
  ShardRanks ranks(in.layout);
  if (in.layout.zero == 0) ranks.dense = ranks.experts = 1;
  StageParams all;
  for (const ChunkRange& chunk : chunks) {
    StageParams one = stage_params(in.work, in.layout, {chunk});
    if (in.layout.zero >= 2) {
      for_windows(in, chunk.first_layer, chunk.end_layer(),
                  [&](const StageParams& free, const StageParams& bucket) {
                    one.dense += free.dense + filled_up(bucket.dense, ranks.dense) - bucket.dense;
                    one.experts +=
                        free.experts + filled_up(bucket.experts, ranks.experts) - bucket.experts;
                  });
    } else {
      one = sum(one, in.free(chunk.first_layer, chunk.end_layer()));
    }
    all.dense += filled_up(one.dense, ranks.dense);
    all.experts += filled_up(one.experts, ranks.experts);
  }
  return all;
}

// param_layout.cpp, assign_windows(): elements that are whole at a time with ZeRO-2 and 3.
double windows_of(const MemoryInput& in) {
  const ModelShape& model = in.model();
  const KeptSizes& d = in.d();
  const double table = d.vocab * d.h;
  const double positions =
      model.position == PositionType::learned ? static_cast<double>(model.max_seq) * d.h : 0;
  const double ends = model.tie_embeddings ? table + positions : table + std::max(positions, d.h);
  const ShardRanks ranks(in.layout);
  // Experts that ranks divide have two of their own.
  double dense[2] = {}, experts[2] = {};
  size_t turn = 0, expert_turn = 0;
  const auto widen = [](double& window, double elements) { window = std::max(window, elements); };
  for_windows(in, 0, model.layers, [&](const StageParams&, const StageParams& bucket) {
    const double of_dense = filled_up(bucket.dense, ranks.dense);
    const double of_experts = filled_up(bucket.experts, ranks.experts);
    const bool apart = in.layout.ep > 1 && of_experts > 0;
    widen(dense[turn++ % 2], of_dense + (apart ? 0 : of_experts));
    if (apart) widen(experts[expert_turn++ % 2], of_experts);
  });
  return dense[0] + dense[1] + experts[0] + experts[1] + filled_up(ends, ranks.dense);
}

double head_kept(const ModelShape& model, const KeptSizes& d) {
  const double statistics = model.norm == NormType::layernorm ? 2 : 1;
  return d.n * 4 * 7 + 2 * d.stream * d.h * d.e + statistics * d.stream * 4;
}

double slots_of(const LayoutChoice& layout, int stage, double micro_batches) {
  const double all = micro_batches * layout.chunks;
  const double later = layout.weights_later ? stage : 0;
  switch (layout.kind()) {
    case ScheduleKind::gpipe:
      break;
    case ScheduleKind::one_forward_one_backward:
      return std::min<double>(layout.pp - stage + later, all);
    case ScheduleKind::interleaved:
      return std::min(
          2.0 * (layout.pp - stage - 1) + (layout.chunks - 1.0) * layout.in_turn() + 1 + later,
          all);
  }
  return all;
}

// What a stage has of the model.
struct HeldStage {
  HeldStage(const std::vector<ChunkRange>& held, int index) : chunks(held), stage(index) {
    for (const ChunkRange& chunk : held) {
      embedding = embedding || chunk.embedding;
      head = head || chunk.head;
      sends = sends || !chunk.head;
    }
  }
  const std::vector<ChunkRange>& chunks;
  int stage;
  bool embedding = false, head = false, sends = false;
};

// memory.cpp, add_scratch().
double scratch_of(const MemoryInput& in, const HeldStage& held) {
  const bool head = held.head, sends = held.sends;
  const LayoutChoice& layout = in.layout;
  const Software& software = in.software;
  const KeptSizes& d = in.d();
  const ModelShape& model = in.model();
  double always = d.n * d.h * d.e + d.stream * d.h * d.e;
  if (model.position == PositionType::rope) {
    always += static_cast<double>(in.work.seq * model.rotary_dim()) * 4 *
              (model.window_rope_base > 0 ? 2 : 1);
  }
  if (sends) always += d.stream * d.h * d.e;
  if (layout.sequence_parallel) always += d.n * d.h * d.e;
  if (d.travels) always += d.expert_rows * 4;
  if (model.lora) {
    always += 2 * d.n * static_cast<double>(model.lora.rank) * d.e;
    const bool behind_gelu = model.activation == Activation::gelu_tanh && model.lora.down;
    if (behind_gelu) always += d.n * d.ffn * d.e;
  }
  if (layout.float8.on) {
    // x, and dy in both orientations, of the widest linears; of experts rows, or dy, and x.
    const auto of = [](bool taken, double width) { return taken ? width : 0; };
    double widest_in = 0, widest_out = 0;
    const auto q_rank = static_cast<double>(model.latent.q_rank);
    const auto kv_rank = static_cast<double>(model.latent.kv_rank);
    const auto widen = [&](const KeptSizes& k) {
      widest_in = std::max({widest_in, of(k.fp8.qkv || k.fp8.up, k.h), of(k.fp8.proj, k.context),
                            of(k.fp8.down, k.dense()), of(k.fp8.q_down || k.fp8.kv_down, k.h),
                            of(k.fp8.q, q_rank > 0 ? q_rank : k.h), of(k.fp8.kv, kv_rank)});
      widest_out = std::max({widest_out, of(k.fp8.qkv, k.qkv), of(k.fp8.proj || k.fp8.down, k.h),
                             of(k.fp8.up, k.parts * k.dense()), of(k.fp8.q_down, q_rank),
                             of(k.fp8.q, k.queries()), of(k.fp8.kv, k.pairs()),
                             of(k.fp8.kv_down, static_cast<double>(model.latent_width()))});
    };
    widen(d);
    if (in.dense) widen(in.dense->d);
    always += d.n * (widest_in + 2 * widest_out);
    if (d.fp8.experts) {
      const double wide = std::max(d.h, d.ffn), back = std::max(d.h, d.parts * d.ffn);
      always += d.expert_rows * (std::max(wide, back) + wide);
    }
  }
  double phase = d.n * (d.context + d.qkv + d.latents + d.h) * d.e;
  if (d.copies > 1) {
    const auto sequences = static_cast<double>(layout.micro_batch);
    phase += d.n * (d.context + (1 + 1 / sequences) * d.own_qkv) * d.e;
  }
  phase = std::max(phase, in.mixture.backward);
  if (in.dense) phase = std::max(phase, in.dense->backward);
  if (head && software.head_in_forward) {
    const auto rows = logits_rows(static_cast<int64_t>(d.n), in.work.logits_rows);
    const double partial = layout.tp > 1 ? d.n * d.h : 0;
    phase = std::max(phase, (static_cast<double>(rows) * d.vocab + partial) * d.e);
  } else if (head) {
    phase = std::max(phase, d.n * (d.vocab + d.h) * d.e);
  }
  if (in.work.optimizer == OptimizerKind::muon) {
    const double elements = stage_matrices(in.work, layout, held.chunks).scratch;
    phase = std::max(phase, elements * bytes_of(matrix_type(in.work.compute)));
  }
  return always + phase;
}

// Bytes of weights in FP8: a copy in each orientation of all layers, or of those in windows.
double float8_copies(const MemoryInput& in, const HeldStage& held) {
  if (!in.layout.float8.on) return 0;
  double all = 0, turns[2] = {};
  size_t turn = 0;
  for (const ChunkRange& chunk : held.chunks) {
    for (int64_t layer = chunk.first_layer; layer < chunk.end_layer(); ++layer) {
      if (!in.layout.float8.holds(in.model(), layer)) continue;
      const double elements = in.of(layer).float8;
      all += elements;
      turns[turn % 2] = std::max(turns[turn % 2], elements);
      ++turn;
    }
  }
  if (in.software.torch_fsdp) return 2 * std::max(turns[0], turns[1]);
  return 2 * (in.layout.zero == 3 ? turns[0] + turns[1] : all);
}

// The same beside adapters: of the model weights alone, divided with ZeRO-3 and else whole.
void add_states_of_adapters(const MemoryInput& in, const HeldStage& held, MemoryForecast& one) {
  const KeptSizes& d = in.d();
  const int zero = in.layout.zero;
  LayoutChoice of_model = in.layout;
  if (zero < 3) of_model.zero = 0;
  const MemoryInput model(in.work, of_model, in.software);
  const StageParams frozen = laid_out(model, held.chunks);
  const ShardRanks ranks(in.layout);
  double trained =
      filled_up(trained_params(in.work, in.layout, held.chunks).dense, zero > 0 ? ranks.dense : 1);
  double turns[2] = {};
  if (zero >= 2) {
    // Buckets of one layer or more, which take turns with two windows.
    const LayerShapes shapes(in.model());
    const std::vector<int64_t>& together = in.layout.adapter_window_layers;
    trained = 0;
    size_t window = 0;
    for (int64_t layer = 0; layer < in.model().layers; ++window) {
      double bucket = 0;
      for (int64_t left = window < together.size() ? together[window] : 1; left > 0; --left) {
        bucket += adapter_params(shapes.of(layer++), in.layout);
      }
      bucket = filled_up(bucket, ranks.dense);
      trained += bucket;
      turns[window % 2] = std::max(turns[window % 2], bucket);
    }
  }
  const double windows = turns[0] + turns[1];
  const double shard = trained / ranks.dense;
  const double master = master_bytes(in.software, in.work.compute);
  one.weights = d.e * (zero == 3 ? frozen.dense / ranks.dense + frozen.experts / ranks.experts +
                                       windows_of(model) + shard + windows
                                 : frozen.sum() + trained);
  one.gradients = 4 * (zero >= 2 ? shard + windows : trained);
  one.optimizer = (4 * moments_of(in.work.optimizer) + master) * (zero >= 1 ? shard : trained);
}

// Weights, their gradients and the optimizer's state.
void add_states(const MemoryInput& in, const HeldStage& held, MemoryForecast& one) {
  const LayoutChoice& layout = in.layout;
  const KeptSizes& d = in.d();
  const StageParams params = laid_out(in, held.chunks);
  const double all = params.sum();
  const ShardRanks ranks(layout);
  const double shard = params.dense / ranks.dense + params.experts / ranks.experts;
  const double moments = moments_of(in.work.optimizer);
  double firsts_only = 0;  // of the elements those without a second moment
  if (in.work.optimizer == OptimizerKind::muon) {
    const StageMatrices matrices = stage_matrices(in.work, layout, held.chunks);
    firsts_only = layout.zero >= 1 ? matrices.dense / ranks.dense + matrices.experts / ranks.experts
                                   : matrices.sum();
  }
  if (in.model().lora) {
    add_states_of_adapters(in, held, one);
  } else if (in.software.torch_fsdp) {
    // Masters in fp32 are the weights; gathered copies in the compute type: whole stages where a
    // pipeline keeps them (reshard_after_forward is off then), else the unit that computes and the
    // next, the embedding and the head being units of their own. Gradients likewise.
    const double layer = in.mixture.params.sum();
    const double unit = std::max(2 * layer, layer + d.vocab * d.h);
    const bool whole = layout.pp > 1;
    one.weights = 4 * shard + d.e * (whole ? all : unit);
    one.gradients = 4 * shard + 4 * (whole ? all : unit / 2);
    one.optimizer = 4 * (moments * shard - firsts_only);
  } else {
    const double windows = layout.zero >= 2 ? windows_of(in) : 0;
    const double master = master_bytes(in.software, in.work.compute);
    one.weights = d.e * (layout.zero == 3 ? shard + windows : all);
    one.gradients = 4 * (layout.zero >= 2 ? shard + windows : all);
    one.optimizer = (4 * moments + master) * (layout.zero >= 1 ? shard : all) - 4 * firsts_only;
  }
  if (in.work.offload) std::swap(one.optimizer, one.on_host);
  if (in.model().expert_bias) {
    const auto numbers = static_cast<double>(in.model().layers * in.model().experts);
    one.weights += 4 * numbers;
    one.optimizer += 8 * numbers;
  }
  one.weights += float8_copies(in, held);
  if (in.model().tie_embeddings && held.embedding && held.head && !in.model().lora) {
    const double rows = std::min(d.vocab, d.n * (layout.zero >= 2 ? 1 : in.micro_batches));
    one.gradients += rows * (d.h * 4 + 4);
  }
}

// What a micro-batch leaves for its backward, as often as the schedule has one under way, and what
// is made again.
double activations_of(const MemoryInput& in, const HeldStage& held) {
  const bool divide = in.layout.recompute.distribute;
  double slot = 0, again = 0, later = 0;
  for (const ChunkRange& chunk : held.chunks) {
    double bytes = 0, left = 0;
    if (chunk.embedding) bytes += (in.model().lora ? 1 : 2) * in.d().n * 4;
    for (const LayerGroup& group : layer_groups(in.layout.recompute, chunk)) {
      double always = 0, made = 0, input = 0;
      for (int64_t layer = group.first_layer; layer < group.end_layer(); ++layer) {
        const bool float8 = !group.again && in.layout.float8.holds(in.model(), layer);
        const LayerKept& kept = in.of(layer).kept(group.parts, float8);
        always += kept.always;
        made += kept.again;
        if (!group.again) left += kept.later;
        input = kept.input;
      }
      if (group.again) {
        bytes += input / (divide ? in.layout.tp : 1);
        again = std::max(again, always + made - (divide ? 0 : input));
      } else {
        bytes += always;
        again = std::max(again, made);
      }
    }
    if (chunk.head) bytes += head_kept(in.model(), in.d());
    slot = std::max(slot, bytes);
    later = std::max(later, left);
  }
  // Stage s leaves those of s passes, and has one that is under way.
  later *= std::min<double>(held.stage + 1, in.micro_batches * in.layout.chunks);
  return slots_of(in.layout, held.stage, in.micro_batches) * slot + later + again;
}

// What PyTorch's FSDP, tensor and pipeline parallelism keep beyond that.
void add_of_torch(const MemoryInput& in, const HeldStage& held, MemoryForecast& one) {
  const LayoutChoice& layout = in.layout;
  const KeptSizes& d = in.d();
  // Logits in the compute type, fp32 copy, its log-softmax or gradient, and theirs.
  if (held.head) one.scratch += d.n * d.vocab * (4 + 4 + d.e);
  // The gathered inputs of both blocks stay with the products that read them.
  if (layout.tp > 1 && !layout.overlap_tensor) one.scratch += 2 * d.n * d.h * d.e;
  if (layout.pp <= 1) return;
  // The pipeline keeps what it received and sent, and the last stage the logits of every
  // micro-batch, until the step ends.
  const double sent = held.head ? 0 : in.micro_batches * layout.chunks;
  one.activations += d.stream * d.h * d.e * (slots_of(layout, held.stage, in.micro_batches) + sent);
  if (held.head) one.activations += in.micro_batches * d.n * d.vocab * d.e;
}

}  // namespace

MemoryForecast forecast_memory(const Workload& work, const LayoutChoice& layout,
                               const Software& software) {
  const MemoryInput in(work, layout, software);
  const std::vector<std::vector<ChunkRange>> chunks = layout_chunks(work, layout);
  MemoryForecast most;
  for (int stage = 0; stage < layout.pp; ++stage) {
    const HeldStage held(chunks[static_cast<size_t>(stage)], stage);
    MemoryForecast one;
    one.stage = stage;
    add_states(in, held, one);
    one.activations = activations_of(in, held);
    one.scratch = scratch_of(in, held);
    if (software.torch_fsdp) add_of_torch(in, held, one);
    one.total = one.weights + one.gradients + one.optimizer + one.activations + one.scratch;
    if (one.total > most.total) most = one;
  }
  return most;
}

}  // namespace mtl
