#include "runtime/model/context.h"

#include <stdexcept>

namespace mtl {

Tensor Arena::find(const std::string& name) const {
  const BufferPlan* buffer = plan_->find(name);
  if (buffer == nullptr) return {};
  return Tensor(base_ + buffer->offset, buffer->dtype, std::span<const int64_t>(buffer->shape));
}

Tensor Arena::get(const std::string& name) const {
  Tensor tensor = find(name);
  if (!tensor) throw std::logic_error("the memory plan has no buffer '" + name + "'");
  return tensor;
}

Parameters::Parameters(const std::vector<ParamRow>& table, const ParamLayout& layout,
                       const Arena& arena)
    : table_(&table) {
  const Tensor weights = arena.get("weights");
  const Tensor grads = arena.find("grads");
  for (const ParamPlacement& placement : layout.params) {
    const std::span<const int64_t> shape(placement.shape);
    Parameter parameter;
    parameter.weight =
        Tensor(weights.slice(placement.offset, placement.numel).data, weights.dtype, shape);
    if (grads)
      parameter.grad =
          Tensor(grads.slice(placement.offset, placement.numel).data, DType::f32, shape);
    parameters_.push_back(parameter);
  }
}

Parameter Parameters::find(int64_t layer, const std::string& slot) const {
  const ParamRow* row = find_row(*table_, static_cast<int>(layer), slot);
  return row == nullptr ? Parameter{} : parameters_[static_cast<size_t>(row - table_->data())];
}

Dropout dropout_for(const BlockContext& context, const Pass& pass, int64_t layer,
                    DropoutSite site) {
  if (!pass.training) return {};
  const double probability = site == DropoutSite::attention ? context.shape.dropout_attention
                                                            : context.shape.dropout_hidden;
  if (probability <= 0) return {};
  return {static_cast<float>(probability),
          dropout_key(context.seed, pass.step, layer, static_cast<int64_t>(site))};
}

namespace {

Tensor rows_between(Tensor planned, int64_t first, int64_t end) {
  const int64_t cols = planned.cols();
  if (end > planned.rows()) throw std::logic_error("a pass is larger than the memory plan");
  return Tensor(planned.slice(first * cols, (end - first) * cols).data, planned.dtype,
                {end - first, cols});
}

}  // namespace

Tensor rows_of(Tensor planned, const Pass& pass) {
  return rows_between(planned, pass.past, pass.past + pass.tokens());
}

Tensor values_of(Tensor planned, const Pass& pass) {
  return planned.slice(pass.past, pass.tokens());
}

Tensor rows_up_to(Tensor planned, const Pass& pass) {
  return rows_between(planned, 0, pass.past + pass.tokens());
}

}  // namespace mtl
