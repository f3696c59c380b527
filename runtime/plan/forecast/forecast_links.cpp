#include "runtime/plan/forecast/forecast_links.h"

#include <algorithm>

namespace mtl {

namespace {

// What stays on the critical path of `time` beside computation of `beside`.
double exposed(const Cluster& cluster, double time, double beside) {
  const double hidden = std::min(time, beside);
  return time - hidden + cluster.overlap_cost * hidden;
}

// What the links of a layer are told of it: one micro-batch, one rank.
struct LinkInput {
  const Workload& work;
  const LayoutChoice& layout;
  const Cluster& cluster;
  const Software& software;
  const PassWork& pass;
  const PartsAgain& parts;

  const ModelShape& model() const { return work.model; }
  bool forwards_again() const { return layout.recompute.full != Recompute::Full::none; }
  double element() const { return bytes_of(work.compute); }
  double tokens() const { return static_cast<double>(layout.micro_batch * work.seq) / layout.cp; }
  double activation() const { return tokens() * static_cast<double>(model().hidden) * element(); }
};

// traffic.cpp, tensor_per_micro_batch(), of blocks side by side: a gather for each norm and one
// reduction forward; backward one gather of the gradient and, with SP, what each block has alone.
LinkPart parallel_tensor_part(const LinkInput& in) {
  const LayoutChoice& layout = in.layout;
  const bool sp = layout.sequence_parallel;
  const double activation = in.activation();
  const double one = gather_time(group_link(in.cluster, layout.tp, 1, layout.world()), activation);
  const double product = in.pass.backward.matmul / 8;
  const bool async = in.software.async_tensor && layout.overlap_input;
  const auto beside = [&](double time) {
    return async ? exposed(in.cluster, time, product) : time;
  };
  const double forward = sp ? (in.model().shared_norm ? 2 : 3) : 2;
  LinkPart part;
  part.forward = forward * one;
  // Without SP the sum waits for both blocks, and only the last dW is left to run beside it.
  part.backward = sp ? one + 4 * beside(one) : beside(2 * one);
  const double ring = (layout.tp - 1.0) / layout.tp * activation;
  part.wire = ring * (forward + (sp ? 5 : 2));
  if (in.forwards_again()) {
    const double last = sp ? 1 : 2, gathered = layout.recompute.distribute ? 1 : 0;
    part.again = part.forward;
    part.unneeded = (last - gathered) * one;
    part.wire_again = forward * ring;
    part.wire_unneeded = (last - gathered) * ring;
  }
  return part;
}

// Two blocks: forward a reduction each (an all-reduce, or gather and scatter with SP); backward the
// same, and with SP the input gathered again (arXiv 2205.05198, section 4).
LinkPart tensor_part(const LinkInput& in) {
  if (in.model().parallel_residual) return parallel_tensor_part(in);
  const LayoutChoice& layout = in.layout;
  const auto beside = [&](double time, double product) {
    return exposed(in.cluster, time, product);
  };
  const double activation = in.activation();
  const double one = gather_time(group_link(in.cluster, layout.tp, 1, layout.world()), activation);
  const double product = in.pass.backward.matmul / 8;  // dX or dW of one of four linears
  const bool async = in.software.async_tensor && layout.overlap_input;
  LinkPart part;
  part.forward = 4 * one;
  if (layout.overlap_tensor) {
    // In pieces beside the product that uses or makes them: what the pieces cannot hide is the
    // first of them (one of tp).
    part.forward = 4 * (beside(one, in.pass.forward.matmul / 4) + one / layout.tp);
    part.backward = 4 * (beside(one, product) + one / layout.tp);
    if (layout.sequence_parallel) part.backward += 2 * beside(one, product);
  } else if (layout.sequence_parallel) {
    // Gather of the gradient is waited for; gather of the input runs beside dX, and the scatter of
    // dX beside dW.
    part.backward = async ? 2 * one + 4 * beside(one, product) : 6 * one;
  } else {
    part.backward = async ? 2 * beside(2 * one, product) : 4 * one;
  }
  const double ring = (layout.tp - 1.0) / layout.tp * activation;
  part.wire = ring * (layout.sequence_parallel ? 10 : 8);
  if (in.forwards_again()) {
    // traffic.cpp, tensor_per_micro_batch(): all but the last scatter, which without SP is an
    // all-reduce, where no norm behind the block needs that; what is kept in parts is gathered.
    const double scatters = layout.sequence_parallel ? 1 : 2;
    const double last = in.model().norms_outputs() ? 0 : scatters;
    const double gathered = layout.recompute.distribute ? 1 : 0;
    part.again = part.forward;
    part.unneeded = part.forward * last / 4 - gathered * one;
    part.wire_again = 4 * ring;
    part.wire_unneeded = (last - gathered) * ring;
  }
  return part;
}

// ZB-H1: what runs beside a product for dW otherwise is waited for in backward, as no such product
// is there; the input is gathered when they are made, and the gradient once more (experts have rows
// of it already).
void leave_for_later(const LinkInput& in, LinkPart& part) {
  const LayoutChoice& layout = in.layout;
  if (!layout.weights_later || !in.parts.leaves_weights()) return;
  const bool sp = layout.sequence_parallel;
  const bool experts = in.model().experts > 0 && in.model().shared_ffn == 0;
  const double activation = in.activation();
  const double one = gather_time(group_link(in.cluster, layout.tp, 1, layout.world()), activation);
  const double gathered = experts ? 1 : 2;
  const double sums = in.model().parallel_residual && !sp ? 1 : 2;
  const double sum = sp ? one : 2 * one;
  if (in.software.async_tensor && layout.overlap_input) {
    part.leaves += sums * (sum - exposed(in.cluster, sum, in.pass.backward.matmul / 8));
  }
  if (!sp) return;
  part.leaves += gathered * one;
  part.later = gathered * one + 2 * exposed(in.cluster, one, in.pass.backward.matmul / 8);
  part.wire_leaves = gathered * (layout.tp - 1.0) / layout.tp * activation;
}

// traffic.cpp, add_shared_params(): gradients of what makes latents, which every rank has whole,
// are summed when those of a step are there (with ZeRO-2 and 3 of a micro-batch).
void add_latent_sums(const LinkInput& in, LinkPart& part) {
  const LayoutChoice& layout = in.layout;
  const ModelShape& model = in.model();
  const ModelShape::Latent& latent = model.latent;
  const int64_t elements =
      model.hidden * (latent.q_rank + model.latent_width()) + latent.q_rank + latent.kv_rank;
  const int64_t micro_batches = in.work.global_batch / (layout.micro_batch * layout.replicas());
  const auto rounds = static_cast<double>(layout.zero >= 2 ? 1 : micro_batches);
  const double bytes = 4 * static_cast<double>(elements);
  part.backward +=
      all_reduce_time(group_link(in.cluster, layout.tp, 1, layout.world()), bytes) / rounds;
  part.wire += 2 * (layout.tp - 1.0) / layout.tp * bytes / rounds;
}

// A norm of all of a token's heads: two sums for each, forward and backward, that are waited for.
void add_norm_sums(const LinkInput& in, LinkPart& part) {
  const LayoutChoice& layout = in.layout;
  const double bytes = 2 * 4 * in.tokens();
  const double one = all_reduce_time(group_link(in.cluster, layout.tp, 1, layout.world()), bytes);
  const double wire = 2 * (layout.tp - 1.0) / layout.tp * bytes;
  part.forward += one;
  part.backward += one;
  part.wire += 2 * wire;
  if (!in.forwards_again()) return;
  part.again += one;
  part.wire_again += wire;
}

// traffic.cpp, context_per_micro_batch(): q, k and v one way, what attention makes the other, of
// one sequence after the other; nothing runs beside it.
LinkPart exchange_part(const LinkInput& in) {
  const LayoutChoice& layout = in.layout;
  const ModelShape& model = in.model();
  const int parts = layout.tp * layout.cp;
  const double of_all = in.tokens() * layout.cp * in.element();
  const double heads = static_cast<double>(model.heads) / parts;
  const auto kv_heads = static_cast<double>(local_kv_heads(model, parts));
  const auto head = static_cast<double>(model.head_dim);
  const auto value = static_cast<double>(model.value_dim());
  const double attended = of_all * heads * value;
  const double qkv = of_all * ((heads + kv_heads) * head + kv_heads * value);
  const auto once = [&](double bytes) {
    const auto sequences = static_cast<double>(layout.micro_batch);
    return sequences *
           all_to_all_time(in.cluster, layout.cp, layout.tp, layout.world(), bytes / sequences);
  };
  const double sent = (layout.cp - 1.0) / layout.cp;
  LinkPart part;
  part.forward = part.backward = once(qkv) + once(attended);
  part.wire = 2 * sent * (qkv + attended);
  if (model.experts > 0) {  // which ones the tokens of the sequence have
    part.wire += sent * in.tokens() * layout.cp * static_cast<double>(model.active_experts()) * 4;
  }
  if (in.forwards_again()) {
    part.again = part.forward;
    part.wire_again = sent * (qkv + attended);
    return part;
  }
  double made_again = in.parts.core_attention ? attended : 0;
  if (in.parts.core_attention) part.again += once(attended);
  if (in.parts.latents && model.has_latents()) {
    part.again += once(qkv);
    made_again += qkv;
  }
  part.wire_again = sent * made_again;
  return part;
}

// Ring attention (arXiv 2310.01889): c - 1 sends of keys and values, each beside the attention of
// the block before; backward twice as many bytes (gradients travel too).
LinkPart ring_part(const LinkInput& in) {
  const LayoutChoice& layout = in.layout;
  const double kv = in.tokens() * static_cast<double>(local_kv_heads(in.model(), layout.tp)) *
                    static_cast<double>(in.model().head_dim + in.model().value_dim()) *
                    in.element();
  const GroupLink link = group_link(in.cluster, layout.cp, layout.tp, layout.world());
  const double nic = in.cluster.nic_rate * in.cluster.nic_share;
  const double rate = link.between_nodes ? std::min(link.rate, nic) : link.rate;
  const double step = kv / rate + link.alpha;
  const double steps = layout.cp - 1;
  const auto pass_time = [&](double send, double attention) {
    return steps * exposed(in.cluster, send, attention / layout.cp);
  };
  LinkPart part;
  part.forward = pass_time(step, in.pass.forward.attention);
  part.backward = pass_time(2 * step, in.pass.backward.attention);
  part.wire = 3 * steps * kv;
  return part;
}

// Rows to their experts and back.
LinkPart expert_part(const LinkInput& in) {
  const LayoutChoice& layout = in.layout;
  const double active = static_cast<double>(in.model().active_experts());
  const bool parts = layout.sequence_parallel && !in.software.expert_room;
  const double rows = in.activation() * active / (parts ? layout.tp : 1);
  const double once =
      all_to_all_time(in.cluster, layout.ep, layout.tp * layout.cp, layout.world(), rows);
  const double sent = (layout.ep - 1.0) / layout.ep;
  LinkPart part;
  part.forward = part.backward = 2 * once;
  part.wire = 4 * sent * rows;
  if (!in.software.expert_room) return part;
  // traffic.cpp, experts_per_micro_batch(): weights of the rows travel with them, and how many
  // there are before. Of layers that are made again the last of a group needs no rows back, nor
  // does an MLP.
  const double counts = (layout.ep - 1.0) * static_cast<double>(in.model().experts) * 4;
  part.wire += sent * in.tokens() * active * 2 * 4 + counts;
  const double times = in.forwards_again() ? 2 : in.parts.mlp ? 1 : 0;
  part.again = times * once;
  if (times > 0) part.wire_again = times * sent * rows + counts;
  if (in.model().norms_outputs()) return part;
  part.unneeded = once;
  part.wire_unneeded = sent * rows;
  return part;
}

}  // namespace

LayerLinks layer_links(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const Software& software, const PassWork& pass, const PartsAgain& parts) {
  const LinkInput in{work, layout, cluster, software, pass, parts};
  LayerLinks links;
  if (layout.tp > 1) {
    links.tensor = tensor_part(in);
    leave_for_later(in, links.tensor);
    if (work.model.qk_norm_whole) add_norm_sums(in, links.tensor);
    if (work.model.has_latents()) add_latent_sums(in, links.tensor);
  }
  if (layout.cp > 1) {
    links.context =
        exchanges_heads(work.model, layout, software) ? exchange_part(in) : ring_part(in);
  }
  if (layout.ep > 1 && work.model.experts > 0) links.expert = expert_part(in);
  return links;
}

LayerKinds layer_kinds(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const Software& software, const PartsAgain& parts) {
  LayerKinds result;
  const int64_t float8 = layout.float8.layers(work.model);
  const auto add = [&](const Workload& layers, size_t first) {
    const auto kind_of = [&](const LayoutChoice& like) {
      LayerKind kind;
      kind.work = layer_work(layers, like, cluster, software, parts);
      kind.links = layer_links(layers, like, cluster, software, kind.work, parts);
      return kind;
    };
    if (float8 > 0) result.kinds[first] = kind_of(layout);
    if (float8 < work.model.layers) {
      LayoutChoice plain = layout;
      plain.float8 = {};
      result.kinds[first + 1] = kind_of(plain);
    }
  };
  const auto add_both = [&](const Workload& layers, size_t first) {
    add(layers, first);
    if (layers.model.dense_layers.empty()) return;
    Workload dense = layers;
    dense.model = layers.model.of_dense_layers();
    add(dense, first + 2);
  };
  add_both(work, 0);
  if (!work.model.full_layers.empty()) {
    Workload full = work;
    full.model.sliding_window = 0;
    add_both(full, 4);
  }
  return result;
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

}  // namespace mtl
