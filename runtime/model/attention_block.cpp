#include <cmath>

#include "runtime/model/blocks.h"

namespace mtl {

AttentionBlock::AttentionBlock(const BlockContext& context, int64_t layer)
    : context_(context),
      layer_(layer),
      norm_(context, layer, "attn.norm", layer_buffer(layer, "attn")),
      qkv_linear_(context, layer, "attn.qkv"),
      proj_linear_(context, layer, "attn.proj"),
      qkv_(context.arena.get(layer_buffer(layer, "attn.qkv"))),
      lse_(context.arena.get(layer_buffer(layer, "attn.lse"))),
      attended_(context.arena.get(layer_buffer(layer, "attn.context"))),
      output_(context.arena.get(layer_buffer(layer, "mlp.input"))),
      branch_(context.arena.get("branch")),
      dresidual_(context.arena.find("dresidual")),
      dattended_(context.arena.find("attn.dcontext")),
      dqkv_(context.arena.find("attn.dqkv")),
      dnormed_(context.arena.find("attn.dnormed")) {}

AttentionShape AttentionBlock::attention_shape(const Pass& pass) const {
  const ModelShape& shape = context_.shape;
  const int64_t tp = context_.tp.size();
  AttentionShape attention;
  attention.batch = pass.sequences;
  attention.seq = pass.past + pass.seq;
  attention.first_query = pass.past;
  attention.heads = shape.heads / tp;
  attention.kv_heads = shape.kv_heads / tp;
  attention.head_dim = shape.head_dim;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  attention.dropout = dropout_for(context_, pass, layer_, DropoutSite::attention);
  attention.first_sequence = pass.first_sequence;
  attention.first_head = attention.heads * context_.tp.rank();
  attention.total_heads = shape.heads;
  return attention;
}

void AttentionBlock::forward(const Pass& pass) const {
  const AttentionShape shape = attention_shape(pass);
  const Tensor normed = norm_.forward(pass);
  const Tensor branch = rows_of(branch_, pass);
  qkv_linear_.forward(normed, rows_of(qkv_, pass), qkv_linear_.bias());
  context_.device.attention_forward(
      {.shape = shape,
       .qkv = rows_up_to(qkv_, pass),
       .out = rows_up_to(attended_, pass),
       .lse = Tensor(lse_.data, DType::f32, {shape.batch, shape.heads, shape.seq})});
  proj_linear_.forward(rows_of(attended_, pass), branch, {});
  context_.reduce(branch);
  context_.device.bias_dropout_add(
      branch, proj_linear_.bias(), norm_.input(pass), rows_of(output_, pass),
      dropout_for(context_, pass, layer_, DropoutSite::attention_output), pass.first_row());
}

void AttentionBlock::backward(const Pass& pass) const {
  const AttentionShape shape = attention_shape(pass);
  const Tensor qkv = rows_of(qkv_, pass);
  const Tensor attended = rows_of(attended_, pass);
  const Tensor dresidual = rows_of(dresidual_, pass);
  const Tensor dattended = rows_of(dattended_, pass);
  const Tensor dqkv = rows_of(dqkv_, pass);
  const Tensor dnormed = rows_of(dnormed_, pass);

  Tensor dbranch = dresidual;
  if (Dropout dropout = dropout_for(context_, pass, layer_, DropoutSite::attention_output)) {
    dbranch = rows_of(branch_, pass);
    context_.device.dropout_backward(dresidual, dbranch, dropout, pass.first_row());
  }
  proj_linear_.backward_input(dbranch, dattended);
  proj_linear_.backward_weight(attended, dbranch, pass.accumulate);
  context_.device.attention_backward(
      {.shape = shape,
       .qkv = qkv,
       .out = attended,
       .lse = Tensor(lse_.data, DType::f32, {shape.batch, shape.heads, shape.seq}),
       .dout = dattended,
       .dqkv = dqkv});
  qkv_linear_.backward_input(dqkv, dnormed);
  context_.reduce(dnormed);
  qkv_linear_.backward_weight(norm_.normed(pass), dqkv, pass.accumulate);
  norm_.backward(pass, dnormed, dresidual, true);
}

}  // namespace mtl
