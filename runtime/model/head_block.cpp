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

CrossEntropy HeadBlock::cross_entropy(int64_t rows) const {
  CrossEntropy args;
  args.logits = first_rows(logits_, rows);
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
  const int64_t n = pass.tokens();
  const CrossEntropy args = cross_entropy(n);
  const Tensor normed = norm_.forward(n);
  context_.device.matmul({.a = normed, .b = head_.weight, .c = args.logits, .transpose_b = true});
  context_.device.cross_entropy_max(args);
  if (context_.tp.size() > 1) context_.tp.all_reduce(args.row_max, Reduce::max);
  context_.device.cross_entropy_sum(args);
  context_.reduce(sums_.slice(0, 2 * n));
  context_.device.cross_entropy_loss(args);
}

void HeadBlock::backward(const Pass& pass, float scale) const {
  const int64_t n = pass.tokens();
  const CrossEntropy args = cross_entropy(n);
  const Tensor dnormed = first_rows(dnormed_, n);
  context_.device.cross_entropy_backward(args, scale);
  const Tensor dlogits = args.logits;
  context_.device.matmul({.a = dlogits, .b = head_.weight, .c = dnormed});
  context_.reduce(dnormed);
  context_.device.matmul({.a = dlogits,
                          .b = norm_.normed(n),
                          .c = head_.grad,
                          .transpose_a = true,
                          .accumulate = pass.accumulate});
  norm_.backward(dnormed, first_rows(dresidual_, n), false, pass.accumulate);
}

Tensor HeadBlock::logits(int64_t rows, int64_t row) const {
  const Tensor normed = norm_.forward(rows);
  const Tensor one(normed.slice(row * normed.cols(), normed.cols()).data, normed.dtype,
                   {1, normed.cols()});
  const Tensor out = first_rows(logits_, 1);
  context_.device.matmul({.a = one, .b = head_.weight, .c = out, .transpose_b = true});
  return Tensor(out.data, out.dtype, {shard_.valid});
}

}  // namespace mtl
