#include <fmt/format.h>

#include "runtime/model/blocks.h"

namespace mtl {

namespace {

std::string buffer(int64_t layer, const char* name) {
  return fmt::format("layer{}.{}", layer, name);
}

}  // namespace

MlpBlock::MlpBlock(const BlockContext& context, int64_t layer)
    : context_(context),
      layer_(layer),
      norm_(context, layer, "mlp.norm", buffer(layer, "mlp")),
      up_(context, layer, "mlp.up"),
      down_(context, layer, "mlp.down"),
      before_gelu_(context.arena.get(buffer(layer, "mlp.before_gelu"))),
      activated_(context.arena.get(buffer(layer, "mlp.activated"))),
      output_(context.arena.get(layer + 1 < context.shape.layers ? buffer(layer + 1, "attn.input")
                                                                 : std::string("head.input"))),
      branch_(context.arena.get("branch")),
      dresidual_(context.arena.find("dresidual")),
      dbefore_gelu_(context.arena.find("mlp.dbefore_gelu")),
      dnormed_(context.arena.find("mlp.dnormed")) {}

void MlpBlock::forward(const Pass& pass) const {
  const int64_t n = pass.tokens();
  const Tensor normed = norm_.forward(n);
  const Tensor activated = first_rows(activated_, n);
  const Tensor branch = first_rows(branch_, n);
  up_.forward(normed, activated, up_.bias(), Epilogue::gelu, first_rows(before_gelu_, n));
  down_.forward(activated, branch, {});
  context_.reduce(branch);
  context_.device.bias_dropout_add(branch, down_.bias(), norm_.input(n), first_rows(output_, n),
                                   dropout_for(context_, pass, layer_, DropoutSite::mlp_output),
                                   pass.first_row());
}

void MlpBlock::backward(const Pass& pass) const {
  const int64_t n = pass.tokens();
  const Tensor dresidual = first_rows(dresidual_, n);
  const Tensor dbefore_gelu = first_rows(dbefore_gelu_, n);
  const Tensor dnormed = first_rows(dnormed_, n);

  Tensor dbranch = dresidual;
  if (Dropout dropout = dropout_for(context_, pass, layer_, DropoutSite::mlp_output)) {
    dbranch = first_rows(branch_, n);
    context_.device.dropout_backward(dresidual, dbranch, dropout, pass.first_row());
  }
  down_.backward_input(dbranch, dbefore_gelu, Epilogue::gelu_grad, first_rows(before_gelu_, n));
  down_.backward_weight(first_rows(activated_, n), dbranch, pass.accumulate);
  up_.backward_input(dbefore_gelu, dnormed);
  context_.reduce(dnormed);
  up_.backward_weight(norm_.normed(n), dbefore_gelu, pass.accumulate);
  norm_.backward(dnormed, dresidual, true, pass.accumulate);
}

}  // namespace mtl
