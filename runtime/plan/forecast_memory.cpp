// Bytes of a rank in closed form: what memory.cpp lays out buffer by buffer (a test holds the two
// together), and what it would be with states and tokens divided further than the engine does.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/plan/stage_params.h"

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

struct KeptSizes {
  KeptSizes(const Workload& work, const LayoutChoice& layout, const Software& software)
      : n(static_cast<double>(layout.micro_batch * work.seq) / layout.cp),
        stream(layout.sequence_parallel ? n / layout.tp : n),
        h(static_cast<double>(work.model.hidden)),
        heads(static_cast<double>(work.model.heads) / layout.tp),
        kv_heads(static_cast<double>(local_kv_heads(work.model, layout.tp))),
        context(heads * static_cast<double>(work.model.head_dim)),
        qkv((heads + 2 * kv_heads) * static_cast<double>(work.model.head_dim)),
        ffn(static_cast<double>(work.model.ffn) / layout.tp),
        shared(work.model.experts > 0 ? static_cast<double>(work.model.shared_ffn) / layout.tp : 0),
        rows(n * static_cast<double>(work.model.active_experts())),
        travels(software.expert_room && layout.ep > 1),
        expert_rows(travels ? static_cast<double>(mtl::expert_rows(
                                  work.model, static_cast<int64_t>(n), layout.ep, work.ep_room))
                            : rows),
        parts(static_cast<double>(work.model.mlp_parts())),
        vocab(static_cast<double>(vocab_shard(work.model, layout.tp, 0).rows)),
        e(static_cast<double>(bytes_of(work.compute))),
        own_kv_heads(
            exchanges_heads(work.model, layout, software)
                ? layout.cp * static_cast<double>(local_kv_heads(work.model, layout.tp * layout.cp))
                : kv_heads),
        own_qkv((heads + 2 * own_kv_heads) * static_cast<double>(work.model.head_dim)),
        copies(exchanges_heads(work.model, layout, software) ? 2 : 1),
        fp8(layout.float8.on ? float8_kinds(work.model, work.seq / layout.cp, layout.tp)
                             : Float8Linears{}) {}
  double n, stream, h, heads, kv_heads, context, qkv, ffn, shared, rows;
  double dense() const { return shared > 0 ? shared : ffn; }  // of the linears that are no expert's
  bool travels;                                               // rows, to experts of other ranks,
  double expert_rows;  // and so many have room at those of a rank
  double parts, vocab, e;
  // Of attention, per token of the rank: where ranks exchange heads, some may have copies.
  double own_kv_heads, own_qkv;
  double copies;  // of its result: by head and by token
  Float8Linears fp8;
};

struct Kept {
  double always = 0;  // what a layer keeps with this recompute
  double again = 0;   // what it makes again, in one region for all layers
  double input = 0;   // of which its input
};

// memory.cpp, saved_by_layer(); `copies`: of a layer in FP8 that is not forwarded again.
Kept kept_by_layer(const Workload& work, const LayoutChoice& layout, const Software& software,
                   const KeptSizes& d, bool copies) {
  const ModelShape& model = work.model;
  const Recompute& recompute = layout.recompute;
  Kept kept;
  const auto save = [&](double bytes, bool again = false) {
    (again ? kept.again : kept.always) += bytes;
  };
  kept.input = d.stream * d.h * d.e;
  if (layout.keep_every_second) {
    // The input, Q and V, attention's output, the gate (or what goes up), and the product down; and
    // while a layer is made again all it has.
    const double kv = d.kv_heads * static_cast<double>(model.head_dim);
    kept.always = kept.input + d.n * (d.context + kv + d.context + d.ffn) * d.e + kept.input;
    kept.again = d.n * (2 * d.h + 2 * kv + (d.parts + 1) * d.ffn) * d.e;
    return kept;
  }
  // x of a linear: in FP8 its copy along the tokens is kept, and itself only while it is used.
  const auto save_x = [&](bool fp8, double rows, double in, bool again) {
    const bool copied = fp8 && software.keeps_float8_x && copies && !again && rows == d.n;
    save(rows * in * d.e, again || copied);
    if (copied) save(rows * in);
  };
  const double statistics = model.norm == NormType::layernorm ? 2 : 1;
  save(kept.input);
  save(statistics * d.stream * 4);
  save_x(d.fp8.qkv, d.stream, d.h, recompute.norms);
  save(d.n * d.own_qkv * d.e);
  if (model.qk_norm) {
    save(d.n * (d.context + d.own_kv_heads * static_cast<double>(model.head_dim)) * d.e);
    save(d.n * (d.heads + d.own_kv_heads) * 4);
  }
  save(d.n * d.heads * 4, recompute.core_attention);
  save(d.copies * d.n * d.context * d.e, recompute.core_attention);
  save(d.stream * d.h * d.e);
  save(statistics * d.stream * 4);
  const bool alone = model.experts == 0;
  save_x(d.fp8.up && alone, d.stream, d.h, recompute.norms || recompute.mlp);
  if (model.experts > 0) {
    const auto experts = static_cast<double>(model.experts);
    save(d.n * experts * 4 + 4 * d.rows * 4, recompute.mlp);
    if (d.travels) save(d.expert_rows * d.h * d.e, recompute.mlp);
    if (model.shared_gate) save(d.n * 4, recompute.mlp);
    save(d.n * d.parts * d.shared * d.e, recompute.mlp);
    save(d.n * d.shared * d.e, recompute.mlp_activation || recompute.mlp);
  }
  save(d.expert_rows * d.parts * d.ffn * d.e, recompute.mlp);
  save_x(d.fp8.down && alone, d.expert_rows, d.ffn, recompute.mlp_activation || recompute.mlp);
  return kept;
}

// Elements of the weights of a layer that have copies in FP8.
double float8_weights(const ModelShape& model, const LayoutChoice& layout, const KeptSizes& d) {
  double elements = 0;
  if (d.fp8.qkv) elements += d.h * d.qkv;
  if (d.fp8.proj) elements += d.context * d.h;
  if (d.fp8.up) elements += d.h * d.parts * d.dense();
  if (d.fp8.down) elements += d.dense() * d.h;
  if (d.fp8.experts) {
    const double experts = static_cast<double>(model.experts) / layout.ep;
    elements += experts * (d.parts + 1) * d.h * d.ffn;
  }
  return elements;
}

// memory.cpp, add_scratch(): of a feed-forward block.
double mlp_backward(const ModelShape& model, const LayoutChoice& layout, const KeptSizes& d) {
  double mlp = d.expert_rows * d.parts * d.ffn * d.e + d.n * d.h * d.e;
  if (model.activation == Activation::swiglu) mlp += d.expert_rows * d.ffn * d.e;
  if (model.experts > 0) {
    mlp += d.rows * d.h * d.e + d.rows * 4 + d.n * static_cast<double>(model.experts) * d.e +
           2 * d.n * 4;
    mlp += d.n * (d.parts + 1) * d.shared * d.e + (model.shared_gate ? d.n * d.e : 0);
    if (d.copies > 1) mlp += d.rows * layout.cp * 4;
    if (d.travels) mlp += d.expert_rows * d.h * d.e + 2 * (d.rows + d.expert_rows) * 4;
  }
  return mlp;
}

StageParams sum(const StageParams& a, const StageParams& b) {
  return {.dense = a.dense + b.dense, .experts = a.experts + b.experts};
}

// What a layer is made of, and what it keeps: of all, or of a mixture and of a dense layer.
struct LayerMemory {
  LayerMemory(const Workload& w, const LayoutChoice& l, const Software& s)
      : d(w, l, s),
        plain(kept_by_layer(w, l, s, d, false)),
        in_float8(kept_by_layer(w, l, s, d, true)),
        params(layer_params(w.model, l)),
        first_free(padding_of_layers(w.model, l, 1)),
        two_free(padding_of_layers(w.model, l, 2)),
        float8(float8_weights(w.model, l, d)),
        backward(mlp_backward(w.model, l, d)) {}
  // What lies free in so many layers of a bucket, before it is filled up.
  StageParams free(int64_t layers) const {
    if (layers == 0) return {};
    const auto more = static_cast<double>(layers - 1);
    return {.dense = first_free.dense + more * (two_free.dense - first_free.dense),
            .experts = first_free.experts + more * (two_free.experts - first_free.experts)};
  }
  KeptSizes d;
  Kept plain, in_float8;
  StageParams params, first_free, two_free;  // what lies free in one and in two of them
  double float8;                             // elements that have copies
  double backward;                           // bytes of its feed-forward block's backward
};

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
  double windows[2] = {};
  size_t turn = 0;
  for_windows(in, 0, model.layers, [&](const StageParams&, const StageParams& bucket) {
    windows[turn % 2] = std::max(windows[turn % 2], filled_up(bucket.dense, ranks.dense) +
                                                        filled_up(bucket.experts, ranks.experts));
    ++turn;
  });
  return windows[0] + windows[1] + filled_up(ends, ranks.dense);
}

double head_kept(const ModelShape& model, const KeptSizes& d) {
  const double statistics = model.norm == NormType::layernorm ? 2 : 1;
  return d.n * 4 * 5 + 2 * d.stream * d.h * d.e + statistics * d.stream * 4;
}

double slots_of(const LayoutChoice& layout, int stage, double micro_batches) {
  const double all = micro_batches * layout.chunks;
  switch (layout.kind()) {
    case ScheduleKind::gpipe:
      break;
    case ScheduleKind::one_forward_one_backward:
      return std::min<double>(layout.pp - stage, all);
    case ScheduleKind::interleaved:
      return std::min(2.0 * (layout.pp - stage - 1) + (layout.chunks - 1.0) * layout.in_turn() + 1,
                      all);
  }
  return all;
}

// memory.cpp, add_scratch().
double scratch_of(const MemoryInput& in, bool head, bool sends) {
  const LayoutChoice& layout = in.layout;
  const Software& software = in.software;
  const KeptSizes& d = in.d();
  const ModelShape& model = in.model();
  double always = d.n * d.h * d.e + d.stream * d.h * d.e;
  if (model.position == PositionType::rope) {
    always += static_cast<double>(model.max_seq * model.rotary_dim()) * 4;
  }
  if (sends) always += d.stream * d.h * d.e;
  if (layout.sequence_parallel) always += d.n * d.h * d.e;
  if (d.travels) always += d.expert_rows * 4;
  if (layout.float8.on) {
    // x, and dy in both orientations, of the widest linears; of experts rows, or dy, and x.
    const auto of = [](bool taken, double width) { return taken ? width : 0; };
    double widest_in = 0, widest_out = 0;
    const auto widen = [&](const KeptSizes& k) {
      widest_in = std::max({widest_in, of(k.fp8.qkv || k.fp8.up, k.h), of(k.fp8.proj, k.context),
                            of(k.fp8.down, k.dense())});
      widest_out = std::max({widest_out, of(k.fp8.qkv, k.qkv), of(k.fp8.proj || k.fp8.down, k.h),
                             of(k.fp8.up, k.parts * k.dense())});
    };
    widen(d);
    if (in.dense) widen(in.dense->d);
    always += d.n * (widest_in + 2 * widest_out);
    if (d.fp8.experts) {
      const double wide = std::max(d.h, d.ffn), back = std::max(d.h, d.parts * d.ffn);
      always += d.expert_rows * (std::max(wide, back) + wide);
    }
  }
  double phase = d.n * (d.context + d.qkv + d.h) * d.e;
  if (d.copies > 1) phase += d.n * (d.context + 2 * d.own_qkv) * d.e;
  phase = std::max(phase, in.mixture.backward);
  if (in.dense) phase = std::max(phase, in.dense->backward);
  if (head && software.head_in_forward) {
    const auto rows = logits_rows(static_cast<int64_t>(d.n), in.work.logits_rows);
    const double partial = layout.tp > 1 ? d.n * d.h : 0;
    phase = std::max(phase, (static_cast<double>(rows) * d.vocab + partial) * d.e);
  } else if (head) {
    phase = std::max(phase, d.n * (d.vocab + d.h) * d.e);
  }
  return always + phase;
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

// Weights, their gradients and the optimizer's state.
void add_states(const MemoryInput& in, const HeldStage& held, MemoryForecast& one) {
  const LayoutChoice& layout = in.layout;
  const KeptSizes& d = in.d();
  const StageParams params = laid_out(in, held.chunks);
  const double all = params.sum();
  const ShardRanks ranks(layout);
  const double shard = params.dense / ranks.dense + params.experts / ranks.experts;
  const double moments = in.work.optimizer == OptimizerKind::sgd ? 1 : 2;
  if (in.software.torch_fsdp) {
    // Masters in fp32 are the weights; gathered copies in the compute type: whole stages where a
    // pipeline keeps them (reshard_after_forward is off then), else the unit that computes and the
    // next, the embedding and the head being units of their own. Gradients likewise.
    const double layer = in.mixture.params.sum();
    const double unit = std::max(2 * layer, layer + d.vocab * d.h);
    const bool whole = layout.pp > 1;
    one.weights = 4 * shard + d.e * (whole ? all : unit);
    one.gradients = 4 * shard + 4 * (whole ? all : unit / 2);
    one.optimizer = 4 * moments * shard;
  } else {
    const double windows = windows_of(in);
    const double master = in.work.compute == DType::f32 ? 0 : 4;
    one.weights = d.e * (layout.zero == 3 ? shard + windows : all);
    one.gradients = 4 * (layout.zero >= 2 ? shard + windows : all);
    one.optimizer = (4 * moments + master) * (layout.zero >= 1 ? shard : all);
  }
  if (in.work.offload) std::swap(one.optimizer, one.on_host);
  if (in.model().expert_bias) {
    const auto numbers = static_cast<double>(in.model().layers * in.model().experts);
    one.weights += 4 * numbers;
    one.optimizer += 8 * numbers;
  }
  one.weights += float8_copies(in, held);
  if (in.model().tie_embeddings && held.embedding && held.head) {
    const double rows = std::min(d.vocab, d.n * (layout.zero >= 2 ? 1 : in.micro_batches));
    one.gradients += rows * (d.h * 4 + 4);
  }
}

// What a micro-batch leaves for its backward, as often as the schedule has one under way, and what
// is made again.
double activations_of(const MemoryInput& in, const HeldStage& held) {
  const bool divide = in.layout.recompute.distribute;
  double slot = 0, again = 0;
  for (const ChunkRange& chunk : held.chunks) {
    double bytes = 0;
    if (chunk.embedding) bytes += 2 * in.d().n * 4;
    for (const LayerGroup& group : layer_groups(in.layout.recompute, chunk)) {
      double always = 0, made = 0, input = 0;
      for (int64_t layer = group.first_layer; layer < group.end_layer(); ++layer) {
        const bool float8 = !group.again && in.layout.float8.holds(in.model(), layer);
        const Kept& kept = float8 ? in.of(layer).in_float8 : in.of(layer).plain;
        always += kept.always;
        made += kept.again;
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
  }
  return slots_of(in.layout, held.stage, in.micro_batches) * slot + again;
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
    one.scratch = scratch_of(in, held.head, held.sends);
    if (software.torch_fsdp) add_of_torch(in, held, one);
    one.total = one.weights + one.gradients + one.optimizer + one.activations + one.scratch;
    if (one.total > most.total) most = one;
  }
  return most;
}

}  // namespace mtl
