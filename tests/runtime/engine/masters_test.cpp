// Master weights in two halves, brought to the host and back in pieces.
#include "runtime/engine/masters.h"

#include <cstring>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "common/half.h"
#include "runtime/device/make_device.h"

namespace mtl::masters_test {

TEST_CASE("masters in halves are read as they were written, in parts and beyond one piece") {
  MadeDevice made = make_device({});
  Device& device = *made.device;
  constexpr int64_t kAll = 2'500'000;  // two pieces and a half
  std::vector<uint16_t> weights(kAll), rests(kAll);
  const Masters masters = {.rests = Tensor(rests.data(), DType::u16, {kAll}),
                           .weights = Tensor(weights.data(), DType::bf16, {kAll})};
  CHECK(masters.numel() == kAll);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(kAll), back(kAll);
  for (float& x : values) x = normal(random);
  masters.write(device, 0, kAll, values.data());
  int64_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) wrong += weights[i] != parts_of_f32(values[i]).bf16;
  CHECK(wrong == 0);
  masters.read(device, 0, kAll, back.data());
  CHECK(std::memcmp(back.data(), values.data(), sizeof(float) * kAll) == 0);

  // A part, over the border of two pieces of the whole.
  const float some[3] = {1.5f, -2.25f, 1.0f / 3};
  masters.write(device, (int64_t{1} << 20) - 1, 3, some);
  std::memcpy(values.data() + (1 << 20) - 1, some, sizeof some);
  masters.read(device, 0, kAll, back.data());
  CHECK(std::memcmp(back.data(), values.data(), sizeof(float) * kAll) == 0);
  float two[2] = {};
  masters.read(device, 1 << 20, 2, two);
  CHECK(two[0] == some[1]);
  CHECK(two[1] == some[2]);
}

}  // namespace mtl::masters_test
