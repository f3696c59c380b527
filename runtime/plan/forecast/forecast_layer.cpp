#include "runtime/plan/forecast/forecast_layer.h"

#include <algorithm>

namespace mtl {

namespace {

// memory.cpp, saved_by_layer(); `copies`: of a layer in FP8 that is not forwarded again.
LayerKept kept_by_layer(const Workload& work, const LayoutChoice& layout, const Software& software,
                        const KeptSizes& d, const PartsAgain& recompute, bool copies) {
  const ModelShape& model = work.model;
  LayerKept kept;
  const auto save = [&](double bytes, bool again = false) {
    (again ? kept.again : kept.always) += bytes;
  };
  kept.input = d.stream * d.h * d.e;
  if (layout.keep_every_second) {
    // The input, Q and V, attention's output, the gate (or what goes up), and the product down; and
    // while a layer is made again all it has.
    const double kv = d.kv_heads * static_cast<double>(model.head_dim + model.value_dim()) / 2;
    kept.always = kept.input + d.n * (d.context + kv + d.context + d.ffn) * d.e + kept.input;
    kept.again = d.n * (2 * d.h + 2 * kv + (d.parts + 1) * d.ffn) * d.e;
    return kept;
  }
  // x of a linear: in FP8 its copy along the tokens is kept, and itself only while it is used.
  const auto copied = [&](bool fp8, double rows) {
    return fp8 && software.keeps_float8_x && copies && rows == d.n && !model.lora;
  };
  const auto save_copy = [&](bool fp8, double rows, double in, bool again) {
    if (!again && copied(fp8, rows)) save(rows * in);
  };
  const auto save_x = [&](bool fp8, double rows, double in, bool again) {
    save(rows * in * d.e, again || copied(fp8, rows));
    save_copy(fp8, rows, in, again);
  };
  const double statistics = model.norm == NormType::layernorm ? 2 : 1;
  save(kept.input);
  if (model.norms_inputs()) {
    save(statistics * d.stream * 4);
    // What blocks share is kept unless both have copies.
    const bool up_has_it = recompute.mlp || copied(d.fp8.up, d.stream);
    const bool other_reads = model.shared_norm && !up_has_it;
    save(d.stream * d.h * d.e, recompute.norms || (copied(d.fp8.qkv, d.stream) && !other_reads));
    save_copy(d.fp8.qkv, d.stream, d.h, recompute.norms);
  }
  if (model.norms_outputs()) save(2 * d.stream * (d.h * d.e + statistics * 4));
  const auto q_rank = static_cast<double>(model.latent.q_rank);
  const bool qkv_again = recompute.latents && model.has_latents();
  const auto save_latent = [&](double rank, bool fp8) {
    save(d.n * (rank * d.e + (rank > 0 ? 4 : 0)));
    save_x(fp8 && !qkv_again, d.n, rank, recompute.norms);
  };
  save_latent(q_rank, d.fp8.q);
  save_latent(static_cast<double>(model.latent.kv_rank), d.fp8.kv);
  save(d.n * d.own_qkv * d.e, qkv_again);
  if (qkv_again) {
    save(d.n * static_cast<double>(model.latent.rope_dim) * d.e);
    if (q_rank == 0) save(d.n * d.queries() * d.e);
  }
  if (model.qk_norm_whole) {
    save(d.n * (d.heads + d.kv_heads) * static_cast<double>(model.head_dim) * d.e + 2 * d.n * 4);
  } else if (model.qk_norm) {
    save(d.n * (d.context + d.own_kv_heads * static_cast<double>(model.head_dim)) * d.e);
    save(d.n * (d.heads + d.own_kv_heads) * 4);
  }
  save(d.n * d.heads * 4, recompute.core_attention);
  save(d.copies * d.n * d.context * d.e, recompute.core_attention);
  if (!model.parallel_residual) {
    save(d.stream * d.h * d.e);
    if (model.norms_inputs()) save(statistics * d.stream * 4);
  }
  const bool alone = model.experts == 0;
  if (layout.weights_later && recompute.leaves_weights()) {
    const double blocks = model.parallel_residual || (!alone && d.shared == 0) ? 1 : 2;
    const double qkv = model.has_latents() ? d.latents_kept : d.qkv;
    double elements = blocks * d.stream * d.h + d.n * qkv + d.expert_rows * d.parts * d.ffn;
    if (!alone) {
      elements += d.expert_rows * d.h + d.n * static_cast<double>(model.experts);
      elements += d.n * (d.parts * d.shared + (model.shared_gate ? 1 : 0));
    }
    kept.later = elements * d.e;
  }
  if (model.shared_norm) {
    save_copy(d.fp8.up, d.stream, d.h, recompute.norms || recompute.mlp);
  } else if (model.norms_inputs()) {
    save_x(d.fp8.up && alone, d.stream, d.h, recompute.norms || recompute.mlp);
  }
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
  const auto q_rank = static_cast<double>(model.latent.q_rank);
  if (d.fp8.q_down) elements += d.h * q_rank;
  if (d.fp8.q) elements += (q_rank > 0 ? q_rank : d.h) * d.queries();
  if (d.fp8.kv_down) elements += d.h * static_cast<double>(model.latent_width());
  if (d.fp8.kv) elements += static_cast<double>(model.latent.kv_rank) * d.pairs();
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
  if (model.parallel_residual) mlp += d.n * d.context * d.e;
  if (model.gated()) mlp += d.expert_rows * d.ffn * d.e;
  if (model.experts > 0) {
    mlp += d.rows * d.h * d.e + d.rows * 4 + d.n * static_cast<double>(model.experts) * d.e +
           2 * d.n * 4;
    mlp += d.n * (d.parts + 1) * d.shared * d.e + (model.shared_gate ? d.n * d.e : 0);
    if (d.copies > 1) mlp += d.rows * layout.cp * 4;
    if (d.travels) mlp += d.expert_rows * d.h * d.e + 2 * (d.rows + d.expert_rows) * 4;
  }
  return mlp;
}

double qkv_of(const ModelShape& model, double heads, double kv_heads) {
  return (heads + kv_heads) * static_cast<double>(model.head_dim) +
         kv_heads * static_cast<double>(model.value_dim());
}

}  // namespace

KeptSizes::KeptSizes(const Workload& work, const LayoutChoice& layout, const Software& software)
    : n(static_cast<double>(layout.micro_batch * work.seq) / layout.cp),
      stream(layout.sequence_parallel ? n / layout.tp : n),
      h(static_cast<double>(work.model.hidden)),
      heads(static_cast<double>(work.model.heads) / layout.tp),
      kv_heads(static_cast<double>(local_kv_heads(work.model, layout.tp))),
      context(heads * static_cast<double>(work.model.value_dim())),
      qkv(qkv_of(work.model, heads, kv_heads)),
      ffn(static_cast<double>(work.model.ffn) / layout.tp),
      shared(work.model.experts > 0 ? static_cast<double>(work.model.shared_ffn) / layout.tp : 0),
      rows(n * static_cast<double>(work.model.active_experts())),
      head_dim(static_cast<double>(work.model.head_dim)),
      latent_pair(static_cast<double>(work.model.latent_pair())),
      latents_kept(0),
      latents(0),
      travels(software.expert_room && layout.ep > 1),
      expert_rows(travels ? static_cast<double>(mtl::expert_rows(
                                work.model, static_cast<int64_t>(n), layout.ep, work.ep_room))
                          : rows),
      parts(static_cast<double>(work.model.mlp_parts())),
      vocab(static_cast<double>(vocab_shard(work.model, layout.tp, 0).rows)),
      e(static_cast<double>(bytes_of(work.compute))),
      own_kv_heads(exchanges_heads(work.model, layout, software)
                       ? layout.cp *
                             static_cast<double>(local_kv_heads(work.model, layout.tp * layout.cp))
                       : kv_heads),
      own_qkv(qkv_of(work.model, heads, own_kv_heads)),
      copies(exchanges_heads(work.model, layout, software) ? 2 : 1),
      fp8(layout.float8.on ? float8_kinds(work.model, work.seq / layout.cp, layout.tp)
                           : Float8Linears{}) {
  const ModelShape& model = work.model;
  if (!model.has_latents()) return;
  const auto q_rank = static_cast<double>(model.latent.q_rank);
  const auto kv_rank = static_cast<double>(model.latent.kv_rank);
  latents_kept = queries() + pairs() + static_cast<double>(model.latent_width()) + q_rank;
  latents = latents_kept + kv_rank + std::max(q_rank, kv_rank);
}

LayerMemory::LayerMemory(const Workload& w, const LayoutChoice& l, const Software& s)
    : d(w, l, s),
      params(layer_params(w.model, l)),
      first_free(padding_of_layers(w.model, l, 1)),
      two_free(padding_of_layers(w.model, l, 2)),
      float8(float8_weights(w.model, l, d)),
      backward(mlp_backward(w.model, l, d)) {
  for (const PartsAgain& parts : different_parts(l.recompute)) {
    kept_.push_back(
        {parts, kept_by_layer(w, l, s, d, parts, false), kept_by_layer(w, l, s, d, parts, true)});
  }
}

const LayerKept& LayerMemory::kept(const PartsAgain& parts, bool in_float8) const {
  const auto with = std::find_if(kept_.begin(), kept_.end(),
                                 [&](const KeptWith& one) { return one.parts == parts; });
  return in_float8 ? with->in_float8 : with->plain;
}

StageParams LayerMemory::free(int64_t layers) const {
  if (layers == 0) return {};
  const auto more = static_cast<double>(layers - 1);
  return {.dense = first_free.dense + more * (two_free.dense - first_free.dense),
          .experts = first_free.experts + more * (two_free.experts - first_free.experts)};
}

StageParams sum(const StageParams& a, const StageParams& b) {
  return {.dense = a.dense + b.dense, .experts = a.experts + b.experts};
}

}  // namespace mtl
