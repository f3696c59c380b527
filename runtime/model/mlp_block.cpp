#include "runtime/model/blocks.h"

namespace mtl {

namespace {

// Beside mixtures dense layers have scratch of their own width.
Buffer scratch(const BlockContext& context, const std::string& name) {
  return context.arena.find((context.shape.experts > 0 ? "mlp.dense_" : "mlp.") + name);
}

}  // namespace

MlpBlock::MlpBlock(const BlockContext& context, int64_t layer, const std::string& output)
    : context_(context),
      layer_(layer),
      gated_(context.shape.activation == Activation::swiglu),
      norm_(context, layer, "mlp.norm", layer_buffer(layer, "mlp"),
            float8_stream_amax(context, layer, "mlp.up", Float8Operand::x)),
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
      dnormed_(scratch(context, "dnormed")),
      dbranch_amax_(float8_stream_amax(context, layer, "mlp.down", Float8Operand::dy)),
      dinput_amax_(float8_stream_amax(context, layer, "attn.proj", Float8Operand::dy)) {
  // GELU belongs to the products on both sides of it.
  if (!gated_) return;
  activated_amax_ = float8_amax(context, layer, "mlp.down", Float8Operand::x);
  dbefore_act_amax_ = float8_amax(context, layer, "mlp.up", Float8Operand::dy);
}

void MlpBlock::expand(const Pass& pass, Tensor x) const {
  const Tensor before_act = rows_of(before_act_, pass);
  const Tensor activated = rows_of(activated_, pass);
  if (gated_) {
    up_.forward(pass, {x, norm_.amax(pass)}, before_act, up_.bias());
    context_.device.swiglu_forward(
        {.x = before_act, .y = activated, .amax = activated_amax_.in(pass.slot)});
  } else {
    // Whatever else is made again is made again from the product on.
    const Gelu gelu = {.aux = before_act, .once = !context_.recompute.mlp_activation};
    up_.forward(pass, {x, norm_.amax(pass)}, activated, up_.bias(), gelu);
  }
}

ResidualAdd MlpBlock::forward(const Pass& pass, const ResidualAdd& before) const {
  const Tensor branch = rows_of(branch_, pass);
  expand(pass, context_.tp.enter(norm_.forward(pass, before), branch));
  if (pass.again) return {};
  down_.forward(pass, {rows_of(activated_, pass), activated_amax_.in(pass.slot)}, branch, {});
  return {.x = context_.tp.leave(branch),
          .bias = down_.bias(),
          .residual = norm_.input(pass),
          .out = output(pass),
          .dropout = dropout_for(context_, pass, layer_, DropoutSite::mlp_output),
          .first_row = first_stream_row(context_, pass)};
}

void MlpBlock::backward(const Pass& pass) const {
  const Tensor before_act = rows_of(before_act_, pass);
  const Tensor activated = rows_of(activated_, pass);
  const Tensor dresidual = stream_rows_of(context_, dresidual_, pass);
  const Tensor branch = rows_of(branch_, pass);
  const Tensor dbefore_act = rows_of(dbefore_act_, pass);
  const Tensor dnormed = rows_of(dnormed_, pass);
  const Recompute& recompute = context_.recompute;

  const Tensor normed = recompute.norms || recompute.mlp ? norm_.forward(pass) : norm_.normed(pass);
  Tensor dstream = dresidual;
  if (Dropout dropout = dropout_for(context_, pass, layer_, DropoutSite::mlp_output)) {
    dstream = context_.tp.own_rows(branch);
    context_.device.dropout_backward(dresidual, dstream, dropout, first_stream_row(context_, pass));
  }
  const Tensor dbranch = context_.tp.enter(dstream, branch);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  TensorParallel::Pending entering = context_.tp.start_enter(normed, x);
  if (recompute.mlp) {
    entering.finish();
    expand(pass, x);
  } else if (recompute.mlp_activation) {
    if (gated_) {
      context_.device.swiglu_forward({.x = before_act, .y = activated});
    } else {
      context_.device.gelu_forward(before_act, activated);
    }
  }
  const Operand dy = {dbranch, dbranch_amax_.in(pass.slot)};
  if (gated_) {
    const Tensor dactivated = rows_of(dactivated_, pass);
    down_.backward_input(pass, dy, dactivated);
    context_.device.swiglu_backward({.dy = dactivated,
                                     .x = before_act,
                                     .dx = dbefore_act,
                                     .amax = dbefore_act_amax_.in(pass.slot)});
  } else {
    down_.backward_input(pass, dy, dbefore_act, Epilogue::gelu_grad, before_act);
  }
  down_.backward_weight(pass, activated, dbranch, dstream);
  up_.backward_input(pass, {dbefore_act, dbefore_act_amax_.in(pass.slot)}, dnormed);
  TensorParallel::Pending leaving = context_.tp.start_leave(dnormed);
  entering.finish();
  up_.backward_weight(pass, x, dbefore_act, dbefore_act);
  leaving.finish();
  norm_.backward(pass, context_.tp.own_rows(dnormed), dresidual, true, dinput_amax_.in(pass.slot));
}

}  // namespace mtl
