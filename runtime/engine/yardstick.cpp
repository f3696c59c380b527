#include "runtime/engine/yardstick.h"

#include <array>

#include "runtime/plan/forecast/gpus.h"

namespace mtl {

double catalogue_peak(const MadeDevice& made, DType compute) {
  if (made.cuda == nullptr) return 0;
  const CudaDeviceFacts facts = made.cuda->facts(false).devices.at(static_cast<size_t>(made.index));
  const GpuModel* model = facts.mig ? nullptr : find_gpu(facts.name);
  return model != nullptr ? peak_flops(*model, compute) : 0;
}

Yardstick agree_on_yardstick(Communicator& all_ranks, double measured, double peak) {
  std::array<double, 3> sums = {measured, peak, peak > 0 ? 1.0 : 0.0};
  all_ranks.all_reduce(Tensor(sums.data(), DType::f64, {3}));
  const bool all_known = sums[2] == all_ranks.size();
  return {.flops = all_known ? sums[1] : sums[0], .is_peak = all_known, .measured = sums[0]};
}

}  // namespace mtl
