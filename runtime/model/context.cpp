#include "runtime/model/context.h"

#include <algorithm>
#include <span>
#include <stdexcept>

namespace mtl {

Buffer Arena::find(const std::string& name) const {
  const BufferPlan* buffer = plan_->find(name);
  if (buffer == nullptr) return {};
  char* const base = buffer->on_host ? host_ : base_;
  return {Tensor(base + buffer->offset, buffer->dtype, std::span<const int64_t>(buffer->shape)),
          buffer->in_slot ? plan_->slot_bytes
          : buffer->later ? plan_->later_bytes
                          : 0};
}

Buffer Arena::get(const std::string& name) const {
  Buffer buffer = find(name);
  if (!buffer) throw std::logic_error("the memory plan has no buffer '" + name + "'");
  return buffer;
}

Parameters::Parameters(const std::vector<ParamRow>& table, const ParamLayout& layout,
                       const Arena& arena) {
  add(table, layout, arena.tensor("weights"), arena.find_tensor("grads"));
}

Parameters::Parameters(const std::vector<ParamRow>& table, const ParamLayout& layout,
                       const ParamLayout& frozen, const Arena& arena)
    : Parameters(table, layout, arena) {
  if (!frozen.params.empty()) add(table, frozen, arena.tensor(kFrozen), {});
}

void Parameters::add(const std::vector<ParamRow>& table, const ParamLayout& layout, Tensor weights,
                     Tensor grads) {
  const std::vector<ParamPlacement>& params = layout.params;
  for (size_t first = 0; first < params.size();) {
    // Rows that share a slot are one tensor, stacked along the first dimension.
    const ParamRow& row = table[params[first].row];
    std::vector<int64_t> shape = params[first].shape;
    int64_t numel = params[first].numel;
    size_t end = first + 1;
    for (; end < params.size(); ++end) {
      const ParamRow& next = table[params[end].row];
      if (next.layer != row.layer || next.slot != row.slot) break;
      shape[0] += params[end].shape[0];
      numel += params[end].numel;
    }
    Parameter parameter;
    const std::span<const int64_t> dims(shape);
    parameter.weight =
        Tensor(weights.slice(layout.weight_offset(params[first]), numel).data, weights.dtype, dims);
    if (grads) {
      parameter.grad =
          Tensor(grads.slice(layout.gradient_offset(params[first]), numel).data, DType::f32, dims);
    }
    parameter.out_in = row.out_in;
    parameters_[{row.layer, row.slot}] = parameter;
    first = end;
  }
}

Parameter Parameters::find(int64_t layer, const std::string& slot) const {
  const auto it = parameters_.find({layer, slot});
  return it == parameters_.end() ? Parameter{} : it->second;
}

GatedUnit gated_unit(const ModelShape& shape) {
  const GateForm form = shape.activation == Activation::geglu         ? GateForm::gelu_tanh
                        : shape.activation == Activation::quick_geglu ? GateForm::quick_gelu
                                                                      : GateForm::silu;
  return {.gate = form,
          .offset = static_cast<float>(shape.glu_offset),
          .clamp = static_cast<float>(shape.glu_clamp)};
}

bool activates_backward(const PartsAgain& again, const Pass& pass) {
  return again.mlp_activation || again.mlp || pass.again;
}

Dropout dropout_for(const BlockContext& context, const Pass& pass, int64_t layer,
                    DropoutSite site) {
  if (!pass.training) return {};
  const double probability = site == DropoutSite::attention ? context.shape.dropout_attention
                                                            : context.shape.dropout_hidden;
  if (probability <= 0) return {};
  // The numbers of an element are those that it has on one rank.
  const int64_t seq = pass.seq * (site == DropoutSite::attention ? 1 : context.cp.size());
  const int64_t of_token =
      site == DropoutSite::attention ? context.shape.heads * seq : context.shape.hidden;
  return {.probability = static_cast<float>(probability),
          .layer = layer,
          .site = static_cast<int64_t>(site),
          .sequence_elements = seq * of_token,
          .pass = context.dropout.in(pass.slot)};
}

namespace {

Tensor rows_between(Tensor planned, int64_t first, int64_t end) {
  const int64_t cols = planned.cols();
  if (end > planned.rows()) throw std::logic_error("a pass is larger than the memory plan");
  return Tensor(planned.slice(first * cols, (end - first) * cols).data, planned.dtype,
                {end - first, cols});
}

int64_t stream_tokens(const BlockContext& context, const Pass& pass) {
  return pass.tokens() / context.tp.stream_parts();
}

}  // namespace

Tensor expert_bias(const Arena& arena, const ParamRow& row) {
  return arena.tensor(kExpertBias).slice(row.layer * row.numel(), row.numel());
}

Tensor rows_of(const Buffer& planned, const Pass& pass) {
  return rows_between(planned.in(pass.slot), 0, pass.tokens());
}

Tensor stream_rows_of(const BlockContext& context, const Buffer& planned, const Pass& pass) {
  return rows_between(planned.in(pass.slot), 0, stream_tokens(context, pass));
}

Tensor values_of(const Buffer& planned, const Pass& pass) {
  return planned.in(pass.slot).slice(0, pass.tokens());
}

Tensor stream_values_of(const BlockContext& context, const Buffer& planned, const Pass& pass) {
  return planned.in(pass.slot).slice(0, stream_tokens(context, pass));
}

Tensor rows_behind(const Buffer& planned, const Pass& pass) {
  return rows_between(planned.in(pass.slot), pass.past, pass.past + pass.tokens());
}

Tensor rows_up_to(const Buffer& planned, const Pass& pass) {
  return rows_between(planned.in(pass.slot), 0, pass.past + pass.tokens());
}

Pass whole_sequences(const BlockContext& context, const Pass& pass) {
  Pass whole = pass;
  whole.seq *= context.cp.size();
  return whole;
}

int64_t stream_offset(const BlockContext& context, const Pass& pass) {
  return context.tp.sequence() ? context.tp.rank() * stream_tokens(context, pass) : 0;
}

StreamRun stream_run(const BlockContext& context, const Pass& pass, int64_t first) {
  const int64_t row = stream_offset(context, pass) + first,
                left = stream_tokens(context, pass) - first;
  const int size = context.cp.size();
  if (size == 1) return {.first = first, .rows = left, .of_whole = row};
  const int64_t sequence = row / pass.seq, token = row % pass.seq;
  return {.first = first,
          .rows = std::min(left, pass.seq - token),
          .of_whole = (sequence * size + context.cp.rank()) * pass.seq + token};
}

namespace {

// Of an op whose rows have numbers only for dropout's sake.
template <typename Work>
void each_run(const BlockContext& context, const Pass& pass, const Dropout& dropout,
              const Work& work) {
  const int64_t rows = stream_tokens(context, pass);
  if (!dropout) return work({.first = 0, .rows = rows});
  for (StreamRun run; run.first < rows; run.first += run.rows) {
    run = stream_run(context, pass, run.first);
    work(run);
  }
}

bool is_one_run(const BlockContext& context, const Pass& pass, const Dropout& dropout) {
  return !dropout || stream_run(context, pass, 0).rows == stream_tokens(context, pass);
}

}  // namespace

void drop_backward(const BlockContext& context, const Pass& pass, const Dropout& dropout,
                   Tensor dout, Tensor dx, float scale) {
  each_run(context, pass, dropout, [&](const StreamRun& run) {
    context.device.dropout_backward({.dout = dout.row_slice(run.first, run.rows),
                                     .dx = dx.row_slice(run.first, run.rows),
                                     .dropout = dropout,
                                     .first_row = run.of_whole,
                                     .scale = scale});
  });
}

void add_to_stream(const BlockContext& context, const Pass& pass, ResidualAdd add) {
  each_run(context, pass, add.dropout, [&](const StreamRun& run) {
    context.device.bias_dropout_add({.x = add.x.row_slice(run.first, run.rows),
                                     .bias = add.bias,
                                     .residual = add.residual.row_slice(run.first, run.rows),
                                     .out = add.out.row_slice(run.first, run.rows),
                                     .dropout = add.dropout,
                                     .first_row = run.of_whole,
                                     .scale = add.scale});
  });
}

void add_to_stream(const BlockContext& context, const Pass& pass, ResidualAdd add,
                   const LayerNorm& norm) {
  if (is_one_run(context, pass, add.dropout)) {
    add.first_row = stream_run(context, pass, 0).of_whole;
    return context.device.add_norm_forward(add, norm);
  }
  add_to_stream(context, pass, add);
  context.device.layernorm_forward(norm);
}

}  // namespace mtl
