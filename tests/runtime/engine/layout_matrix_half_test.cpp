// The layout matrix (layout_matrix.h) in half precision, within bounds that follow from rounding.
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_half_test {

namespace {

// How far TP may move a run whose activations are rounded to `unit_roundoff` (2^-8 in bf16, 2^-11
// in fp16).
//
// One rank rounds the output of a matmul once. With TP each rank rounds its part of the sum, and
// the all-reduce, which adds in f32, rounds the sum: three roundings that one of the two runs has
// and the other has not. That happens twice per layer forward, twice backward, and once behind the
// head. N. J. Higham, Accuracy and Stability of Numerical Algorithms (2nd ed., sections 3.1, 4.2):
// errors of a chain of n roundings are within about n u; rounding errors being as good as
// independent, within about sqrt(n) u (section 2.8; Higham and Mary, SIAM J. Sci. Comput. 41,
// 2019).
//  - A gradient lies behind n = 3 (4 L + 1) roundings: sqrt(n) u, of its norm.
//  - The first loss lies behind n = 6 L. It is a mean over T tokens, whose errors average: the
//    logits move by sqrt(n / T) u of their size, which is init_std sqrt(hidden) after the last norm
//    and a normal initialisation, and the loss, ln(vocabulary), moves by as much.
//  - For the later losses, of TP and of DP, nothing is derived: the same with logits of size one
//    stands for what the updates add.
// These are estimates and no proofs: roundings that follow on different numbers also differ and are
// not counted, against which stands that most are far smaller than u. Over the layouts below the
// largest that was seen is half of the first, a fifth of the second, an eighth of the third.
// DP adds gradients in f32, so that its first step is as in fp32; only then weights may round to
// other neighbours. CP's products have fewer rows, for which oneDNN may sum k in other blocks (on a
// CPU with AMX it does): two orders of an f32 sum of k differ by about sqrt(k) 2^-24 of it, so that
// one in u / (sqrt(k) 2^-24) of them rounds to the other neighbour, u away. That is a root mean
// square of sqrt(sqrt(k) 2^-24 / u) u, behind 4 L + 1 products.
Bounds half_bounds(const TrainSpec& spec, double unit_roundoff, const Layout& layout) {
  const auto layers = static_cast<double>(spec.model.layers);
  const auto tokens = static_cast<double>(spec.train.global_batch * spec.train.seq_len);
  const double loss = std::sqrt(6 * layers / tokens) * unit_roundoff / std::log(kVocab);
  if (layout.tp == 1 && layout.cp > 1) {
    const double k = 4.0 * static_cast<double>(spec.model.hidden);  // the longest
    const double flips = std::sqrt(k) * 0x1p-24 / unit_roundoff;
    return {kFp32.first_loss, std::sqrt(flips * (4 * layers + 1)) * unit_roundoff, loss};
  }
  if (layout.tp == 1) return {kFp32.first_loss, kFp32.first_gradient, loss};
  const double logits = spec.init.std * std::sqrt(static_cast<double>(spec.model.hidden));
  return {logits * loss, std::sqrt(3 * (4 * layers + 1)) * unit_roundoff, loss};
}

}  // namespace

TEST_CASE("layout matrix: bf16 layouts keep their bits or stay within the rounding of bf16") {
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 4", {.pp = 4}},
        {"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
        {"pp 2 gpipe", {.pp = 2}, gpipe},
        {"pp 4 zb-h1", {.pp = 4}, zb_h1},
        {"selective recompute", {}, selective},
        {"full recompute in pp 2", {.pp = 2}, full}}},
      {{.tp = 2}, false, {{"pp 2", {.tp = 2, .pp = 2}}}},
      {{.tp = 2},
       true,
       {{"pp 2 virtual 2", {.tp = 2, .pp = 2, .virtual_stages = 2}},
        {"pp 2 zb-h1", {.tp = 2, .pp = 2}, zb_h1},
        {"full recompute", {.tp = 2}, full}}},
      {{.tp = 4}, false, {}},
      {{.dp = 2},
       false,
       {{"zero 0", {.dp = 2}, zero0}, {"pp 2 small buckets", {.dp = 2, .pp = 2}, small_buckets}}},
      {{.tp = 2, .dp = 2}, true, {{"zero 0", {.tp = 2, .dp = 2}, zero0}}},
      {{.cp = 2}, false, {{"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2, .cp = 2}}}},
  };
  for (const Model model : kMainModels) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
    spec.precision.dtype = "bf16";
    check_rows(spec, rows, true,
               [&](const Row& row) { return half_bounds(spec, 0x1p-8, row.base); });
  }
}

TEST_CASE("layout matrix: fp16 with a growing loss scale does the same") {
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
        {"pp 2 zb-h1", {.pp = 2}, zb_h1},
        {"full recompute", {}, full}}},
      {{.dp = 2}, false, {{"zero 0", {.dp = 2}, zero0}}},
      {{.tp = 2}, true, {}},
  };
  for (const Model model : kMainModels) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
    spec.precision.dtype = "fp16";
    spec.precision.loss_scale.window = 2;
    check_rows(spec, rows, true,
               [&](const Row& row) { return half_bounds(spec, 0x1p-11, row.base); });
  }
}

}  // namespace layout_matrix_half_test
