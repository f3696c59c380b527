#include <cmath>

#include "runtime/model/blocks.h"

namespace mtl {

AttentionBlock::AttentionBlock(const BlockContext& context, int64_t layer)
    : context_(context),
      layer_(layer),
      heads_(context.shape.heads / context.tp.size()),
      kv_heads_(local_kv_heads(context.shape, context.tp.size())),
      norm_(context, layer, "attn.norm", layer_buffer(layer, "attn"),
            float8_stream_amax(context, layer, "attn.qkv", Float8Operand::x)),
      qkv_linear_(context, layer, "attn.qkv"),
      proj_linear_(context, layer, "attn.proj"),
      q_norm_(context.parameters.find(layer, "attn.q_norm.weight")),
      k_norm_(context.parameters.find(layer, "attn.k_norm.weight")),
      qkv_(context.arena.get(layer_buffer(layer, "attn.qkv"))),
      raw_(context.arena.find(layer_buffer(layer, "attn.raw"))),
      q_rstd_(context.arena.find(layer_buffer(layer, "attn.q_rstd"))),
      k_rstd_(context.arena.find(layer_buffer(layer, "attn.k_rstd"))),
      lse_(context.arena.get(layer_buffer(layer, "attn.lse"))),
      attended_(context.arena.get(layer_buffer(layer, "attn.context"))),
      output_(context.arena.get(layer_buffer(layer, "mlp.input"))),
      branch_(context.arena.get("branch")),
      gathered_(context.arena.find("gathered")),
      dresidual_(context.arena.find("dresidual")),
      dattended_(context.arena.find("attn.dcontext")),
      dqkv_(context.arena.find("attn.dqkv")),
      dnormed_(context.arena.find("attn.dnormed")),
      dbranch_amax_(float8_stream_amax(context, layer, "attn.proj", Float8Operand::dy)),
      dinput_amax_(float8_stream_amax(context, layer - 1, "mlp.down", Float8Operand::dy)),
      rope_table_(context.arena.find_tensor("rope")),
      first_key_(context.arena.find("first_key")),
      position_ids_(context.arena.find("position_ids")) {}

AttentionShape attention_of(const ModelShape& shape, int tp) {
  AttentionShape attention;
  attention.heads = shape.heads / tp;
  attention.kv_heads = local_kv_heads(shape, tp);
  attention.head_dim = shape.head_dim;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  attention.dropout.probability = static_cast<float>(shape.dropout_attention);
  attention.total_heads = shape.heads;
  attention.alibi = shape.position == PositionType::alibi;
  attention.window = shape.sliding_window;
  return attention;
}

AttentionShape AttentionBlock::attention_shape(const Pass& pass) const {
  AttentionShape attention = attention_of(context_.shape, context_.tp.size());
  attention.batch = pass.sequences;
  attention.seq = pass.past + pass.seq;
  attention.first_query = pass.past;
  attention.dropout = dropout_for(context_, pass, layer_, DropoutSite::attention);
  attention.first_head = heads_ * context_.tp.rank();
  if (first_key_) attention.first_key = values_of(first_key_, pass);
  return attention;
}

HeadNorm AttentionBlock::head_norm(const Pass& pass, bool query) const {
  const int64_t head_dim = context_.shape.head_dim;
  return {.x = rows_of(qkv_, pass),
          .raw = rows_of(raw_, pass),
          .first_column = query ? 0 : heads_ * head_dim,
          .heads = query ? heads_ : kv_heads_,
          .head_dim = head_dim,
          .gamma = query ? q_norm_.weight : k_norm_.weight,
          .rstd = rows_of(query ? q_rstd_ : k_rstd_, pass),
          .eps = static_cast<float>(context_.shape.norm_eps)};
}

Rope AttentionBlock::rope(const Pass& pass, Tensor qkv) const {
  // Generation goes on with one sequence where earlier passes ended; in training every pass begins
  // with a sequence.
  return {.qkv = qkv,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_dim = context_.shape.head_dim,
          .table = rope_table_,
          .seq = pass.past + pass.seq,
          .first_row = pass.past,
          .positions = position_ids_ ? values_of(position_ids_, pass) : Tensor()};
}

void AttentionBlock::place_heads(const Pass& pass) const {
  if (raw_) {
    context_.device.head_norm_forward(head_norm(pass, true));
    context_.device.head_norm_forward(head_norm(pass, false));
  }
  if (rope_table_) context_.device.rope(rope(pass, rows_of(qkv_, pass)));
}

void AttentionBlock::place_heads_backward(const Pass& pass, Tensor dqkv) const {
  if (rope_table_) {
    Rope back = rope(pass, dqkv);
    back.backward = true;
    context_.device.rope(back);
  }
  if (!raw_) return;
  for (const bool query : {true, false}) {
    const HeadNorm forward = head_norm(pass, query);
    context_.device.head_norm_backward({.dx = dqkv,
                                        .raw = forward.raw,
                                        .first_column = forward.first_column,
                                        .heads = forward.heads,
                                        .head_dim = forward.head_dim,
                                        .gamma = forward.gamma,
                                        .rstd = forward.rstd,
                                        .dgamma = query ? q_norm_.grad : k_norm_.grad,
                                        .accumulate = pass.accumulate});
  }
}

void AttentionBlock::attend(const Pass& pass) const {
  const AttentionShape shape = attention_shape(pass);
  context_.device.attention_forward(
      {.shape = shape,
       .qkv = rows_up_to(qkv_, pass),
       .out = rows_up_to(attended_, pass),
       .lse = Tensor(lse_.in(pass.slot).data, DType::f32, {shape.batch, shape.heads, shape.seq})});
}

ResidualAdd AttentionBlock::forward(const Pass& pass, const ResidualAdd& before) const {
  const Tensor branch = rows_of(branch_, pass);
  const Tensor x = context_.tp.enter(norm_.forward(pass, before), branch);
  qkv_linear_.forward(pass, {x, norm_.amax(pass)}, rows_of(qkv_, pass), qkv_linear_.bias());
  place_heads(pass);
  attend(pass);
  proj_linear_.forward(pass, {rows_of(attended_, pass)}, branch, {});
  return {.x = context_.tp.leave(branch),
          .bias = proj_linear_.bias(),
          .residual = norm_.input(pass),
          .out = stream_rows_of(context_, output_, pass),
          .dropout = dropout_for(context_, pass, layer_, DropoutSite::attention_output),
          .first_row = first_stream_row(context_, pass)};
}

void AttentionBlock::backward(const Pass& pass) const {
  const AttentionShape shape = attention_shape(pass);
  const Tensor attended = rows_of(attended_, pass);
  const Tensor dresidual = stream_rows_of(context_, dresidual_, pass);
  const Tensor branch = rows_of(branch_, pass);
  const Tensor dattended = rows_of(dattended_, pass);
  const Tensor dqkv = rows_of(dqkv_, pass);
  const Tensor dnormed = rows_of(dnormed_, pass);

  const Tensor normed = context_.recompute.norms ? norm_.forward(pass) : norm_.normed(pass);
  if (context_.recompute.core_attention) attend(pass);

  Tensor dstream = dresidual;
  if (Dropout dropout = dropout_for(context_, pass, layer_, DropoutSite::attention_output)) {
    dstream = context_.tp.own_rows(branch);
    context_.device.dropout_backward(dresidual, dstream, dropout, first_stream_row(context_, pass));
  }
  const Tensor dbranch = context_.tp.enter(dstream, branch);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  TensorParallel::Pending entering = context_.tp.start_enter(normed, x);
  proj_linear_.backward_input(pass, {dbranch, dbranch_amax_.in(pass.slot)}, dattended);
  proj_linear_.backward_weight(pass, attended, dbranch, dstream);
  context_.device.attention_backward(
      {.shape = shape,
       .qkv = rows_of(qkv_, pass),
       .out = attended,
       .lse = Tensor(lse_.in(pass.slot).data, DType::f32, {shape.batch, shape.heads, shape.seq}),
       .dout = dattended,
       .dqkv = dqkv});
  place_heads_backward(pass, dqkv);
  qkv_linear_.backward_input(pass, {dqkv}, dnormed);
  TensorParallel::Pending leaving = context_.tp.start_leave(dnormed);
  entering.finish();
  qkv_linear_.backward_weight(pass, x, dqkv, dqkv);
  leaving.finish();
  norm_.backward(pass, context_.tp.own_rows(dnormed), dresidual, true, dinput_amax_.in(pass.slot));
}

}  // namespace mtl
