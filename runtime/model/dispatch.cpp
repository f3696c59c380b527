#include "runtime/model/dispatch.h"

#include <stdexcept>

namespace mtl {

namespace {

Tensor first_rows(const Tensor& all, int64_t rows) {
  return all.row_slice(0, rows);
}

// Values by row as a matrix of one column.
Tensor column(const Tensor& values) {
  return Tensor(values.data, values.dtype, {values.numel(), 1});
}

// Half 0 or 1 of a buffer of two: values, and their gradients.
Tensor half(const Buffer& both, int64_t which, int64_t rows) {
  const int64_t length = both.tensor.numel() / 2;
  return both.tensor.slice(which * length, rows);
}

}  // namespace

Dispatch::Dispatch(const BlockContext& context, int64_t layer)
    : context_(context),
      own_(context.arena.get("mlp.token_rows")),
      arrived_(context.arena.find(layer_buffer(layer, "mlp.arrived"))),
      products_(context.arena.find("mlp.products")),
      row_numbers_(context.arena.find("mlp.row_numbers")),
      row_weights_(context.arena.find("mlp.row_weights")),
      arrived_weights_(context.arena.find("mlp.arrived_weights")) {}

int64_t Dispatch::room() const {
  return travels() ? arrived_.tensor.rows() : own_.tensor.rows();
}

Tensor Dispatch::gathered(const Turn& turn, Tensor tokens, Tensor weights, Tensor to) const {
  const Tensor rows = first_rows(to, turn.counts.own());
  context_.device.gather_rows({.from = tokens,
                               .index = turn.routes.assignments,
                               .divide = context_.shape.experts_per_token,
                               .weights = weights,
                               .to = rows});
  return rows;
}

Tensor Dispatch::inputs(const Turn& turn, Tensor tokens) const {
  if (turn.counts.arriving() > room()) throw std::logic_error("rows without room at the experts");
  const Tensor rows = gathered(turn, tokens, {}, own_.tensor);
  if (!travels()) return rows;
  const Tensor arrived = first_rows(arrived_.in(turn.pass.slot), turn.counts.arriving());
  context_.ep.to_experts(turn.counts, rows, arrived);
  return arrived;
}

Tensor Dispatch::inputs_again(const Turn& turn, Tensor tokens) const {
  if (!travels()) return gathered(turn, tokens, {}, own_.tensor);
  return first_rows(arrived_.in(turn.pass.slot), turn.counts.arriving());
}

Tensor Dispatch::outputs(const Turn& turn) const {
  return travels() ? first_rows(products_.tensor, turn.counts.arriving())
                   : first_rows(own_.tensor, turn.counts.own());
}

void Dispatch::take_back(const Turn& turn, Tensor tokens, bool weighted) const {
  const Tensor rows = first_rows(own_.tensor, turn.counts.own());
  if (travels()) context_.ep.from_experts(turn.counts, outputs(turn), rows);
  context_.device.combine_rows({.from = rows,
                                .rows = turn.routes.rows,
                                .weights = weighted ? turn.routes.weights : Tensor{},
                                .to = tokens});
}

Tensor Dispatch::gradients(const Turn& turn, Tensor tokens) const {
  const Tensor rows = gathered(turn, tokens, {}, own_.tensor);
  if (!travels()) return rows;
  const Tensor arrived = outputs(turn);
  context_.ep.to_experts(turn.counts, rows, arrived);
  return arrived;
}

Tensor Dispatch::weighted_gradients(const Turn& turn, Tensor tokens, Tensor to) const {
  if (!travels()) {
    return gathered(turn, tokens, turn.routes.weights, to ? to : own_.tensor);
  }
  const Tensor rows = outputs(turn);
  if (to) to = first_rows(to, rows.rows());
  if (rows.numel() == 0) return rows;
  context_.device.gather_rows({.from = rows,
                               .index = row_numbers_.tensor.slice(0, rows.rows()),
                               .weights = half(arrived_weights_, 0, rows.rows()),
                               .to = to ? to : rows});
  return to ? to : rows;
}

RowWeights Dispatch::row_weights(const Turn& turn, Tensor dweights) const {
  const ExpertRoutes& routes = turn.routes;
  if (!travels()) return {routes.assignments, routes.weights, dweights};
  // Weights go where their rows went.
  const int64_t own = turn.counts.own(), arriving = turn.counts.arriving();
  const Tensor weights = half(row_weights_, 0, own), arrived = half(arrived_weights_, 0, arriving);
  context_.device.gather_rows(
      {.from = column(routes.weights), .index = routes.assignments, .to = column(weights)});
  context_.ep.to_experts(turn.counts, column(weights), column(arrived));
  return {row_numbers_.tensor.slice(0, arriving), arrived, half(arrived_weights_, 1, arriving)};
}

void Dispatch::take_back_gradients(const Turn& turn, Tensor dweights) const {
  if (!travels()) return;
  const int64_t own = turn.counts.own();
  const Tensor back = half(row_weights_, 1, own);
  context_.ep.from_experts(turn.counts, column(half(arrived_weights_, 1, turn.counts.arriving())),
                           column(back));
  context_.device.gather_rows(
      {.from = column(back), .index = turn.routes.rows.slice(0, own), .to = column(dweights)});
}

}  // namespace mtl
