#include "runtime/plan/traffic.h"

#include <algorithm>

#include "runtime/plan/weight_reads.h"

namespace mtl {

const char* link_name(Link link) {
  static constexpr std::array<const char*, kLinks> kNames = {
      "tensor",      "kv",     "context",       "experts",     "data",
      "expert_data", "copies", "expert_copies", "activations", "gradients",
      "tied",        "loss",   "norm",          "matrices",    "expert_matrices"};
  return kNames[static_cast<size_t>(link)];
}

int link_ranks(Link link, const ModelShape& shape, const GridSizes& sizes) {
  const int tp = sizes[Axis::tp], ep = sizes[Axis::ep], pp = sizes[Axis::pp];
  const Holders holders = Grid(sizes).holders({});
  switch (link) {
    case Link::tensor:
      return tp;
    case Link::kv:
      return std::max(1, static_cast<int>(tp / shape.kv_heads));
    case Link::context:
      return sizes[Axis::cp];
    case Link::experts:
      return ep;
    case Link::data:
      return holders.shards();
    case Link::expert_data:
      return ep > 1 ? holders.expert_shards() : 1;
    case Link::copies:
      return holders.copies;
    case Link::expert_copies:
      return ep > 1 ? holders.copies : 1;
    case Link::activations:
    case Link::gradients:
    case Link::tied:
      return 2;
    case Link::loss:
      return holders.ranks * pp;
    case Link::norm:
      return tp * ep * pp;
    case Link::matrices:
      return tp * holders.shards();
    case Link::expert_matrices:
      return ep > 1 ? tp * holders.expert_shards() : 1;
  }
  return 1;
}

void StageTraffic::set_matrices(const MatrixTraffic& elements, DType compute) {
  const int64_t bytes = bytes_of(matrix_type(compute));
  (*this)[Link::matrices].all_to_all = elements.dense * bytes;
  (*this)[Link::expert_matrices].all_to_all = elements.experts * bytes;
}

int64_t LinkBytes::on_the_wire(int ranks) const {
  return (2 * all_reduce + reduce_scatter + all_gather) * (ranks - 1) / ranks + send + all_to_all;
}

namespace {

// What one micro-batch costs the TP group on its way forth and back through a chunk.
LinkBytes tensor_per_micro_batch(const ModelShape& shape, const MemoryNeeds& needs,
                                 const ChunkRange& chunk) {
  const int64_t tokens = needs.tokens();
  const int64_t activation = tokens * shape.hidden * bytes_of(needs.compute);
  int64_t gathers = 0;     // where a sequence-parallel region ends
  int64_t reductions = 0;  // where it begins: of partial sums
  // Attention and MLP each: in and out, forward and backward; and their input again for the
  // gradient of the weight. Side by side they have one output, and one sum of the gradients of
  // their input where all ranks have all of its rows (parallel_layer.h); and of one norm one input.
  const bool parallel = shape.parallel_residual;
  const int64_t inputs = shape.shared_norm ? 1 : 2;
  gathers += chunk.layers * (inputs + (parallel ? 3 : 4));
  reductions += chunk.layers * (!parallel ? 4 : needs.sequence_parallel ? 3 : 2);
  if (chunk.embedding) {
    reductions += 1;
    if (!shape.lora) gathers += 1;  // beside adapters its backward does nothing
  }
  if (chunk.head) {
    gathers += 1;
    reductions += 1;
  }
  LinkBytes bytes;
  int64_t norms = 2 * chunk.layers;  // of all heads, each way: a sum for queries, one for keys
  for (const LayerGroup& group : layer_groups(needs.recompute, chunk)) {
    if (needs.later > 0 && group.leaves_weights()) {
      // What is added to the stream, once more when products read it; experts have rows of it.
      const int64_t mixtures = shape.mixtures_in(group.first_layer, group.end_layer());
      gathers += 2 * group.layers - (shape.shared_ffn > 0 ? 0 : mixtures);
    }
    if (!group.again) continue;
    norms += group.layers;
    gathers += inputs * group.layers;
    // Backward does not need the group's output, unless a norm behind its last block has that.
    reductions += (parallel ? 1 : 2) * group.layers - (shape.norms_outputs() ? 0 : 1);
    if (needs.recompute.distribute) bytes.all_gather += activation;
  }
  if (needs.sequence_parallel) {
    bytes.all_gather += gathers * activation;
    bytes.reduce_scatter += reductions * activation;
  } else {
    bytes.all_reduce += reductions * activation;
  }
  if (chunk.head) bytes.all_reduce += tokens * 4 + 2 * tokens * 4;  // cross-entropy: max, two sums
  if (shape.qk_norm_whole) bytes.all_reduce += norms * 2 * tokens * 4;
  return bytes;
}

// The same for the CP group: what attention reads and makes, each way once.
LinkBytes context_per_micro_batch(const ModelShape& shape, const MemoryNeeds& needs,
                                  const ChunkRange& chunk) {
  // To each of the others, all that it has heads of.
  const int parts = needs.tp * needs.cp;
  const int64_t heads = shape.heads / parts, kv_heads = local_kv_heads(shape, parts);
  const int64_t of_all = (needs.cp - 1) * needs.tokens() * bytes_of(needs.compute);
  const int64_t attended = of_all * heads * shape.value_dim();
  const int64_t qkv = of_all * ((heads + kv_heads) * shape.head_dim + kv_heads * shape.value_dim());
  int64_t forward = chunk.layers * (qkv + attended);
  forward += needs.recompute.core_attention.of(chunk) * attended;
  if (shape.has_latents()) forward += needs.recompute.latents.of(chunk) * qkv;
  for (const LayerGroup& group : layer_groups(needs.recompute, chunk)) {
    if (group.again) forward += group.layers * (qkv + attended);
  }
  const int64_t backward = chunk.layers * (attended + qkv);
  LinkBytes bytes;
  bytes.all_to_all = forward + backward;
  // Of a mixture of experts: which ones the tokens have.
  if (shape.experts > 0) {
    bytes.all_gather = shape.mixtures_in(chunk.first_layer, chunk.end_layer()) * needs.micro_batch *
                       needs.seq * shape.experts_per_token * 4;
  }
  return bytes;
}

// Rows to the experts and back, both ways; with the weights of the rows, and how many there are.
LinkBytes experts_per_micro_batch(const ModelShape& shape, const MemoryNeeds& needs,
                                  const ChunkRange& chunk) {
  const int64_t rows = needs.tokens() * shape.experts_per_token * (needs.ep - 1) / needs.ep;
  const int64_t row = shape.hidden * bytes_of(needs.compute);
  // A layer that is made again sends rows to the experts; where it is not the last of its group,
  // the next one needs them back as well.
  const int64_t layers = shape.mixtures_in(chunk.first_layer, chunk.end_layer());
  const int64_t end_again = chunk.first_layer + needs.recompute.mlp.of(chunk);
  int64_t again = shape.mixtures_in(chunk.first_layer, end_again), sent_again = again;
  for (const LayerGroup& group : layer_groups(needs.recompute, chunk)) {
    if (!group.again) continue;
    const int64_t of_group = shape.mixtures_in(group.first_layer, group.end_layer());
    again += of_group;
    const bool ends = shape.is_mixture(group.end_layer() - 1) && !shape.norms_outputs();
    sent_again += 2 * of_group - (ends ? 1 : 0);
  }
  LinkBytes bytes;
  bytes.all_to_all = layers * rows * (4 * row + 2 * 4) + sent_again * rows * row;
  bytes.all_gather = (layers + again) * needs.ep * shape.experts * 4;
  return bytes;
}

void add_times(LinkBytes& to, const LinkBytes& bytes, int64_t times) {
  to.all_reduce += times * bytes.all_reduce;
  to.reduce_scatter += times * bytes.reduce_scatter;
  to.all_gather += times * bytes.all_gather;
  to.send += times * bytes.send;
  to.all_to_all += times * bytes.all_to_all;
}

// What is gathered in a step where a layer's weights are whole only while they are read.
struct Gathered {
  int64_t elements = 0, expert_elements = 0;
  int64_t float8_linears = 0;  // whose copies in FP8 are made
};

// Linears of a layer that have copies.
class Float8Copies {
 public:
  Float8Copies(const ModelShape& shape, const MemoryNeeds& needs)
      : shape_(shape), needs_(needs), mixture_(of(shape)) {
    dense_ = shape.dense_layers.empty() ? mixture_ : of(shape.of_dense_layers());
  }
  int64_t of_layer(int64_t layer) const {
    if (!needs_.float8.holds(shape_, layer)) return 0;
    return shape_.is_mixture(layer) ? mixture_ : dense_;
  }

 private:
  int64_t of(const ModelShape& layers) const {
    return static_cast<int64_t>(
        float8_linears(layers, needs_.share(), needs_.tp, needs_.ep).size());
  }
  const ModelShape& shape_;
  const MemoryNeeds& needs_;
  int64_t mixture_ = 0, dense_ = 0;
};

int64_t all_float8_linears(const ModelShape& shape, const MemoryNeeds& needs) {
  if (shape.lora) return 0;  // made once, before the first step
  const Float8Copies copies(shape, needs);
  int64_t linears = 0;
  for (const ChunkRange& chunk : needs.chunks) {
    for (int64_t layer = chunk.first_layer; layer < chunk.end_layer(); ++layer) {
      linears += copies.of_layer(layer);
    }
  }
  return linears;
}

Gathered gathered_in_windows(const ModelShape& shape, const std::vector<ParamRow>& table,
                             const ParamLayout& layout, const MemoryNeeds& needs,
                             int64_t micro_batches) {
  Gathered gathered;
  const ChunkRange& chunk = needs.chunks.front();  // the only one: there is no pipeline
  const LayerBuckets buckets = buckets_by_layer(table, layout, shape.layers);
  WindowContents contents(layout);
  const Float8Copies linears(shape, needs);
  int64_t copies[2] = {-1, -1};  // of these layers: memory.cpp, add_float8_weights()
  const auto read = [&](const std::vector<int64_t>& layers) {
    for (const int64_t layer : layers) {
      for (const size_t index : buckets[static_cast<size_t>(layer + 1)]) {
        const Bucket& bucket = layout.buckets[index];
        if (!contents.put(index)) continue;
        (bucket.experts ? gathered.expert_elements : gathered.elements) += bucket.numel;
      }
      if (layer < 0 || !needs.float8.holds(shape, layer)) continue;
      int64_t& copy = copies[static_cast<size_t>(layer - needs.float8.first) % 2];
      if (copy != layer) gathered.float8_linears += linears.of_layer(layer);
      copy = layer;
    }
  };
  for (int64_t i = 0; i < micro_batches; ++i) {
    read(forward_reads(chunk, shape.layers));
    read(backward_reads(chunk, shape.layers, needs.recompute));
  }
  return gathered;
}

// What the passes of a step put on the links, layer by layer.
void add_passes(const ModelShape& shape, const MemoryNeeds& needs, int64_t micro_batches,
                StageTraffic& traffic) {
  const int64_t stream = needs.tokens() / (needs.sequence_parallel ? needs.tp : 1) * shape.hidden *
                         bytes_of(needs.compute);
  const auto add = [&](Link link, const LinkBytes& bytes) {
    add_times(traffic[link], bytes, micro_batches);
  };
  for (const ChunkRange& chunk : needs.chunks) {
    if (needs.tp > 1) add(Link::tensor, tensor_per_micro_batch(shape, needs, chunk));
    if (needs.cp > 1) add(Link::context, context_per_micro_batch(shape, needs, chunk));
    if (needs.ep > 1) add(Link::experts, experts_per_micro_batch(shape, needs, chunk));
    if (!chunk.head) traffic[Link::activations].send += micro_batches * stream;
    if (!chunk.embedding) traffic[Link::gradients].send += micro_batches * stream;
  }
}

// Gradients of what several ranks of the model hold whole: added up parameter by parameter.
void add_shared_params(const ModelShape& shape, const std::vector<ParamRow>& table,
                       const ParamLayout& layout, const GridSizes& sizes, int64_t reductions,
                       StageTraffic& traffic) {
  const int tp = sizes[Axis::tp];
  for (const ParamPlacement& param : layout.params) {
    const ParamRow& row = table[param.row];
    const int64_t bytes = reductions * param.numel * 4;
    if (tp > 1 && row.grad_sum_over.has(Axis::tp)) {
      const int copies = tp_copies(row, tp);
      if (copies > 1) traffic[copies == tp ? Link::tensor : Link::kv].all_reduce += bytes;
    }
    if (sizes[Axis::pp] > 1 && shape.tie_embeddings && row.slot == "tokens") {
      traffic[Link::tied].all_reduce += bytes;
    }
  }
}

// What the holders of a bucket say to each other: gradients, and weights where ZeRO divides them.
void add_of_bucket(const Bucket& bucket, const ParamLayout& layout, DType compute,
                   int64_t reductions, LinkBytes& data) {
  if (bucket.shards == 1) {
    data.all_reduce += bucket.numel * 4;
    return;
  }
  if (layout.wire == DType::f32) {
    data.reduce_scatter += reductions * bucket.numel * 4;
  } else {
    data.all_to_all +=
        reductions * (bucket.numel - bucket.numel / bucket.shards) * bytes_of(layout.wire);
  }
  if (!layout.shards_weights()) data.all_gather += bucket.numel * bytes_of(compute);
  for (size_t i = bucket.first_param; i < bucket.end_param; ++i) {
    data.all_reduce += squares_count(layout.params[i].offset, layout.params[i].numel) * 8;
  }
}

}  // namespace

StageTraffic stage_traffic(const ModelShape& shape, const std::vector<ParamRow>& table,
                           const ParamLayout& layout, const ParamLayout& frozen,
                           const MemoryNeeds& needs, const GridSizes& sizes,
                           int64_t micro_batches) {
  StageTraffic traffic;
  add_passes(shape, needs, micro_batches, traffic);
  const Gathered gathered = layout.shards_weights()
                                ? gathered_in_windows(shape, table, layout, needs, micro_batches)
                                : Gathered{.float8_linears = all_float8_linears(shape, needs)};
  if (needs.tp > 1) {
    // The largest values of weights in FP8, whenever their copies are made.
    traffic[Link::tensor].all_reduce += gathered.float8_linears * 4;
  }
  // With shards of more than the optimizer state there is communication for every micro-batch.
  const int64_t reductions = layout.shards_gradients() ? micro_batches : 1;
  add_shared_params(shape, table, layout, sizes, reductions, traffic);
  const auto ranks = [&](Link link) { return link_ranks(link, shape, sizes); };
  const int copies = Grid(sizes).holders({}).copies;
  for (const Bucket& bucket : layout.buckets) {
    if (copies > 1) {
      traffic[bucket.experts ? Link::expert_copies : Link::copies].all_reduce +=
          bucket.numel / bucket.shards * 4;
    }
    const Link link = bucket.experts ? Link::expert_data : Link::data;
    if (ranks(link) > 1) add_of_bucket(bucket, layout, needs.compute, reductions, traffic[link]);
  }
  if (layout.shards_weights()) {
    const auto gather = [&](Link link, int64_t elements) {
      if (ranks(link) > 1) traffic[link].all_gather += elements * bytes_of(needs.compute);
    };
    gather(Link::data, gathered.elements);
    gather(Link::expert_data, gathered.expert_elements);
    const Gathered of_frozen = gathered_in_windows(shape, table, frozen, needs, micro_batches);
    gather(Link::data, of_frozen.elements);
    gather(Link::expert_data, of_frozen.expert_elements);
  }
  if (ranks(Link::loss) > 1) {
    traffic[Link::loss].all_reduce += StepSums::kExchanged * 8;
    if (shape.expert_bias && !shape.lora) {
      traffic[Link::loss].all_reduce += shape.layers * shape.experts * 8;
    }
  }
  if (ranks(Link::norm) > 1) {
    traffic[Link::norm].all_reduce += (static_cast<int64_t>(table.size()) + 3) * 8;
  }
  if (needs.optimizer == OptimizerKind::muon) {
    traffic.set_matrices(matrix_traffic(layout, table, sizes), needs.compute);
  }
  return traffic;
}

}  // namespace mtl
