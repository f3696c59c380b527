// Expert parallelism: for how many rows a rank's experts have memory. Tokens choose their experts,
// and none is dropped, so a micro-batch may send one rank much more than its even share. Memory is
// planned for so many times the share (parallel.ep_room); a micro-batch that sends some rank more
// goes through its experts in turns of fewer tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/plan/model_shape.h"

namespace mtl {

// Of a token's rows, those that one rank can get at most, from all `ep` ranks' tokens of that
// number: it has experts / ep of them.
inline int64_t most_rows_of_token(const ModelShape& shape, int ep) {
  return ep * std::min(shape.experts_per_token, shape.experts / ep);
}

// Rows that fit, where each of `ep` ranks has `tokens` of a micro-batch; on one rank they are all
// that there are.
inline int64_t expert_rows(const ModelShape& shape, int64_t tokens, int ep, double room) {
  const int64_t share = tokens * shape.active_experts();
  if (ep == 1 || shape.experts == 0) return share;
  const int64_t token = most_rows_of_token(shape, ep);
  const auto wanted = static_cast<int64_t>(std::ceil(room * static_cast<double>(share)));
  return std::clamp(wanted, token, token * tokens);
}

// Tokens of a turn, of each rank, whose rows fit whatever they choose.
inline int64_t tokens_of_turn(const ModelShape& shape, int64_t rows, int ep) {
  return rows / most_rows_of_token(shape, ep);
}

}  // namespace mtl
