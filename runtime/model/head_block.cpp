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
      gathered_(context.arena.find("gathered")),
      dnormed_(context.arena.find("head.dnormed")),
      dresidual_(context.arena.find("dresidual")) {}

CrossEntropy HeadBlock::cross_entropy(const Pass& pass) const {
  const int64_t rows = pass.tokens();
  CrossEntropy args;
  args.logits = rows_of(logits_, pass);
  args.targets = targets_.in(pass.slot).slice(0, rows);
  args.first = shard_.first;
  args.valid = shard_.valid;
  args.row_max = row_max_.in(pass.slot).slice(0, rows);
  // Side by side, so that both travel in one reduction whatever the number of rows.
  args.sum_exp = sums_.in(pass.slot).slice(0, rows);
  args.target_logit = sums_.in(pass.slot).slice(rows, rows);
  args.loss = loss_.in(pass.slot).slice(0, rows);
  return args;
}

void HeadBlock::forward(const Pass& pass) const {
  const CrossEntropy args = cross_entropy(pass);
  const Tensor normed = norm_.forward(pass);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  context_.tp.enter(normed, x);
  context_.device.matmul({.a = x, .b = head_.weight, .c = args.logits, .transpose_b = true});
  context_.device.cross_entropy_max(args);
  context_.tp.all_reduce(args.row_max, Reduce::max);
  context_.device.cross_entropy_sum(args);
  context_.tp.all_reduce(sums_.in(pass.slot).slice(0, 2 * pass.tokens()));
  context_.device.cross_entropy_loss(args);
}

void HeadBlock::backward(const Pass& pass, float scale, bool logits_are_there) const {
  const CrossEntropy args = cross_entropy(pass);
  const Tensor dnormed = rows_of(dnormed_, pass);
  const Tensor normed = norm_.normed(pass);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  context_.tp.enter(normed, x);
  if (!logits_are_there) {
    context_.device.matmul({.a = x, .b = head_.weight, .c = args.logits, .transpose_b = true});
  }
  context_.device.cross_entropy_backward(args, scale);
  const Tensor dlogits = args.logits;
  context_.device.matmul({.a = dlogits, .b = head_.weight, .c = dnormed});
  TensorParallel::Pending leaving = context_.tp.start_leave(dnormed);
  context_.device.matmul(
      {.a = dlogits, .b = x, .c = head_.grad, .transpose_a = true, .accumulate = pass.accumulate});
  leaving.finish();
  norm_.backward(pass, context_.tp.own_rows(dnormed), stream_rows_of(context_, dresidual_, pass),
                 false);
}

Tensor HeadBlock::next_logits(const Pass& pass) const {
  const Tensor normed = norm_.forward(pass);
  const int64_t cols = normed.cols();
  const Tensor last(normed.slice((normed.rows() - 1) * cols, cols).data, normed.dtype, {1, cols});
  const Tensor logits = logits_.tensor;
  const Tensor out(logits.data, logits.dtype, {1, shard_.rows});
  context_.device.matmul({.a = last, .b = head_.weight, .c = out, .transpose_b = true});
  return out.slice(0, shard_.valid);
}

}  // namespace mtl
