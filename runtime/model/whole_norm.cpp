#include "runtime/model/whole_norm.h"

namespace mtl {

namespace {

// A value for each token of the pass and both norms, side by side whatever the number of tokens.
Tensor values_of_both(const Buffer& planned, const Pass& pass) {
  return planned.in(pass.slot).slice(0, 2 * pass.tokens());
}

}  // namespace

WholeNorm::WholeNorm(const BlockContext& context, int64_t layer)
    : context_(context),
      query_(context.parameters.find(layer, "attn.q_norm.weight")),
      key_(context.parameters.find(layer, "attn.k_norm.weight")),
      raw_(context.arena.find(layer_buffer(layer, "attn.raw"))),
      squares_(context.arena.find(layer_buffer(layer, "attn.qk_squares"))),
      products_(context.arena.find("attn.qk_products")) {}

WholeNorm::Part WholeNorm::part(const Pass& pass, bool query) const {
  const ModelShape& shape = context_.shape;
  const int tp = context_.tp.size();
  const int64_t n = pass.tokens(), queries = shape.query_width() / tp;
  const int64_t columns = query ? queries : local_kv_heads(shape, tp) * shape.head_dim;
  const auto half = [&](const Buffer& both) {
    return both ? values_of_both(both, pass).slice(query ? 0 : n, n) : Tensor();
  };
  // Of a key head that ranks share each adds up its copy, so that the sum is of all copies.
  // Backward each has the gradient that its own queries give the head: the sum is of the head's
  // whole gradient then, and each rank's share of the term that it makes is as large as the
  // others'.
  return {.gamma = query ? query_ : key_,
          .first_column = query ? 0 : queries,
          .columns = columns,
          .inverse = 1.0f / static_cast<float>(columns * tp),
          .squares = half(squares_),
          .products = half(products_)};
}

void WholeNorm::forward(const Pass& pass, Tensor qkv) const {
  const auto norm = [&](bool query) -> WideNorm {
    const Part part = this->part(pass, query);
    return {.x = qkv,
            .raw = rows_of(raw_, pass),
            .first_column = part.first_column,
            .columns = part.columns,
            .gamma = part.gamma.weight,
            .squares = part.squares,
            .inverse = part.inverse,
            .eps = static_cast<float>(context_.shape.norm_eps)};
  };
  for (const bool query : {true, false}) context_.device.wide_norm_squares(norm(query));
  context_.tp.all_reduce(values_of_both(squares_, pass));
  for (const bool query : {true, false}) context_.device.wide_norm_forward(norm(query));
}

void WholeNorm::backward(const Pass& pass, Tensor dqkv) const {
  const auto norm = [&](bool query) -> WideNormBackward {
    const Part part = this->part(pass, query);
    return {.dx = dqkv,
            .raw = rows_of(raw_, pass),
            .first_column = part.first_column,
            .columns = part.columns,
            .gamma = part.gamma.weight,
            .squares = part.squares,
            .products = part.products,
            .dgamma = part.gamma.grad,
            .inverse = part.inverse,
            .eps = static_cast<float>(context_.shape.norm_eps),
            .accumulate = pass.accumulate};
  };
  for (const bool query : {true, false}) context_.device.wide_norm_products(norm(query));
  context_.tp.all_reduce(values_of_both(products_, pass));
  for (const bool query : {true, false}) context_.device.wide_norm_backward(norm(query));
}

}  // namespace mtl
