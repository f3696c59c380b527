#include <algorithm>

#include "runtime/model/blocks.h"

namespace mtl {

HeadBlock::HeadBlock(const BlockContext& context)
    : context_(context),
      shard_(vocab_shard(context.shape, context.tp.size(), context.tp.rank())),
      norm_(context, context.shape.layers, "norm", "head"),
      head_(context.shape.tie_embeddings ? context.parameters.find(-1, "tokens")
                                         : context.parameters.find(context.shape.layers, "head")),
      bias_(context.parameters.find(context.shape.layers, "head.bias")),
      logits_(context.arena.get("logits")),
      targets_(context.arena.get("targets")),
      rows_(context.arena.get("head.rows")),
      places_(context.arena.get("head.places")),
      row_max_(context.arena.get("head.row_max")),
      sums_(context.arena.get("head.sums")),
      loss_(context.arena.get("head.loss")),
      taken_(context.arena.get("branch")),  // which the norm has read
      gathered_(context.arena.find("gathered")),
      dnormed_(context.arena.find("head.dnormed")),
      dresidual_(context.arena.find("dresidual")),
      dinput_amax_(
          float8_stream_amax(context, context.shape.layers - 1, "mlp.down", Float8Operand::dy)) {}

CrossEntropy HeadBlock::cross_entropy(const Pass& pass, int64_t first, int64_t rows) const {
  CrossEntropy args;
  const int64_t columns = logits_.tensor.cols();
  args.logits = Tensor(logits_.tensor.data, logits_.tensor.dtype, {rows, columns});
  args.cap = static_cast<float>(context_.shape.logit_cap);
  args.targets = targets_.in(pass.slot).slice(first, rows);
  args.first = shard_.first;
  args.valid = shard_.valid;
  args.row_max = row_max_.in(pass.slot).slice(first, rows);
  // Side by side, so that both travel in one reduction whatever the number of rows.
  args.sum_exp = sums_.in(pass.slot).slice(2 * first, rows);
  args.target_logit = sums_.in(pass.slot).slice(2 * first + rows, rows);
  args.loss = loss_.in(pass.slot).slice(first, rows);
  return args;
}

void HeadBlock::make_losses(const Pass& pass, const CrossEntropy& args, Tensor sums) const {
  Device& device = context_.device;
  if (context_.tp.size() == 1) {
    if (pass.training) return device.cross_entropy_both(args, pass.loss_scale);
    return device.cross_entropy_losses(args);
  }
  device.cross_entropy_max(args);
  context_.tp.all_reduce(args.row_max, Reduce::max);
  device.cross_entropy_sum(args);
  context_.tp.all_reduce(sums);
  device.cross_entropy_loss(args);
  if (pass.training) device.cross_entropy_backward(args, pass.loss_scale);
}

void HeadBlock::forward(const Pass& pass, const ResidualAdd& before) const {
  Device& device = context_.device;
  const Tensor normed = norm_.forward(pass, before);
  scale(normed);
  const Tensor all = normed_rows(pass);
  context_.tp.enter(normed, all);
  if (!pass.losses) return;
  const Tensor x = taken(pass, all);
  // On one rank the gradient of x takes its place, rows after rows. Else it is a partial sum, which
  // travels while the last part of the weight's gradient is made.
  const bool alone = context_.tp.size() == 1;
  const Tensor dx = alone ? x : dnormed_.tensor.row_slice(0, x.rows());
  const Tensor dall = pass.head_rows > 0 ? all : dx;
  TensorParallel::Pending leaving;
  const int64_t end = x.rows(), most = logits_.tensor.rows();
  for (int64_t first = 0; first < end; first += most) {
    const int64_t rows = std::min(most, end - first);
    const CrossEntropy args = cross_entropy(pass, first, rows);
    const Tensor part = x.row_slice(first, rows);
    make_logits(part, args.logits);
    make_losses(pass, args, sums_.in(pass.slot).slice(2 * first, 2 * rows));
    if (!pass.training) continue;
    const Tensor dlogits = args.logits;
    const Matmul for_x{.a = dlogits, .b = head_.weight, .c = dx.row_slice(first, rows)};
    if (!alone) device.matmul(for_x);
    if (!alone && first + rows == end) {
      give_back(pass, dx, dall);
      leaving = context_.tp.start_leave(dall);
    }
    if (head_.grad) {
      device.matmul({.a = dlogits,
                     .b = part,
                     .c = head_.grad,
                     .transpose_a = true,
                     .accumulate = pass.accumulate || first > 0});
    }
    if (bias_.grad) device.bias_grad(dlogits, bias_.grad, pass.accumulate || first > 0);
    if (alone) device.matmul(for_x);
  }
  if (!pass.training) return;
  if (alone) return give_back(pass, dx, dall);
  leaving.finish();
  const Tensor own = context_.tp.own_rows(dall);
  if (own.data != normed.data) device.copy(own, normed);
}

Tensor HeadBlock::taken(const Pass& pass, Tensor all) const {
  if (pass.head_rows == 0) return all;
  const Tensor to = taken_.tensor.row_slice(0, pass.head_rows);
  context_.device.gather_rows(
      {.from = all, .index = rows_.in(pass.slot).slice(0, pass.head_rows), .to = to});
  return to;
}

void HeadBlock::give_back(const Pass& pass, Tensor dtaken, Tensor dall) const {
  if (pass.head_rows == 0) return;
  const Tensor places = places_.in(pass.slot).row_slice(0, pass.tokens());
  context_.device.combine_rows({.from = dtaken, .rows = places, .to = dall});
}

void HeadBlock::scale(Tensor rows) const {
  const auto factor = static_cast<float>(context_.shape.logit_scale);
  if (factor != 1) context_.device.scale(rows, factor);
}

void HeadBlock::make_logits(Tensor x, Tensor logits) const {
  context_.device.matmul(
      {.a = x, .b = head_.weight, .c = logits, .transpose_b = true, .bias = bias_.weight});
}

void HeadBlock::backward(const Pass& pass) const {
  scale(norm_.normed(pass));
  norm_.backward(pass, norm_.normed(pass), stream_rows_of(context_, dresidual_, pass), false,
                 dinput_amax_.in(pass.slot));
}

Tensor HeadBlock::normed_rows(const Pass& pass) const {
  return context_.tp.sequence() ? rows_of(gathered_, pass) : norm_.normed(pass);
}

Tensor HeadBlock::logits(const Pass& pass, int64_t row) const {
  const Tensor x = normed_rows(pass).row_slice(row, 1);
  const Tensor out(logits_.tensor.data, logits_.tensor.dtype, {1, shard_.rows});
  make_logits(x, out);
  return out.slice(0, shard_.rows);
}

}  // namespace mtl
