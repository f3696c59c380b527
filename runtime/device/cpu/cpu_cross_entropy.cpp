// Vocabulary-parallel cross-entropy: rows over threads, every row by one thread.
#include <cassert>
#include <cmath>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

namespace {

[[maybe_unused]] bool is_statistic(const Tensor& x, int64_t rows) {
  return x.dtype == DType::f32 && x.numel() == rows;
}

kernels::CrossEntropyRows rows_of(const CrossEntropy& args, int64_t begin, int64_t end) {
  const int64_t stride = args.logits.cols();
  assert(args.targets.dtype == DType::i32 && args.targets.numel() == args.logits.rows());
  assert(args.valid >= 0 && args.valid <= stride && args.first >= 0);
  // Each step uses only some of the statistics; the others may be absent.
  const auto at = [begin](const Tensor& x) { return x ? x.as<float>() + begin : nullptr; };
  return {.logits = args.logits.as<char>() + begin * stride * bytes_of(args.logits.dtype),
          .targets = args.targets.as<const int32_t>() + begin,
          .rows = end - begin,
          .stride = stride,
          .first = args.first,
          .valid = args.valid,
          .row_max = at(args.row_max),
          .sum_exp = at(args.sum_exp),
          .target_logit = at(args.target_logit),
          .cap = args.cap};
}

}  // namespace

void CpuDevice::cross_entropy_max(const CrossEntropy& args) {
  const Tensor& logits = args.logits;
  assert(is_statistic(args.row_max, logits.rows()));
  const auto kernel = typed(logits.dtype).cross_entropy_max;
  split_rows(logits.rows(), logits.cols(),
             [&](int64_t begin, int64_t end) { kernel(rows_of(args, begin, end)); });
}

void CpuDevice::cross_entropy_sum(const CrossEntropy& args) {
  const Tensor& logits = args.logits;
  assert(is_statistic(args.row_max, logits.rows()) && is_statistic(args.sum_exp, logits.rows()) &&
         is_statistic(args.target_logit, logits.rows()));
  const auto kernel = typed(logits.dtype).cross_entropy_sum;
  split_rows(logits.rows(), logits.cols(),
             [&](int64_t begin, int64_t end) { kernel(rows_of(args, begin, end)); });
}

void CpuDevice::cross_entropy_loss(const CrossEntropy& args) {
  const int64_t rows = args.targets.numel();
  assert(is_statistic(args.row_max, rows) && is_statistic(args.sum_exp, rows) &&
         is_statistic(args.target_logit, rows) && is_statistic(args.loss, rows));
  const auto* targets = args.targets.as<const int32_t>();
  for (int64_t i = 0; i < rows; ++i) {
    const double loss = static_cast<double>(args.row_max.as<float>()[i]) +
                        std::log(static_cast<double>(args.sum_exp.as<float>()[i])) -
                        static_cast<double>(args.target_logit.as<float>()[i]);
    args.loss.as<float>()[i] = targets[i] < 0 ? 0.0f : static_cast<float>(loss);
  }
}

void CpuDevice::cross_entropy_backward(const CrossEntropy& args, float scale) {
  const Tensor& logits = args.logits;
  assert(is_statistic(args.row_max, logits.rows()) && is_statistic(args.sum_exp, logits.rows()));
  const auto kernel = typed(logits.dtype).cross_entropy_backward;
  split_rows(logits.rows(), logits.cols(),
             [&](int64_t begin, int64_t end) { kernel(rows_of(args, begin, end), scale); });
}

}  // namespace mtl
