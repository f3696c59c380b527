#include "runtime/model/blocks.h"

namespace mtl {

namespace {

// That of attention, where both read its result: its largest magnitude is then that one's
// operand's.
Norm norm_of(const BlockContext& context, int64_t layer) {
  const std::string attention = layer_buffer(layer, "attn");
  if (context.shape.shared_norm) return Norm(context, layer, "attn.norm", attention);
  return Norm(context, layer, "mlp.norm", layer_buffer(layer, "mlp"),
              float8_stream_amax(context, layer, "mlp.up", Float8Operand::x),
              context.shape.parallel_residual ? attention : "");
}

// Beside mixtures dense layers have scratch of their own width.
Buffer scratch(const BlockContext& context, const std::string& name) {
  return context.arena.find((context.shape.experts > 0 ? "mlp.dense_" : "mlp.") + name);
}

}  // namespace

MlpBlock::MlpBlock(const BlockContext& context, int64_t layer, const PartsAgain& again,
                   const std::string& output)
    : context_(context),
      again_(again),
      activation_(context.shape.activation),
      gated_(context.shape.gated()),
      norm_(norm_of(context, layer)),
      end_(context, layer, "mlp", "mlp.down", DropoutSite::mlp_output),
      up_(context, layer, "mlp.up"),
      down_(context, layer, "mlp.down"),
      before_act_(context.arena.get(layer_buffer(layer, "mlp.before_act"))),
      activated_(context.arena.get(layer_buffer(layer, "mlp.activated"))),
      output_(context.arena.get(output)),
      branch_(context.arena.get("branch")),
      gathered_(context.arena.find("gathered")),
      dresidual_(context.arena.find("dresidual")),
      dbefore_act_(scratch(context, "dbefore_act")),
      dactivated_(scratch(context, "dactivated")),
      dnormed_(scratch(context, "dnormed")) {
  const bool parallel = context.shape.parallel_residual;
  if (const Buffer later = context.arena.find(layer_buffer(layer, kBeforeActLater))) {
    leaves_weights_ = true;
    dbefore_act_ = later;
    later_dstream_ =
        context.arena.get(layer_buffer(layer, parallel ? kAttentionStreamLater : kMlpStreamLater));
  }
  if (!parallel || context.tp.size() == 1) {
    dbranch_amax_ = float8_branch_amax(context, layer, "mlp.down");
  }
  if (!parallel) {
    dinput_amax_ = float8_stream_amax(context, layer, "attn.proj", Float8Operand::dy);
  }
  // GELU belongs to the products on both sides of it; its exact form takes no magnitudes.
  if (!gated_) return;
  activated_amax_ = float8_amax(context, layer, "mlp.down", Float8Operand::x);
  dbefore_act_amax_ = float8_amax(context, layer, "mlp.up", Float8Operand::dy);
}

void MlpBlock::expand(const Pass& pass, Tensor x) const {
  const Tensor before_act = rows_of(before_act_, pass);
  const Tensor activated = rows_of(activated_, pass);
  const bool gelu = activation_ == Activation::gelu_tanh;
  if (gelu && !up_.is_adapted()) {
    // Whatever else is made again is made again from the product on.
    const Gelu on_its_way = {.aux = before_act, .once = !again_.mlp_activation};
    up_.forward(pass, {x, norm_.amax(pass)}, activated, up_.bias(), on_its_way);
    return;
  }
  up_.forward(pass, {x, norm_.amax(pass)}, before_act, up_.bias());
  // The backward of this GELU does not make it again.
  if (!pass.again || gelu) activate(pass);
}

void MlpBlock::activate(const Pass& pass) const {
  const Tensor before_act = rows_of(before_act_, pass);
  const Tensor activated = rows_of(activated_, pass);
  if (gated_) {
    context_.device.swiglu_forward({.x = before_act,
                                    .y = activated,
                                    .amax = activated_amax_.in(pass.slot),
                                    .unit = gated_unit(context_.shape)});
  } else if (activation_ == Activation::gelu_exact) {
    context_.device.gelu_exact_forward(before_act, activated);
  } else {
    context_.device.gelu_forward(before_act, activated);
  }
}

void MlpBlock::contract(const Pass& pass, Tensor sum, bool add) const {
  down_.forward(pass, {rows_of(activated_, pass), activated_amax_.in(pass.slot)}, sum,
                end_.sums_bias() ? down_.bias() : Tensor(), {}, add);
}

ResidualAdd MlpBlock::output_of(const Pass& pass) const {
  return end_.forward(pass, down_.bias(), norm_.input(pass), output(pass));
}

ResidualAdd MlpBlock::forward(const Pass& pass, const ResidualAdd& before) const {
  expand(pass, context_.tp.enter(norm_.forward(pass, before), branch(pass)));
  if (pass.again) return {};
  contract(pass, end_.sum(pass), false);
  return output_of(pass);
}

Tensor MlpBlock::output_backward(const Pass& pass) const {
  return end_.backward(pass, dresidual(pass), rows_of(dnormed_, pass));
}

void MlpBlock::backward(const Pass& pass) const {
  const Tensor dstream = output_backward(pass);
  const Tensor dbranch = context_.tp.enter(dstream, branch(pass));
  backward(pass, dbranch, dstream, {.dresidual = dresidual(pass)});
}

void MlpBlock::activation_backward(const Pass& pass, Tensor dbranch, Tensor made) const {
  const Tensor before_act = rows_of(before_act_, pass);
  const Tensor dbefore_act = this->dbefore_act(pass);
  const Operand dy = {dbranch, dbranch_amax_.in(pass.slot)};
  if (gated_) {
    const Tensor dactivated = rows_of(dactivated_, pass);
    down_.backward_input(pass, dy, dactivated);
    context_.device.swiglu_backward({.dy = dactivated,
                                     .x = before_act,
                                     .dx = dbefore_act,
                                     .amax = dbefore_act_amax_.in(pass.slot),
                                     .y = made,
                                     .unit = gated_unit(context_.shape)});
  } else if (activation_ == Activation::gelu_exact) {
    down_.backward_input(pass, dy, dbefore_act);
    context_.device.gelu_exact_backward(dbefore_act, before_act, made);
  } else {
    down_.backward_input(pass, dy, dbefore_act, Epilogue::gelu_grad, before_act);
  }
}

void MlpBlock::weight_grads(const Pass& pass) const {
  if (!leaves_weights_) return;
  const Tensor dstream = later_dstream(pass);
  const Tensor dbranch = context_.tp.enter(dstream, branch(pass));
  const Tensor normed = again_.norms ? norm_.forward(pass) : norm_.normed(pass);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  TensorParallel::Pending entering = context_.tp.start_enter(normed, x);
  if (again_.mlp_activation) activate(pass);
  down_.backward_weight_later(pass, rows_of(activated_, pass), dbranch, dstream);
  entering.finish();
  const Tensor dy = dbefore_act(pass);
  up_.backward_weight_later(pass, x, dy, dy);
}

void MlpBlock::backward(const Pass& pass, Tensor dbranch, Tensor dstream, InputGradient to) const {
  const Tensor activated = rows_of(activated_, pass);
  const Tensor dbefore_act = this->dbefore_act(pass);
  to.dnormed = rows_of(dnormed_, pass);
  to.amax = dinput_amax_.in(pass.slot);
  if (leaves_weights_) {
    activation_backward(pass, dbranch, {});
    if (!context_.shape.parallel_residual) context_.device.copy(dstream, later_dstream(pass));
    up_.backward_input(pass, {dbefore_act, dbefore_act_amax_.in(pass.slot)}, to.dnormed);
    return backward_to_stream(context_, norm_, pass, to, {});
  }

  const Tensor normed = again_.norms || again_.mlp ? norm_.forward(pass) : norm_.normed(pass);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  TensorParallel::Pending entering = context_.tp.start_enter(normed, x);
  if (again_.mlp) {
    entering.finish();
    Pass again = pass;
    again.again = true;
    expand(again, x);
  } else if (again_.mlp_activation && activation_ == Activation::gelu_tanh) {
    activate(pass);
  }
  activation_backward(pass, dbranch, activates_backward(again_, pass) ? activated : Tensor());
  down_.backward_weight(pass, activated, dbranch, dstream);
  up_.backward_input(pass, {dbefore_act, dbefore_act_amax_.in(pass.slot)}, to.dnormed);
  backward_to_stream(context_, norm_, pass, to, [&] {
    entering.finish();
    up_.backward_weight(pass, x, dbefore_act, dbefore_act);
  });
}

}  // namespace mtl
