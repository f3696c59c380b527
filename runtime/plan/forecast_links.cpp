#include "runtime/plan/forecast_links.h"

#include <algorithm>

namespace mtl {

namespace {

// What stays on the critical path of `time` beside computation of `beside`.
double exposed(const Cluster& cluster, double time, double beside) {
  const double hidden = std::min(time, beside);
  return time - hidden + cluster.overlap_cost * hidden;
}

}  // namespace

LayerLinks layer_links(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const Software& software, const PassWork& pass) {
  LayerLinks links;
  const double n = static_cast<double>(layout.micro_batch * work.seq) / layout.cp;
  const double element = bytes_of(work.compute);
  const double activation = n * static_cast<double>(work.model.hidden) * element;
  const double active = static_cast<double>(work.model.active_experts());
  if (layout.tp > 1) {
    // Two blocks: forward a reduction each (an all-reduce, or gather and scatter with SP);
    // backward the same, and with SP the input gathered again (arXiv 2205.05198, section 4).
    const GroupLink link = group_link(cluster, layout.tp, 1, layout.world());
    const double one = gather_time(link, activation);
    const double product = pass.backward.matmul / 8;  // dX or dW of one of four linears
    const bool async = software.async_tensor && layout.overlap_input;
    const double ring = (layout.tp - 1.0) / layout.tp * activation;
    double forward = 4 * one;
    double backward;
    if (layout.overlap_tensor) {
      // In pieces beside the product that uses or makes them: what the pieces cannot hide is the
      // first of them (one of tp).
      const double beside = pass.forward.matmul / 4;
      forward = 4 * (exposed(cluster, one, beside) + one / layout.tp);
      backward = 4 * (exposed(cluster, one, product) + one / layout.tp);
      if (layout.sequence_parallel) backward += 2 * exposed(cluster, one, product);
    } else if (layout.sequence_parallel) {
      // Gather of the gradient is waited for; gather of the input runs beside dX, and the scatter
      // of dX beside dW.
      backward =
          async ? 2 * one + 2 * exposed(cluster, one, product) + 2 * exposed(cluster, one, product)
                : 6 * one;
    } else {
      backward = async ? 2 * exposed(cluster, 2 * one, product) : 4 * one;
    }
    links.tensor.forward = forward;
    links.tensor.backward = backward;
    links.tensor.wire = ring * (layout.sequence_parallel ? 10 : 8);
    if (layout.recompute.full != Recompute::Full::none) {
      // traffic.cpp, tensor_per_micro_batch(): all but the last scatter, which without SP is an
      // all-reduce; what is kept in parts is gathered.
      const double last = layout.sequence_parallel ? 1 : 2;
      const double gathered = layout.recompute.distribute ? 1 : 0;
      links.tensor.again = forward;
      links.tensor.unneeded = forward * last / 4 - gathered * one;
      links.tensor.wire_again = 4 * ring;
      links.tensor.wire_unneeded = (last - gathered) * ring;
    }
  }
  if (exchanges_heads(work.model, layout, software)) {
    // traffic.cpp, context_per_micro_batch(): q, k and v one way, what attention makes the other;
    // nothing runs beside it.
    const int parts = layout.tp * layout.cp;
    const double of_head = n * layout.cp * static_cast<double>(work.model.head_dim) * element;
    const double attended = static_cast<double>(work.model.heads) / parts * of_head;
    const double qkv =
        attended + 2 * static_cast<double>(local_kv_heads(work.model, parts)) * of_head;
    const auto once = [&](double bytes) {
      return all_to_all_time(cluster, layout.cp, layout.tp, layout.world(), bytes);
    };
    const double sent = (layout.cp - 1.0) / layout.cp;
    links.context.forward = links.context.backward = once(qkv) + once(attended);
    links.context.wire = 2 * sent * (qkv + attended);
    if (work.model.experts > 0) {  // which ones the tokens of the sequence have
      links.context.wire += sent * n * layout.cp * active * 4;
    }
    if (layout.recompute.full != Recompute::Full::none) {
      links.context.again = links.context.forward;
      links.context.wire_again = sent * (qkv + attended);
    } else if (layout.recompute.core_attention) {
      links.context.again = once(attended);
      links.context.wire_again = sent * attended;
    }
  } else if (layout.cp > 1) {
    // Ring attention (arXiv 2310.01889): c - 1 sends of keys and values, each beside the attention
    // of the block before; backward twice as many bytes (gradients travel too).
    const double kv = 2 * n * static_cast<double>(local_kv_heads(work.model, layout.tp)) *
                      static_cast<double>(work.model.head_dim) * element;
    const GroupLink link = group_link(cluster, layout.cp, layout.tp, layout.world());
    const double rate =
        link.between_nodes ? std::min(link.rate, cluster.nic_rate * cluster.nic_share) : link.rate;
    const double step = kv / rate + link.alpha;
    const double steps = layout.cp - 1;
    const auto pass_time = [&](double send, double attention) {
      return steps * exposed(cluster, send, attention / layout.cp);
    };
    links.context.forward = pass_time(step, pass.forward.attention);
    links.context.backward = pass_time(2 * step, pass.backward.attention);
    links.context.wire = 3 * steps * kv;
  }
  if (layout.ep > 1 && work.model.experts > 0) {
    // Rows to their experts and back.
    const bool parts = layout.sequence_parallel && !software.expert_room;
    const double rows = activation * active / (parts ? layout.tp : 1);
    const double once =
        all_to_all_time(cluster, layout.ep, layout.tp * layout.cp, layout.world(), rows);
    const double sent = (layout.ep - 1.0) / layout.ep;
    links.expert.forward = links.expert.backward = 2 * once;
    links.expert.wire = 4 * sent * rows;
    if (software.expert_room) {
      // traffic.cpp, experts_per_micro_batch(): weights of the rows travel with them, and how many
      // there are before. Of layers that are made again the last of a group needs no rows back, nor
      // does an MLP.
      const double counts = (layout.ep - 1.0) * static_cast<double>(work.model.experts) * 4;
      links.expert.wire += sent * n * active * 2 * 4 + counts;
      const bool full = layout.recompute.full != Recompute::Full::none;
      const double times = full ? 2 : layout.recompute.mlp ? 1 : 0;
      links.expert.again = times * once;
      if (times > 0) links.expert.wire_again = times * sent * rows + counts;
      links.expert.unneeded = once;
      links.expert.wire_unneeded = sent * rows;
    }
  }
  return links;
}

LayerKinds layer_kinds(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const Software& software) {
  const auto kind_of = [&](const LayoutChoice& like) {
    LayerKind kind;
    kind.work = layer_work(work, like, cluster, software);
    kind.links = layer_links(work, like, cluster, software, kind.work);
    return kind;
  };
  LayerKinds kinds;
  const int64_t float8 = layout.float8.layers(work.model);
  if (float8 > 0) kinds.in_float8 = kind_of(layout);
  if (float8 < work.model.layers) {
    LayoutChoice plain = layout;
    plain.float8 = {};
    kinds.plain = kind_of(plain);
  }
  return kinds;
}

EndsTensor ends_tensor(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       bool embedding, bool head) {
  if (layout.tp <= 1) return {};
  const double n = static_cast<double>(layout.micro_batch * work.seq) / layout.cp;
  const GroupLink link = group_link(cluster, layout.tp, 1, layout.world());
  const double activation = n * static_cast<double>(work.model.hidden) * bytes_of(work.compute);
  const double one = gather_time(link, activation);
  // Embedding: its output reduced, and with SP the gradient gathered. Head: its input gathered, dX
  // reduced, and three small sums of the loss.
  const double sums = head ? 3 * all_reduce_time(link, 4 * n) : 0;
  const double gathers = (embedding ? 2 : 0) + (head ? 2 : 0);
  const double bytes = gathers * activation + (head ? 3 * 2 * 4 * n : 0);
  return {gathers * one + sums, bytes * (layout.tp - 1.0) / layout.tp};
}

StageParams layer_params(const ModelShape& model, const LayoutChoice& layout) {
  const double h = static_cast<double>(model.hidden), tp = layout.tp;
  const double q = static_cast<double>(model.query_width()) / tp;
  const double kv = static_cast<double>(local_kv_heads(model, layout.tp) * model.head_dim);
  const double ffn = static_cast<double>(model.ffn) / tp;
  const double parts = static_cast<double>(model.mlp_parts());
  const bool layernorm = model.norm == NormType::layernorm;
  StageParams params;
  params.dense = h * (q + 2 * kv) + q * h + 2 * h * (layernorm ? 2 : 1);
  if (model.qkv_bias) params.dense += q + 2 * kv;
  if (model.qk_norm) params.dense += 2.0 * static_cast<double>(model.head_dim);
  if (model.bias) params.dense += h;
  double mlp = (parts + 1) * h * ffn;
  if (model.bias) mlp += parts * ffn + h;
  if (model.experts > 0) {
    params.experts = mlp * static_cast<double>(model.experts) / layout.ep;
    params.dense += h * static_cast<double>(model.experts);
  } else {
    params.dense += mlp;
  }
  return params;
}

std::vector<std::vector<ChunkRange>> layout_chunks(const Workload& work,
                                                   const LayoutChoice& layout) {
  const int stages = layout.pp * layout.chunks;
  std::vector<int64_t> layers = layout.layers_of_virtual;
  if (layers.empty()) {
    const double head =
        flops_per_token_of_head(work.model) / flops_per_token_of_layer(work.model, work.seq);
    layers = work.model.layers % stages == 0
                 ? std::vector<int64_t>(static_cast<size_t>(stages), work.model.layers / stages)
                 : balanced_layers(work.model.layers, stages, head);
  }
  return pipeline_layout(layers, layout.pp, layout.chunks);
}

StageParams stage_params(const Workload& work, const LayoutChoice& layout,
                         const std::vector<ChunkRange>& chunks) {
  const StageParams layer = layer_params(work.model, layout);
  const ModelShape& model = work.model;
  const double table = static_cast<double>(vocab_shard(model, layout.tp, 0).rows * model.hidden);
  StageParams sum;
  bool embedding = false, head = false;
  for (const ChunkRange& chunk : chunks) {
    sum.dense += static_cast<double>(chunk.layers) * layer.dense;
    sum.experts += static_cast<double>(chunk.layers) * layer.experts;
    embedding = embedding || chunk.embedding;
    head = head || chunk.head;
  }
  const double h = static_cast<double>(model.hidden);
  if (embedding) {
    sum.dense += table;
    if (model.position == PositionType::learned) {
      sum.dense += static_cast<double>(model.max_seq) * h;
    }
  }
  if (head) {
    sum.dense += h * (model.norm == NormType::layernorm ? 2 : 1);
    if (!model.tie_embeddings || !embedding) sum.dense += table;
  }
  return sum;
}

}  // namespace mtl
