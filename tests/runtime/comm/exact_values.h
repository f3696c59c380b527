// Tensors whose sum depends on the order of adding, and collectives on them, which are to have the
// exact bits of the definition.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/comm/communicator.h"

namespace mtl::test {

// Element `i` of what world rank `rank` contributes in operation `seed`: magnitudes from 2^-12 to
// 2^12, so that rounding differs with the order of the sum. They come again after kPeriod elements,
// a prime: no block, chunk or part that lands in a wrong place is away by that. All ranks and
// operations have the same kPeriod values in their order, and each begins with another one of them.
constexpr int64_t kPeriod = 65'537;
double value_of(uint64_t seed, int rank, int64_t i);

// Fills a tensor with this rank's values.
void fill(const Tensor& x, uint64_t seed, int rank);
// Whether element `i` has the exact bits of the reduction over `ranks` in their order.
bool is_reduced(const Tensor& x, int64_t i, uint64_t seed, std::span<const int> ranks, Reduce op);
// Whether element `i` has the exact bits of `rank`'s value.
bool is_of(const Tensor& x, int64_t i, uint64_t seed, int rank);
// Whether element `i` has those of `rank`'s element `source`.
bool is_of(const Tensor& x, int64_t i, uint64_t seed, int rank, int64_t source);

// One collective on `x` with arguments of this group; throws if an element's bits are wrong. The
// kinds `_apart` are out of place: x holds the whole and then the rank's part, n + 1 equal ranges.
// all_to_all has what is sent in the first half of x and what is received in the second; the pieces
// of `_v` and `_rounds` are of many lengths, some of none, and do not fill the halves.
enum class Kind {
  all_reduce_sum,
  all_reduce_max,
  reduce_scatter,
  reduce_scatter_apart,
  all_gather,
  all_gather_apart,
  broadcast,
  all_to_all,
  all_to_all_v,
  all_to_all_rounds,
  ring
};
void run_and_check(Communicator& group, std::span<const int> ranks, Kind kind, const Tensor& x,
                   uint64_t seed);

}  // namespace mtl::test
