#include "common/half.h"
#include "runtime/model/blocks.h"

namespace mtl {

namespace {

// As a number of that type: what transformers multiplies with.
float rounded(double value, DType dtype) {
  const auto single = static_cast<float>(value);
  if (dtype == DType::bf16) return bf16_to_f32(f32_to_bf16(single));
  if (dtype == DType::f16) return f16_to_f32(f32_to_f16(single));
  return single;
}

}  // namespace

EmbeddingBlock::EmbeddingBlock(const BlockContext& context, const std::string& output)
    : context_(context),
      shard_(vocab_shard(context.shape, context.tp.size(), context.tp.rank())),
      tokens_(context.parameters.find(-1, "tokens")),
      positions_(context.parameters.find(-1, "positions")),
      tied_slots_(context.arena.find("tied.slots")),
      tied_grad_(context.arena.find("tied.grad")),
      ids_(context.arena.get("tokens")),
      output_(context.arena.get(output)),
      branch_(context.arena.get("branch")),
      position_ids_(context.arena.find("position_ids")),
      dresidual_(context.arena.find("dresidual")) {}

void EmbeddingBlock::forward(const Pass& pass) const {
  const Tensor stream = stream_rows_of(context_, output_, pass);
  // The sum over TP can be taken where it belongs, unless each rank keeps only its rows of it.
  const Tensor partial = context_.tp.sequence() ? rows_of(branch_, pass) : stream;
  context_.device.embedding_forward(values_of(ids_, pass), tokens_.weight, shard_.first, partial);
  const Tensor sum = context_.tp.leave(partial);
  if (sum.data != stream.data) context_.device.copy(sum, stream);
  scale(stream);
  add_positions(pass, stream);
}

void EmbeddingBlock::scale(Tensor rows) const {
  const double factor = context_.shape.embedding_scale;
  if (factor != 1) context_.device.scale(rows, rounded(factor, rows.dtype));
}

void EmbeddingBlock::add_positions(const Pass& pass, Tensor stream) const {
  const Dropout dropout = dropout_for(context_, pass, -1, DropoutSite::embedding);
  if (!positions_ || position_ids_) {
    if (positions_) {
      // Rows of the table that any token may have.
      const Tensor rows = context_.tp.own_rows(rows_of(branch_, pass));
      context_.device.embedding_forward(stream_position_ids(pass), positions_.weight, 0, rows);
      context_.device.add(rows, stream);
    }
    if (dropout) drop_backward(context_, pass, dropout, stream, stream);
    return;
  }
  const Tensor table = positions_.weight;
  const Tensor positions = table.row_slice(pass.past, table.rows() - pass.past);
  const int64_t seq = whole_sequences(context_, pass).seq;
  for (StreamRun run; run.first < stream.rows(); run.first += run.rows) {
    run = stream_run(context_, pass, run.first);
    const Tensor rows = stream.row_slice(run.first, run.rows);
    context_.device.position_forward(rows, positions, seq, rows, dropout, run.of_whole);
  }
}

Tensor EmbeddingBlock::stream_position_ids(const Pass& pass) const {
  return values_of(position_ids_, pass)
      .slice(stream_offset(context_, pass), pass.tokens() / context_.tp.stream_parts());
}

void EmbeddingBlock::positions_backward(const Pass& pass, Tensor dx) const {
  const Dropout dropout = dropout_for(context_, pass, -1, DropoutSite::embedding);
  if (!positions_ || position_ids_) {
    if (dropout) drop_backward(context_, pass, dropout, dx, dx);
    if (!positions_) return;
    if (!pass.accumulate) context_.device.fill(positions_.grad, 0.0f);
    context_.device.embedding_backward(stream_position_ids(pass), dx, 0, positions_.grad);
    return;
  }
  // Positions that no token has: the memory may have been another layer's (ZeRO-2).
  const int64_t seq = whole_sequences(context_, pass).seq;
  const int64_t unused = positions_.grad.rows() - seq;
  if (!pass.accumulate && unused > 0) {
    context_.device.fill(positions_.grad.row_slice(seq, unused), 0.0f);
  }
  for (StreamRun run; run.first < dx.rows(); run.first += run.rows) {
    run = stream_run(context_, pass, run.first);
    const Tensor rows = dx.row_slice(run.first, run.rows);
    context_.device.position_backward(rows, seq, rows, positions_.grad,
                                      pass.accumulate || run.first > 0, dropout, run.of_whole);
  }
}

void EmbeddingBlock::backward(const Pass& pass) const {
  if (!tokens_.grad) return;  // nothing before it is trained
  const Tensor dx = stream_rows_of(context_, dresidual_, pass);
  positions_backward(pass, dx);
  scale(dx);
  const Tensor all = context_.tp.enter(dx, rows_of(branch_, pass));
  if (tied_grad_) {
    context_.device.embedding_backward(values_of(tied_slots_, pass), all, 0, tied_grad_.tensor);
    return;
  }
  if (!pass.accumulate) context_.device.fill(tokens_.grad, 0.0f);
  context_.device.embedding_backward(values_of(ids_, pass), all, shard_.first, tokens_.grad);
}

}  // namespace mtl
