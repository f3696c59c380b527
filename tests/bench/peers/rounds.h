// One round of the comparison (all_reduce.cpp): every contestant runs the same
// sizes the same number of times and rank 0 prints the mean time of each, in seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace bench {

struct Size {
  int64_t bytes;
  int times;
};
constexpr Size kSizes[] = {
    {4 << 10, 400}, {64 << 10, 150}, {1 << 20, 30}, {16 << 20, 4}, {64 << 20, 2}};

// all_reduce(data, numel) sums f32 in place.
template <class AllReduce>
void run_round(int rank, AllReduce all_reduce) {
  std::vector<float> data(kSizes[std::size(kSizes) - 1].bytes / 4, 1.0f);
  for (const Size& size : kSizes) {
    const int64_t numel = size.bytes / 4;
    for (int i = 0; i < 1 + size.times / 10; ++i) all_reduce(data.data(), numel);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < size.times; ++i) all_reduce(data.data(), numel);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (rank == 0) {
      std::printf("%lld %.9f\n", static_cast<long long>(size.bytes), time.count() / size.times);
    }
    for (float& x : data) x = 1.0f;  // sums of sums would overflow
  }
  std::fflush(stdout);
}

}  // namespace bench
