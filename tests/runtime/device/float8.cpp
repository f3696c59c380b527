// FP8: every code both ways, rounding against a search over all codes, amax and quantize on every
// device, bit for bit, and products against double precision.
#include "common/float8.h"

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/error.h"
#include "runtime/device/ops_test.h"
#include "support/gelu.h"

namespace mtl::test {

namespace {

constexpr DType kFloat8[] = {DType::f8_e4m3, DType::f8_e5m2};

float largest_of(DType type) {
  return type == DType::f8_e4m3 ? 448.0f : 57344.0f;
}
uint8_t code_of(DType type, float x) {
  return type == DType::f8_e4m3 ? f32_to_e4m3(x) : f32_to_e5m2(x);
}
float value_of(DType type, uint8_t code) {
  return type == DType::f8_e4m3 ? e4m3_to_f32(code) : e5m2_to_f32(code);
}
bool is_nan(DType type, uint8_t code) {
  return std::isnan(float8_value(type, code));
}

// What op_arguments.h says of a scale, in f32 as every device computes it.
float scale_of(DType type, float amax) {
  if (!(amax > 0) || std::isinf(amax)) return 1;
  return std::min(largest_of(type) / amax, 0x1p126f);
}

// Quantizes x on the device in all three ways and looks at every byte.
void check_quantize(Device& device, const Held& x, DType type) {
  const int64_t rows = x.view.rows(), cols = x.view.cols();
  Held amax(DType::f32, {1});
  device.amax(x.view, amax.view);
  float largest = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) largest = NAN;
    if (!std::isnan(largest)) largest = std::max(largest, static_cast<float>(std::abs(x[i])));
  }
  const float found = *amax.view.as<float>();
  CHECK((std::isnan(largest) ? std::isnan(found) : found == largest));
  const float scale = scale_of(type, largest);
  // 1: as it is, 2: transposed, 4: with longer rows then.
  for (const int ways : {1, 2, 3, 6, 7}) {
    const int64_t length = ways & 4 ? (rows + 15) / 16 * 16 : rows;
    Held y(type, {rows, cols}), transposed(type, {cols, length}), inverse(DType::f32, {1});
    std::memset(transposed.view.data, 0x55, static_cast<size_t>(cols * length));
    device.quantize({.x = x.view,
                     .amax = amax.view,
                     .y = ways & 1 ? y.view : Tensor(),
                     .transposed = ways & 2 ? transposed.view : Tensor(),
                     .inverse = inverse.view});
    if (std::isfinite(largest)) {
      CHECK(*inverse.view.as<float>() == 1.0f / scale);
    } else {
      CHECK(std::isnan(*inverse.view.as<float>()));
    }
    int64_t wrong = 0;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const float scaled = static_cast<float>(x[i * cols + j]) * scale;
        const uint8_t expected = nearest_float8(type, static_cast<double>(scaled));
        const auto differs = [&](uint8_t code) {
          return is_nan(type, expected) ? !is_nan(type, code) : code != expected;
        };
        if (ways & 1) wrong += differs(y.view.as<uint8_t>()[i * cols + j]);
        if (ways & 2) wrong += differs(transposed.view.as<uint8_t>()[j * length + i]);
      }
    }
    for (int64_t j = 0; j < cols && ways & 2; ++j) {
      for (int64_t i = rows; i < length; ++i) {
        wrong += transposed.view.as<uint8_t>()[j * length + i] != 0;
      }
    }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("fp8: every code is the value that the format says and comes back") {
  for (const DType type : kFloat8) {
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<uint8_t>(code);
      const double expected = float8_value(type, byte);
      const float got = value_of(type, byte);
      CAPTURE(code);
      if (std::isnan(expected)) {
        CHECK(std::isnan(got));
        CHECK(is_nan(type, code_of(type, got)));
      } else {
        CHECK(static_cast<double>(got) == expected);
        CHECK(std::signbit(got) == std::signbit(expected));
        // Infinities are saturated.
        CHECK(code_of(type, got) == (std::isinf(got) ? (byte & 0x80) + 0x7b : code));
      }
    }
  }
  CHECK(value_of(DType::f8_e4m3, 0x7e) == 448.0f);
  CHECK(value_of(DType::f8_e4m3, 0x01) == 0x1p-9f);
  CHECK(value_of(DType::f8_e5m2, 0x7b) == 57344.0f);
  CHECK(value_of(DType::f8_e5m2, 0x01) == 0x1p-16f);
}

TEST_CASE("fp8: rounding is to nearest even and saturates") {
  std::mt19937 random(3);
  for (const DType type : kFloat8) {
    std::vector<float> values = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-45f};
    const uint8_t largest = type == DType::f8_e4m3 ? 0x7e : 0x7b;
    for (uint8_t code = 0; code < largest; ++code) {
      const auto low = value_of(type, code), high = value_of(type, code + 1);
      const float middle = low + (high - low) / 2;
      for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
        values.push_back(x);
        values.push_back(-x);
      }
    }
    // Half a step above the largest, where an infinity would begin if there were one.
    for (const float x : {463.9f, 464.0f, 480.0f, 61439.0f, 61440.0f, 65536.0f})
      values.push_back(x);
    for (int i = 0; i < 20000; ++i) {
      values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
      values.push_back(std::ldexp(static_cast<float>(random() % 4096) - 2048,
                                  static_cast<int>(random() % 40) - 30));
    }
    int64_t wrong = 0;
    for (const float x : values) {
      const uint8_t expected = nearest_float8(type, static_cast<double>(x));
      const uint8_t got = code_of(type, x);
      wrong += is_nan(type, expected) ? !is_nan(type, got) : got != expected;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("fp8: amax and quantize of every shape and type") {
  const int64_t shapes[][2] = {{1, 1}, {3, 5}, {16, 16}, {64, 64}, {65, 63}, {130, 200}, {48, 272}};
  for_each_device([&](Device& device) {
    std::mt19937 random(4);
    for (const auto& [rows, cols] : shapes) {
      for (const DType type : kComputeTypes) {
        for (const DType to : kFloat8) {
          INFO(rows << " x " << cols << " of " << safetensors_name(type) << " to "
                    << safetensors_name(to));
          Held x(type, {rows, cols});
          // So wide that the small ones become subnormal codes and 0.
          x.randomize(random, 0.02);
          for (int64_t i = 0; i < x.size(); i += 3) x.set(i, x[i] * 1e-3);
          x.set(x.size() / 2, -1.75);
          check_quantize(device, x, to);
        }
      }
    }
  });
}

TEST_CASE("fp8: amax of one large value anywhere") {
  for_each_device([&](Device& device) {
    for (const DType type : kComputeTypes) {
      const int64_t n = 70000;
      Held x(type, {n}), amax(DType::f32, {1});
      for (const int64_t at : {int64_t{0}, int64_t{4097}, int64_t{69998}, n - 1}) {
        x.set(at, -3);
        device.amax(x.view, amax.view);
        CHECK(*amax.view.as<float>() == 3.0f);
        x.set(at, 0);
      }
      device.amax(x.view, amax.view);
      CHECK(*amax.view.as<float>() == 0.0f);
    }
  });
}

TEST_CASE("fp8: zeros and tiny and huge tensors and those that are not finite") {
  for_each_device([&](Device& device) {
    std::mt19937 random(5);
    for (const DType to : kFloat8) {
      Held x(DType::f32, {32, 48});
      check_quantize(device, x, to);
      for (const double size : {1e-44, 1e-38, 1e-36, 1e-30, 1e30, 3e38}) {
        for (int64_t i = 0; i < x.size(); ++i) {
          x.set(i, size * (static_cast<double>(random() % 2001) / 1000 - 1));
        }
        check_quantize(device, x, to);
      }
      for (const double odd : {static_cast<double>(INFINITY), -static_cast<double>(INFINITY),
                               static_cast<double>(NAN)}) {
        x.randomize(random);
        x.set(100, odd);
        check_quantize(device, x, to);
      }
    }
  });
}

namespace {

struct Made {
  std::string op;
  std::unique_ptr<Held> written;
};
std::unique_ptr<Held> held(DType type, int64_t rows, int64_t cols) {
  return std::make_unique<Held>(type, std::initializer_list<int64_t>{rows, cols});
}
// What the ops of an FP8 layer write; amax(i): where the largest magnitude of the i-th goes, empty:
// nowhere.
std::vector<Made> operands(Device& device, DType type, int64_t rows, int64_t cols, double odd,
                           const std::function<Tensor(size_t)>& amax) {
  std::mt19937 random(static_cast<unsigned>(rows * 37 + cols));
  std::vector<Made> made;
  for (const bool rms : {false, true}) {
    Held x(type, {rows, cols}), dy(type, {rows, cols}), gamma(type, {cols}), beta(type, {cols});
    Held mean(DType::f32, {rows}), rstd(DType::f32, {rows}), dgamma(DType::f32, {cols});
    for (Held* any : {&x, &dy, &gamma, &beta}) any->randomize(random);
    // In the last pack of the last row.
    dy.set(dy.size() - 1, odd);
    beta.set(cols - 1, odd);
    auto y = held(type, rows, cols);
    device.layernorm_forward({.x = x.view,
                              .gamma = gamma.view,
                              .beta = beta.view,
                              .y = y->view,
                              .mean = rms ? Tensor() : mean.view,
                              .rstd = rstd.view,
                              .amax = amax(made.size())});
    made.push_back({"norm", std::move(y)});
    for (const bool add : {false, true}) {
      auto dx = held(type, rows, cols);
      dx->randomize(random, 5);
      device.layernorm_backward({.dy = dy.view,
                                 .x = x.view,
                                 .gamma = gamma.view,
                                 .mean = rms ? Tensor() : mean.view,
                                 .rstd = rstd.view,
                                 .dx = dx->view,
                                 .dgamma = dgamma.view,
                                 .dbeta = {},
                                 .add_to_dx = add,
                                 .amax = amax(made.size())});
      made.push_back({"norm backward", std::move(dx)});
    }
  }
  Held x(type, {rows, 2 * cols}), dy(type, {rows, cols});
  auto y = held(type, rows, cols), dx = held(type, rows, 2 * cols);
  x.randomize(random);
  dy.randomize(random);
  x.set(x.size() - 1, odd);
  device.swiglu_forward({.x = x.view, .y = y->view, .amax = amax(made.size())});
  made.push_back({"swiglu", std::move(y)});
  device.swiglu_backward({.dy = dy.view, .x = x.view, .dx = dx->view, .amax = amax(made.size())});
  made.push_back({"swiglu backward", std::move(dx)});
  for (const GatedUnit& unit : {GatedUnit{.gate = GateForm::gelu_tanh},
                                {.gate = GateForm::quick_gelu, .offset = 1, .clamp = 0.75f}}) {
    auto gated = held(type, rows, cols), back = held(type, rows, 2 * cols);
    device.swiglu_forward({.x = x.view, .y = gated->view, .amax = amax(made.size()), .unit = unit});
    made.push_back({"gated unit", std::move(gated)});
    device.swiglu_backward(
        {.dy = dy.view, .x = x.view, .dx = back->view, .amax = amax(made.size()), .unit = unit});
    made.push_back({"gated unit backward", std::move(back)});
  }
  // What backward writes beside dx is none of its values.
  Held index(DType::i32, {rows}), weights(DType::f32, {rows}), dweights(DType::f32, {rows});
  for (int64_t i = 0; i < rows; ++i) index.set(i, static_cast<double>(i));
  device.fill(weights.view, 0.25f);
  Held remade(type, {rows, cols});
  auto weighed = held(type, rows, 2 * cols);
  device.swiglu_backward({.dy = dy.view,
                          .x = x.view,
                          .dx = weighed->view,
                          .amax = amax(made.size()),
                          .y = remade.view,
                          .rows = {index.view, weights.view, dweights.view}});
  made.push_back({"swiglu backward of rows with weights", std::move(weighed)});
  return made;
}

// As numbers, and a NaN is a NaN.
bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

}  // namespace

TEST_CASE("fp8: an op leaves the largest magnitude that a pass over its result finds") {
  // Every way that norms go through a row on a GPU: in packs or not, by warp or block, held or read
  // again, with 4 and with 8 elements to a pack.
  const int64_t shapes[][2] = {{1, 1},    {33, 5},   {9, 48},  {2, 1031},
                               {2, 1032}, {2, 4104}, {1, 8200}};
  for_each_device([&](Device& device) {
    for (const auto& [rows, cols] : shapes) {
      for (const DType type : kComputeTypes) {
        std::optional<AlignedTensors> aligned;
        if (cols % 8 == 0) aligned.emplace();
        for (const double odd : {0.5, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
          const bool wide = cols > 100;
          if (wide && (odd != 0.5 || type == DType::f16)) continue;
          INFO(rows << " x " << cols << " of " << safetensors_name(type) << " with " << odd);
          Held amax(DType::f32, {13}, 0), found(DType::f32, {1});
          const auto plain =
              operands(device, type, rows, cols, odd, [](size_t) { return Tensor(); });
          REQUIRE(plain.size() == 13);
          for (const float before : {0.0f, 0.25f, 1e30f, NAN}) {
            if (wide && before != 0) continue;
            device.fill(amax.view, before);
            const auto made = operands(device, type, rows, cols, odd, [&](size_t i) {
              return amax.view.slice(static_cast<int64_t>(i), 1);
            });
            for (size_t i = 0; i < made.size(); ++i) {
              INFO(made[i].op << ", where there was " << before);
              device.amax(made[i].written->view, found.view);
              const double largest =
                  std::isnan(before) ? before : std::max(found[0], static_cast<double>(before));
              CHECK(same(amax[static_cast<int64_t>(i)], std::isnan(found[0]) ? found[0] : largest));
              CHECK(std::memcmp(made[i].written->view.data, plain[i].written->view.data,
                                static_cast<size_t>(plain[i].written->view.bytes())) == 0);
            }
          }
        }
      }
    }
  });
}

namespace {

struct Product {
  int64_t m, n, k;
  DType a = DType::f8_e4m3, b = DType::f8_e4m3, c = DType::bf16;
  bool accumulate = false;
  int bias = 0;  // 1 f32, 2 bf16
  Epilogue epilogue = Epilogue::none;
};

void check_product(Device& device, const Product& p) {
  INFO(p.m << " x " << p.n << " x " << p.k << ", " << safetensors_name(p.a) << " by "
           << safetensors_name(p.b) << " into " << safetensors_name(p.c) << ", accumulate "
           << p.accumulate << ", bias " << p.bias << ", epilogue " << static_cast<int>(p.epilogue));
  std::mt19937 random(static_cast<unsigned>(p.m * 131 + p.n * 17 + p.k));
  // Where FP8 lies on a GPU: cuBLASLt wants 16 bytes.
  Held a(p.a, {p.m, p.k}, 0), b(p.b, {p.n, p.k}, 0), c(p.c, {p.m, p.n}, 0), aux(p.c, {p.m, p.n}, 0);
  Held bias(p.bias == 2 ? DType::bf16 : DType::f32, {p.n}, 0);
  Held scale_a(DType::f32, {1}, 0), scale_b(DType::f32, {1}, 0);
  a.randomize(random, 100);
  b.randomize(random, 100);
  c.randomize(random);
  aux.randomize(random);
  bias.randomize(random);
  scale_a.set(0, 0.0123);
  scale_b.set(0, 0.0077);
  const std::vector<double> before = c.values(), aux_before = aux.values();
  Matmul args{.a = a.view, .b = b.view, .c = c.view, .transpose_b = true};
  args.accumulate = p.accumulate;
  args.epilogue = p.epilogue;
  if (p.bias != 0) args.bias = bias.view;
  if (p.epilogue != Epilogue::none) args.aux = aux.view;
  args.scale_a = scale_a.view;
  args.scale_b = scale_b.view;
  device.matmul(args);
  const std::vector<double> wide_a = a.values(), wide_b = b.values();
  double worst = 0;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const auto at = static_cast<size_t>(i * p.n + j);
      const double *row = wide_a.data() + i * p.k, *column = wide_b.data() + j * p.k;
      double sum = 0, size = 0;
      for (int64_t q = 0; q < p.k; ++q) {
        sum += row[q] * column[q];
        size += std::abs(row[q] * column[q]);
      }
      sum *= scale_a[0] * scale_b[0];
      size *= scale_a[0] * scale_b[0];
      const double product = sum;
      if (p.accumulate) sum += before[at], size += std::abs(before[at]);
      if (p.bias != 0) sum += bias[j], size += std::abs(bias[j]);
      // Sums of k products in f32, in any order. Hopper's tensor cores keep 13 bits behind the
      // leading one of the products of an instruction, whatever becomes of the sums then
      // (arXiv 2412.19437, 3.3.2).
      const double summed = gpu_under_test() != nullptr
                                ? size * 0x1p-11
                                : 2 * static_cast<double>(p.k + 8) * 0x1p-24 * size;
      double expected = sum, allowed = summed + storage_error(p.c, sum) + 1e-30;
      if (gpu_under_test() != nullptr && p.accumulate) allowed += storage_error(p.c, product);
      if (p.epilogue == Epilogue::gelu) {
        worst = std::max(worst, std::abs(aux[i * p.n + j] - sum) / allowed);
        expected = gelu(aux[i * p.n + j]);
        allowed = storage_error(p.c, expected) + 0x1p-18 * (std::abs(aux[i * p.n + j]) + 1e-10);
      } else if (p.epilogue == Epilogue::gelu_grad) {
        const double slope = gelu_slope(aux_before[at]);
        expected = sum * slope;
        allowed = (summed + storage_error(p.c, sum)) * std::abs(slope) +
                  storage_error(p.c, expected) + 0x1p-18 * std::abs(sum) + 1e-30;
        if (gpu_under_test() != nullptr && p.c != DType::f32) {
          allowed += hardware_slope_error(aux_before[at]) * std::abs(sum);
        }
      }
      worst = std::max(worst, std::abs(c[i * p.n + j] - expected) / allowed);
    }
  }
  CHECK(worst <= 1.0);
}

}  // namespace

TEST_CASE("fp8: products of every pair of types with bias and GELU") {
  for_each_device([](Device& device) {
    const DType e4m3 = DType::f8_e4m3, e5m2 = DType::f8_e5m2;
    // Wider than what the CPU takes at a time.
    check_product(device, {16, 4096, 528, e4m3, e4m3, DType::bf16, true, 2});
    check_product(device, {16, 528, 4096, e5m2, e4m3, DType::f32, true, 1});
    // Rows of A as many as there are: an expert's.
    for (const auto& [m, n, k] : {std::tuple(16, 16, 16), std::tuple(48, 32, 144),
                                  std::tuple(37, 32, 48), std::tuple(1, 48, 16)}) {
      for (const auto& [a, b] :
           {std::pair(e4m3, e4m3), std::pair(e5m2, e4m3), std::pair(e4m3, e5m2)}) {
        for (const DType c : {DType::bf16, DType::f32}) {
          check_product(device, {m, n, k, a, b, c});
          check_product(device, {m, n, k, a, b, c, true});
          for (const int bias : {1, 2}) check_product(device, {m, n, k, a, b, c, false, bias});
        }
      }
      for (const int bias : {0, 2}) {
        check_product(device, {m, n, k, e4m3, e4m3, DType::bf16, false, bias, Epilogue::gelu});
      }
      check_product(device, {m, n, k, e5m2, e4m3, DType::bf16, false, 0, Epilogue::gelu_grad});
    }
  });
}

TEST_CASE("fp8: a scale that is no number reaches the product") {
  for_each_device([](Device& device) {
    Held a(DType::f8_e4m3, {16, 16}, 0), c(DType::bf16, {16, 16}, 0), scale(DType::f32, {1}, 0);
    scale.set(0, NAN);
    device.matmul({.a = a.view,
                   .b = a.view,
                   .c = c.view,
                   .transpose_b = true,
                   .scale_a = scale.view,
                   .scale_b = scale.view});
    CHECK(std::isnan(c[0]));
    CHECK(std::isnan(c[255]));
  });
}

TEST_CASE("fp8: products that no GPU would take are refused") {
  for_each_device([](Device& device) {
    Held a(DType::f8_e4m3, {16, 32}, 0), b(DType::f8_e4m3, {48, 32}, 0),
        e(DType::f8_e5m2, {48, 32}, 0);
    Held c(DType::bf16, {16, 48}, 0), scale(DType::f32, {1}, 0);
    scale.set(0, 1);
    const Matmul good{.a = a.view,
                      .b = b.view,
                      .c = c.view,
                      .transpose_b = true,
                      .scale_a = scale.view,
                      .scale_b = scale.view};
    CHECK_NOTHROW(device.matmul(good));
    const auto refused = [&](auto change) {
      Matmul args = good;
      change(args);
      CHECK_THROWS_AS(device.matmul(args), Error);
    };
    refused([&](Matmul& m) { m.scale_b = {}; });
    Held scales(DType::f32, {2}, 0);
    refused([&](Matmul& m) { m.scale_b = scales.view.slice(1, 1); });
    refused([&](Matmul& m) { m.a.dtype = m.b.dtype = DType::f8_e5m2; });
    refused([&](Matmul& m) { m.a.dtype = DType::bf16; });
    refused([&](Matmul& m) { m.c.dtype = DType::f16; });
    // 40 rows of B, and so of a row of C.
    refused([&](Matmul& m) {
      m.b.dims[0] = 40;
      m.c.dims[1] = 40;
    });
    refused([&](Matmul& m) {
      m.transpose_b = false;
      m.b.dims = {32, 48};
    });
  });
}

}  // namespace mtl::test
