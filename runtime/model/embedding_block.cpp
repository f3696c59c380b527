#include "runtime/model/blocks.h"

namespace mtl {

EmbeddingBlock::EmbeddingBlock(const BlockContext& context)
    : context_(context),
      shard_(vocab_shard(context.shape, context.tp.size(), context.tp.rank())),
      tokens_(context.parameters.find(-1, "tokens")),
      positions_(context.parameters.find(-1, "positions")),
      ids_(context.arena.get("tokens")),
      output_(context.arena.get(context.shape.layers > 0 ? "layer0.attn.input" : "head.input")),
      dresidual_(context.arena.find("dresidual")) {}

void EmbeddingBlock::forward(const Pass& pass) const {
  const Tensor ids = values_of(ids_, pass);
  const Tensor out = rows_of(output_, pass);
  context_.device.embedding_forward(ids, tokens_.weight, shard_.first, out);
  context_.reduce(out);
  const Tensor table = positions_.weight;
  const int64_t cols = table.cols();
  const Tensor positions(table.slice(pass.past * cols, (table.rows() - pass.past) * cols).data,
                         table.dtype, {table.rows() - pass.past, cols});
  context_.device.position_forward(out, positions, pass.seq, out,
                                   dropout_for(context_, pass, -1, DropoutSite::embedding),
                                   pass.first_row());
}

void EmbeddingBlock::backward(const Pass& pass) const {
  const Tensor ids = values_of(ids_, pass);
  const Tensor dx = rows_of(dresidual_, pass);
  context_.device.position_backward(dx, pass.seq, dx, positions_.grad, pass.accumulate,
                                    dropout_for(context_, pass, -1, DropoutSite::embedding),
                                    pass.first_row());
  // A tied embedding was written by the head just before; an untied one starts here.
  if (!pass.accumulate && !context_.shape.tie_embeddings) context_.device.fill(tokens_.grad, 0.0f);
  context_.device.embedding_backward(ids, dx, shard_.first, tokens_.grad);
}

}  // namespace mtl
