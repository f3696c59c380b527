#include <cmath>

#include "runtime/model/blocks.h"

namespace mtl {

namespace {

int heads_parts(const BlockContext& context) {
  return context.tp.size() * context.cp.size();
}

// Empty where the layer rotates nothing.
Tensor rope_table_of(const BlockContext& context, int64_t layer) {
  const ModelShape& shape = context.shape;
  if (!shape.rotates(layer) || shape.has_latents()) return {};  // these rotate what they make
  return context.arena.tensor(shape.rotates_by_window(layer) ? kWindowRopeTable : kRopeTable);
}

}  // namespace

AttentionBlock::AttentionBlock(const BlockContext& context, int64_t layer, const PartsAgain& again)
    : context_(context),
      layer_(layer),
      again_(again),
      heads_(context.shape.heads / heads_parts(context)),
      kv_heads_(local_kv_heads(context.shape, heads_parts(context))),
      norm_(context, layer, "attn.norm", layer_buffer(layer, "attn"),
            float8_stream_amax(context, layer, "attn.qkv", Float8Operand::x)),
      end_(context, layer, "attn", "attn.proj", DropoutSite::attention_output),
      qkv_linear_(context, layer, "attn.qkv"),
      proj_linear_(context, layer, "attn.proj"),
      latents_(context.shape.has_latents() ? std::make_optional<LatentQkv>(context, layer, again)
                                           : std::nullopt),
      whole_norm_(context, layer),
      q_norm_(context.parameters.find(layer, "attn.q_norm.weight")),
      k_norm_(context.parameters.find(layer, "attn.k_norm.weight")),
      sinks_(context.parameters.find(layer, "attn.sinks")),
      qkv_(context.arena.get(layer_buffer(layer, "attn.qkv"))),
      raw_(context.arena.find(layer_buffer(layer, "attn.raw"))),
      q_rstd_(context.arena.find(layer_buffer(layer, "attn.q_rstd"))),
      k_rstd_(context.arena.find(layer_buffer(layer, "attn.k_rstd"))),
      lse_(context.arena.get(layer_buffer(layer, "attn.lse"))),
      attended_(context.arena.get(layer_buffer(layer, "attn.context"))),
      attended_by_head_(context.arena.find(layer_buffer(layer, "attn.context_by_head"))),
      output_(context.arena.find(layer_buffer(layer, "mlp.input"))),
      branch_(context.arena.get("branch")),
      gathered_(context.arena.find("gathered")),
      dresidual_(context.arena.find("dresidual")),
      dattended_(context.arena.find("attn.dcontext")),
      own_qkv_(context.arena.find("attn.dqkv")),
      dqkv_(context.arena.find(layer_buffer(layer, kQkvLater))),
      dnormed_(context.arena.find("attn.dnormed")),
      later_dstream_(context.arena.find(layer_buffer(layer, kAttentionStreamLater))),
      dattended_by_head_(context.arena.find("attn.dcontext_by_head")),
      dqkv_by_head_(context.arena.find("attn.dqkv_by_head")),
      room_(context.arena.find_tensor(kAttentionRoom)),
      rope_table_(rope_table_of(context, layer)),
      first_key_(context.arena.find("first_key")),
      position_ids_(context.arena.find("position_ids")) {
  if (!dqkv_) dqkv_ = own_qkv_;
  const bool parallel = context.shape.parallel_residual;
  if (!parallel) {
    dbranch_amax_ = float8_branch_amax(context, layer, "attn.proj");
  }
  if (!parallel || context.tp.size() == 1) {
    dinput_amax_ = float8_stream_amax(context, layer - 1, "mlp.down", Float8Operand::dy);
  }
}

AttentionShape attention_of(const ModelShape& shape, int64_t layer, int parts) {
  AttentionShape attention;
  attention.heads = shape.heads / parts;
  attention.kv_heads = local_kv_heads(shape, parts);
  attention.head_dim = shape.head_dim;
  attention.value_dim = shape.value_dim();
  attention.scale = shape.attention_scale > 0
                        ? static_cast<float>(shape.attention_scale)
                        : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  attention.dropout.probability = static_cast<float>(shape.dropout_attention);
  attention.total_heads = shape.heads;
  attention.alibi = shape.position == PositionType::alibi;
  attention.window = shape.window_of(layer);
  attention.cap = static_cast<float>(shape.attention_cap);
  return attention;
}

AttentionShape AttentionBlock::attention_shape(const Pass& whole) const {
  AttentionShape attention = attention_of(context_.shape, layer_, heads_parts(context_));
  attention.batch = whole.sequences;
  attention.seq = whole.past + whole.seq;
  attention.first_query = whole.past;
  attention.dropout = dropout_for(context_, whole, layer_, DropoutSite::attention);
  attention.first_head = heads_ * (context_.tp.rank() * context_.cp.size() + context_.cp.rank());
  if (first_key_) attention.first_key = values_of(first_key_, whole);
  if (sinks_) attention.sinks = own_heads(sinks_.weight);
  return attention;
}

Tensor AttentionBlock::own_heads(Tensor of_tp_rank) const {
  return of_tp_rank.slice(heads_ * context_.cp.rank(), heads_);
}

HeadNorm AttentionBlock::head_norm(const Pass& whole, bool query) const {
  const int64_t head_dim = context_.shape.head_dim;
  return {.x = rows_behind(qkv_, whole),
          .raw = rows_of(raw_, whole),
          .first_column = query ? 0 : heads_ * head_dim,
          .heads = query ? heads_ : kv_heads_,
          .head_dim = head_dim,
          .gamma = query ? q_norm_.weight : k_norm_.weight,
          .rstd = rows_of(query ? q_rstd_ : k_rstd_, whole),
          .eps = static_cast<float>(context_.shape.norm_eps)};
}

Rope AttentionBlock::rope(const Pass& whole, Tensor qkv) const {
  // Generation goes on with one sequence where earlier passes ended; in training every pass begins
  // with a sequence.
  return {.qkv = qkv,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_dim = context_.shape.head_dim,
          .table = rope_table_,
          .seq = whole.past + whole.seq,
          .first_row = whole.past,
          .positions = position_ids_ ? values_of(position_ids_, whole) : Tensor()};
}

void AttentionBlock::place_heads(const Pass& whole) const {
  if (q_rstd_) {
    context_.device.head_norm_forward(head_norm(whole, true));
    context_.device.head_norm_forward(head_norm(whole, false));
  }
  if (rope_table_) context_.device.rope(rope(whole, rows_behind(qkv_, whole)));
}

void AttentionBlock::place_heads_backward(const Pass& whole, Tensor dqkv) const {
  if (rope_table_) {
    Rope back = rope(whole, dqkv);
    back.backward = true;
    context_.device.rope(back);
  }
  if (!q_rstd_) return;
  for (const bool query : {true, false}) {
    const HeadNorm forward = head_norm(whole, query);
    context_.device.head_norm_backward({.dx = dqkv,
                                        .raw = forward.raw,
                                        .first_column = forward.first_column,
                                        .heads = forward.heads,
                                        .head_dim = forward.head_dim,
                                        .gamma = forward.gamma,
                                        .rstd = forward.rstd,
                                        .dgamma = query ? q_norm_.grad : k_norm_.grad,
                                        .accumulate = whole.accumulate});
  }
}

Tensor AttentionBlock::own_qkv(const Pass& pass) const {
  // Forward leaves the memory of its gradient free.
  return divides_sequence() ? rows_of(own_qkv_, pass) : rows_behind(qkv_, pass);
}

ContextParallel::Sections AttentionBlock::qkv_sections() const {
  const ModelShape& shape = context_.shape;
  const int tp = context_.tp.size();
  const int64_t kv_heads = local_kv_heads(shape, tp);
  return {context_.cp.section(shape.heads / tp, shape.head_dim),
          context_.cp.section(kv_heads, shape.head_dim),
          context_.cp.section(kv_heads, shape.value_dim())};
}

ContextParallel::Sections AttentionBlock::attended_sections() const {
  const ModelShape& shape = context_.shape;
  return {context_.cp.section(shape.heads / context_.tp.size(), shape.value_dim())};
}

Tensor AttentionBlock::lse(const Pass& pass, const AttentionShape& shape) const {
  return Tensor(lse_.in(pass.slot).data, DType::f32, {shape.batch, shape.heads, shape.seq});
}

void AttentionBlock::attend(const Pass& pass) const {
  const Pass whole = whole_sequences(context_, pass);
  const AttentionShape shape = attention_shape(whole);
  const Buffer& out = divides_sequence() ? attended_by_head_ : attended_;
  context_.device.attention_forward({.shape = shape,
                                     .qkv = rows_up_to(qkv_, whole),
                                     .out = rows_up_to(out, whole),
                                     .lse = lse(pass, shape)});
  if (!divides_sequence()) return;
  const Tensor attended = rows_of(attended_, pass);
  context_.cp.gather_heads(pass.sequences, rows_of(out, whole), attended, attended_sections());
}

ResidualAdd AttentionBlock::forward(const Pass& pass, const ResidualAdd& before) const {
  const Tensor branch = rows_of(branch_, pass);
  attend_to(pass, context_.tp.enter(norm_.forward(pass, before), branch));
  project(pass, end_.sum(pass), end_.sums_bias());
  return end_.forward(pass, proj_linear_.bias(), norm_.input(pass),
                      stream_rows_of(context_, output_, pass));
}

void AttentionBlock::attend_to(const Pass& pass, Tensor x) const {
  const Pass whole = whole_sequences(context_, pass);
  if (latents_) {
    latents_->forward(pass, x, own_qkv(pass));
  } else {
    qkv_linear_.forward(pass, {x, norm_.amax(pass)}, own_qkv(pass), qkv_linear_.bias());
  }
  if (whole_norm_) whole_norm_.forward(pass, own_qkv(pass));
  scatter_qkv(pass);
  place_heads(whole);
  attend(pass);
}

void AttentionBlock::scatter_qkv(const Pass& pass) const {
  if (!divides_sequence()) return;
  const Pass whole = whole_sequences(context_, pass);
  context_.cp.scatter_heads(pass.sequences, own_qkv(pass), rows_of(qkv_, whole), qkv_sections());
}

void AttentionBlock::project(const Pass& pass, Tensor branch, bool with_bias) const {
  proj_linear_.forward(pass, {rows_behind(attended_, pass)}, branch,
                       with_bias ? proj_linear_.bias() : Tensor());
}

void AttentionBlock::attend_backward(const Pass& pass) const {
  const Pass whole = whole_sequences(context_, pass);
  const AttentionShape shape = attention_shape(whole);
  const bool divided = divides_sequence();
  const Tensor out = rows_of(divided ? attended_by_head_ : attended_, whole);
  const Tensor dout = rows_of(divided ? dattended_by_head_ : dattended_, whole);
  const Tensor dqkv = rows_of(divided ? dqkv_by_head_ : dqkv_, in_later(whole));
  if (divided) {
    context_.cp.scatter_heads(pass.sequences, rows_of(dattended_, pass), dout, attended_sections());
  }
  context_.device.attention_backward({.shape = shape,
                                      .qkv = rows_of(qkv_, whole),
                                      .out = out,
                                      .lse = lse(pass, shape),
                                      .dout = dout,
                                      .dqkv = dqkv,
                                      .room = room_});
  sinks_backward(whole, shape, out, dout);
  place_heads_backward(whole, dqkv);
  if (divided) {
    context_.cp.gather_heads(pass.sequences, dqkv, own_dqkv(pass), qkv_sections());
  }
  if (whole_norm_) whole_norm_.backward(pass, own_dqkv(pass));
}

void AttentionBlock::sinks_backward(const Pass& whole, const AttentionShape& shape, Tensor out,
                                    Tensor dout) const {
  if (!sinks_.grad) return;
  // The other heads' gradients are those of the ranks that have them (cp), which are added.
  const bool shares = context_.cp.size() > 1;
  if (shares && !whole.accumulate) context_.device.fill(sinks_.grad, 0.0f);
  context_.device.attention_sinks_backward({.shape = shape,
                                            .out = out,
                                            .dout = dout,
                                            .lse = lse(whole, shape),
                                            .dsinks = own_heads(sinks_.grad),
                                            .accumulate = whole.accumulate || shares});
}

void AttentionBlock::project_backward(const Pass& pass, Tensor dbranch, Tensor dstream) const {
  if (latents_ && again_.latents) {
    latents_->forward_again(pass, own_qkv(pass));
    scatter_qkv(pass);
  }
  if (again_.core_attention) attend(pass);
  proj_linear_.backward_input(pass, {dbranch, dbranch_amax_.in(pass.slot)},
                              rows_of(dattended_, pass));
  if (later_dstream_) {
    context_.device.copy(dstream, later_dstream(pass));
  } else {
    proj_linear_.backward_weight(pass, rows_of(attended_, pass), dbranch, dstream);
  }
}

void AttentionBlock::backward(const Pass& pass) const {
  const Tensor dresidual = stream_rows_of(context_, dresidual_, pass);
  const Tensor branch = rows_of(branch_, pass);
  const Tensor dstream = end_.backward(pass, dresidual, rows_of(dnormed_, pass));
  project_backward(pass, context_.tp.enter(dstream, branch), dstream);
  backward(pass, {.dresidual = dresidual});
}

void AttentionBlock::weight_grads(const Pass& pass) const {
  if (!later_dstream_) return;
  const Tensor dbranch = context_.tp.enter(later_dstream(pass), rows_of(branch_, pass));
  const Tensor normed = normed_again(pass);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  TensorParallel::Pending entering = context_.tp.start_enter(normed, x);
  proj_linear_.backward_weight_later(pass, rows_of(attended_, pass), dbranch, later_dstream(pass));
  entering.finish();
  if (latents_) return latents_->backward_weights(pass, x);
  const Tensor dqkv = own_dqkv(pass);
  qkv_linear_.backward_weight_later(pass, x, dqkv, dqkv);
}

Tensor AttentionBlock::normed_again(const Pass& pass) const {
  // Of a shared one the feed-forward block has done it, whose turn comes first.
  if (again_.norms && !context_.shape.shared_norm) return norm_.forward(pass);
  return norm_.normed(pass);
}

void AttentionBlock::qkv_backward(const Pass& pass, Tensor dnormed) const {
  const Tensor dqkv = own_dqkv(pass);
  if (latents_) return latents_->backward_input(pass, dqkv, dnormed);
  qkv_linear_.backward_input(pass, {dqkv}, dnormed);
}

void AttentionBlock::backward(const Pass& pass, InputGradient to) const {
  to.dnormed = rows_of(dnormed_, pass);
  to.amax = dinput_amax_.in(pass.slot);
  if (later_dstream_) {
    attend_backward(pass);
    qkv_backward(pass, to.dnormed);
    return backward_to_stream(context_, norm_, pass, to, {});
  }
  const Tensor normed = normed_again(pass);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  TensorParallel::Pending entering = context_.tp.start_enter(normed, x);
  attend_backward(pass);
  qkv_backward(pass, to.dnormed);
  backward_to_stream(context_, norm_, pass, to, [&] {
    entering.finish();
    if (latents_) return latents_->backward_weights(pass, x);
    const Tensor dqkv = own_dqkv(pass);
    qkv_linear_.backward_weight(pass, x, dqkv, dqkv);
  });
}

}  // namespace mtl
