#include "runtime/model/float8_operands.h"

#include <algorithm>

#include "runtime/plan/float8.h"

namespace mtl {

namespace {

Buffer number_of(const BlockContext& context, int64_t layer, const std::string& slot,
                 int64_t number) {
  if (!context.arena.find(layer_buffer(layer, slot.c_str()) + kFloat8Forward)) return {};
  const auto linear = std::find(kLinearSlots.begin(), kLinearSlots.end(), slot);
  Buffer all = context.arena.get(kFloat8Operands);
  const int64_t at = layer * linear_slots(context.shape) + (linear - kLinearSlots.begin());
  all.tensor = all.tensor.slice(kFloat8Numbers * at + number, 1);
  return all;
}

}  // namespace

Buffer float8_amax(const BlockContext& context, int64_t layer, const std::string& slot,
                   Float8Operand operand) {
  return number_of(context, layer, slot, 1 + static_cast<int64_t>(operand));
}

Buffer float8_x_inverse(const BlockContext& context, int64_t layer, const std::string& slot) {
  return number_of(context, layer, slot, 0);
}

Buffer float8_stream_amax(const BlockContext& context, int64_t layer, const std::string& slot,
                          Float8Operand operand) {
  const ModelShape& shape = context.shape;
  const bool changed = !shape.adds_as_it_is() || shape.norms_outputs();
  if (context.tp.sequence() || (operand == Float8Operand::dy && changed)) return {};
  return float8_amax(context, layer, slot, operand);
}

Buffer float8_branch_amax(const BlockContext& context, int64_t layer, const std::string& slot) {
  if (!context.shape.norms_outputs()) {
    return float8_stream_amax(context, layer, slot, Float8Operand::dy);
  }
  if (context.tp.sequence()) return {};
  return float8_amax(context, layer, slot, Float8Operand::dy);
}

}  // namespace mtl
