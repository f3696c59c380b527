#include "runtime/model/blocks.h"

namespace mtl {

MlpBlock::MlpBlock(const BlockContext& context, int64_t layer)
    : context_(context),
      layer_(layer),
      norm_(context, layer, "mlp.norm", layer_buffer(layer, "mlp")),
      up_(context, layer, "mlp.up"),
      down_(context, layer, "mlp.down"),
      before_gelu_(context.arena.get(layer_buffer(layer, "mlp.before_gelu"))),
      activated_(context.arena.get(layer_buffer(layer, "mlp.activated"))),
      output_(context.arena.get(layer + 1 < context.shape.layers
                                    ? layer_buffer(layer + 1, "attn.input")
                                    : std::string("head.input"))),
      branch_(context.arena.get("branch")),
      dresidual_(context.arena.find("dresidual")),
      dbefore_gelu_(context.arena.find("mlp.dbefore_gelu")),
      dnormed_(context.arena.find("mlp.dnormed")) {}

void MlpBlock::forward(const Pass& pass) const {
  const Tensor normed = norm_.forward(pass);
  const Tensor activated = rows_of(activated_, pass);
  const Tensor branch = rows_of(branch_, pass);
  up_.forward(normed, activated, up_.bias(), Epilogue::gelu, rows_of(before_gelu_, pass));
  down_.forward(activated, branch, {});
  context_.reduce(branch);
  context_.device.bias_dropout_add(branch, down_.bias(), norm_.input(pass), rows_of(output_, pass),
                                   dropout_for(context_, pass, layer_, DropoutSite::mlp_output),
                                   pass.first_row());
}

void MlpBlock::backward(const Pass& pass) const {
  const Tensor dresidual = rows_of(dresidual_, pass);
  const Tensor dbefore_gelu = rows_of(dbefore_gelu_, pass);
  const Tensor dnormed = rows_of(dnormed_, pass);

  Tensor dbranch = dresidual;
  if (Dropout dropout = dropout_for(context_, pass, layer_, DropoutSite::mlp_output)) {
    dbranch = rows_of(branch_, pass);
    context_.device.dropout_backward(dresidual, dbranch, dropout, pass.first_row());
  }
  down_.backward_input(dbranch, dbefore_gelu, Epilogue::gelu_grad, rows_of(before_gelu_, pass));
  down_.backward_weight(rows_of(activated_, pass), dbranch, pass.accumulate);
  up_.backward_input(dbefore_gelu, dnormed);
  context_.reduce(dnormed);
  up_.backward_weight(norm_.normed(pass), dbefore_gelu, pass.accumulate);
  norm_.backward(pass, dnormed, dresidual, true);
}

}  // namespace mtl
