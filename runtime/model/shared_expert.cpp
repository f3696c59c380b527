#include "runtime/model/shared_expert.h"

namespace mtl {

SharedExpert::SharedExpert(const BlockContext& context, int64_t layer, const PartsAgain& again)
    : context_(context),
      again_(again),
      up_(context, layer, "mlp.up"),
      down_(context, layer, "mlp.down"),
      before_act_(context.arena.get(layer_buffer(layer, "mlp.shared_before_act"))),
      activated_(context.arena.get(layer_buffer(layer, "mlp.shared_activated"))),
      // The rows of the experts are done with it.
      output_(context.arena.get("mlp.token_rows")),
      dbefore_act_(context.arena.find("mlp.dshared_before_act")),
      dactivated_(context.arena.find("mlp.dshared_activated")),
      dbranch_amax_(float8_branch_amax(context, layer, "mlp.down")),
      activated_amax_(float8_amax(context, layer, "mlp.down", Float8Operand::x)),
      dbefore_act_amax_(float8_amax(context, layer, "mlp.up", Float8Operand::dy)) {
  if (const Buffer later = context.arena.find(layer_buffer(layer, kSharedBeforeActLater))) {
    leaves_weights_ = true;
    dbefore_act_ = later;
  }
  if (!context.shape.shared_gate) return;
  gate_.emplace(context, layer, "mlp.shared_gate");
  scores_ = context.arena.get(layer_buffer(layer, "mlp.shared_gate"));
  dscores_ = context.arena.find(leaves_weights_ ? layer_buffer(layer, kSharedGateLater)
                                                : std::string("mlp.dshared_gate"));
}

void SharedExpert::activate(const Pass& pass) const {
  context_.device.swiglu_forward({.x = rows_of(before_act_, pass),
                                  .y = rows_of(activated_, pass),
                                  .amax = activated_amax_.in(pass.slot),
                                  .unit = gated_unit(context_.shape)});
}

void SharedExpert::expand(const Pass& pass, Tensor x, Tensor amax) const {
  up_.forward(pass, {x, amax}, rows_of(before_act_, pass), {});
  if (gate_) gate_->forward(pass, {x}, rows_of(scores_, pass), {});
  if (!pass.again) activate(pass);
}

void SharedExpert::add_output(const Pass& pass, Tensor branch) const {
  const Tensor output = output_.tensor.row_slice(0, pass.tokens());
  down_.forward(pass, {rows_of(activated_, pass), activated_amax_.in(pass.slot)}, output, {});
  context_.device.add_shared(
      {.from = output, .gate = gate_ ? rows_of(scores_, pass) : Tensor{}, .to = branch});
}

void SharedExpert::backward(const Pass& pass, Tensor dbranch, Tensor dnormed) const {
  const Tensor before_act = rows_of(before_act_, pass);
  const Tensor activated = rows_of(activated_, pass);
  const Tensor dactivated = rows_of(dactivated_, pass);
  const Tensor dbefore_act = this->dbefore_act(pass);
  const bool again = activates_backward(again_, pass);
  down_.backward_input(pass, {dbranch, dbranch_amax_.in(pass.slot)}, dactivated);
  if (gate_) {
    // The gate's gradient needs the activations before the derivative is taken.
    if (again) {
      context_.device.swiglu_forward(
          {.x = before_act, .y = activated, .unit = gated_unit(context_.shape)});
    }
    // What is weighed is the same, on whichever side of the product of the weight's gradient.
    context_.device.add_shared_backward(
        {.x = activated, .dy = dactivated, .gate = rows_of(scores_, pass), .dgate = dscores(pass)});
  }
  context_.device.swiglu_backward({.dy = dactivated,
                                   .x = before_act,
                                   .dx = dbefore_act,
                                   .amax = dbefore_act_amax_.in(pass.slot),
                                   .y = again && !gate_ ? activated : Tensor(),
                                   .unit = gated_unit(context_.shape)});
  if (!leaves_weights_) down_.backward_weight(pass, activated, dbranch, {});
  if (gate_) gate_->backward_input(pass, {dscores(pass)}, dnormed, Epilogue::none, {}, true);
  up_.backward_input(pass, {dbefore_act, dbefore_act_amax_.in(pass.slot)}, dnormed, Epilogue::none,
                     {}, true);
}

void SharedExpert::backward_weights(const Pass& pass, Tensor x) const {
  up_.backward_weight(pass, x, dbefore_act(pass), {});
  if (gate_) gate_->backward_weight(pass, x, dscores(pass), {});
}

void SharedExpert::weight_grads(const Pass& pass, Tensor x, Tensor dbranch) const {
  Tensor activated = rows_of(activated_, pass);
  if (again_.mlp_activation) {
    activate(pass);
    if (gate_) {
      // As backward weighs them in place.
      const Tensor weighed = rows_of(dactivated_, pass);
      context_.device.fill(weighed, 0);
      context_.device.add_shared(
          {.from = activated, .gate = rows_of(scores_, pass), .to = weighed});
      activated = weighed;
    }
  }
  down_.backward_weight_later(pass, activated, dbranch, {});
  up_.backward_weight_later(pass, x, dbefore_act(pass), {});
  if (gate_) gate_->backward_weight(pass, x, dscores(pass), {});
}

}  // namespace mtl
