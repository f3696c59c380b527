#include "runtime/model/blocks.h"

namespace mtl {

HeadBlock::HeadBlock(const BlockContext& context)
    : context_(context),
      shard_(vocab_shard(context.shape, context.tp.size(), context.tp.rank())),
      norm_(context, context.shape.layers, "norm", "head"),
      head_(context.shape.tie_embeddings ? context.parameters.find(-1, "tokens")
                                         : context.parameters.find(context.shape.layers, "head")),
      logits_(context.arena.get("logits")),
      targets_(context.arena.get("targets")),
      row_max_(context.arena.get("head.row_max")),
      sums_(context.arena.get("head.sums")),
      loss_(context.arena.get("head.loss")),
      dnormed_(context.arena.find("head.dnormed")),
      dresidual_(context.arena.find("dresidual")) {}

CrossEntropy HeadBlock::cross_entropy(const Pass& pass) const {
  const int64_t rows = pass.tokens();
  CrossEntropy args;
  args.logits = rows_of(logits_, pass);
  args.targets = targets_.slice(0, rows);
  args.first = shard_.first;
  args.valid = shard_.valid;
  args.row_max = row_max_.slice(0, rows);
  // Side by side, so that both travel in one reduction whatever the number of rows.
  args.sum_exp = sums_.slice(0, rows);
  args.target_logit = sums_.slice(rows, rows);
  args.loss = loss_.slice(0, rows);
  return args;
}

void HeadBlock::forward(const Pass& pass) const {
  const CrossEntropy args = cross_entropy(pass);
  const Tensor normed = norm_.forward(pass);
  context_.device.matmul({.a = normed, .b = head_.weight, .c = args.logits, .transpose_b = true});
  context_.device.cross_entropy_max(args);
  if (context_.tp.size() > 1) context_.tp.all_reduce(args.row_max, Reduce::max);
  context_.device.cross_entropy_sum(args);
  context_.reduce(sums_.slice(0, 2 * pass.tokens()));
  context_.device.cross_entropy_loss(args);
}

void HeadBlock::backward(const Pass& pass, float scale) const {
  const CrossEntropy args = cross_entropy(pass);
  const Tensor dnormed = rows_of(dnormed_, pass);
  context_.device.cross_entropy_backward(args, scale);
  const Tensor dlogits = args.logits;
  context_.device.matmul({.a = dlogits, .b = head_.weight, .c = dnormed});
  context_.reduce(dnormed);
  context_.device.matmul({.a = dlogits,
                          .b = norm_.normed(pass),
                          .c = head_.grad,
                          .transpose_a = true,
                          .accumulate = pass.accumulate});
  norm_.backward(pass, dnormed, rows_of(dresidual_, pass), false);
}

Tensor HeadBlock::next_logits(const Pass& pass) const {
  const Tensor normed = norm_.forward(pass);
  const int64_t cols = normed.cols();
  const Tensor last(normed.slice((normed.rows() - 1) * cols, cols).data, normed.dtype, {1, cols});
  const Tensor out(logits_.data, logits_.dtype, {1, shard_.rows});
  context_.device.matmul({.a = last, .b = head_.weight, .c = out, .transpose_b = true});
  return out.slice(0, shard_.valid);
}

}  // namespace mtl
