// What the ranks of a group must agree on before an operation moves anything, whatever carries it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/error.h"
#include "runtime/comm/communicator.h"

namespace mtl::comm {

enum class Op : uint8_t {
  none,
  join,
  allocate,
  barrier,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all
};
const char* name_of(Op op);

struct Operation {
  Op op = Op::none;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  int32_t root = 0;
  int64_t numel = 0;
  bool operator==(const Operation&) const = default;
};
std::string describe(const Operation& what);

// "the group of ranks 0, 2, 4"
std::string group_name(std::span<const int> ranks);

// `all`: what the ranks call as operation `number` of their group. Error "comm.mismatch" with what
// each calls, or nothing if they agree. `own`: the rank that tells it, in the group.
std::optional<Error> disagreement(uint64_t number, std::span<const int> ranks, int own,
                                  std::span<const Operation> all);
// The same for a message.
Error message_mismatch(int from, DType sent, int64_t sent_numel, int to, const Tensor& received);

// Names the `occurrence`-th group of these ranks, on all of them alike (FNV-1a); never 0.
uint64_t group_key(std::span<const int> ranks, uint64_t occurrence);

}  // namespace mtl::comm
