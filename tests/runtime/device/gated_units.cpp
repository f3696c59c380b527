// Gated units beside the plain ones (activation.cpp): every gate with an offset, a clamp, both and
// neither, of rows with weights and without, against a double-precision reference.
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

double gate_value(GateForm form, double x) {
  switch (form) {
    case GateForm::silu:
      return x / (1 + std::exp(-x));
    case GateForm::gelu_tanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / 3.141592653589793) * (x + 0.044715 * x * x * x)));
    case GateForm::quick_gelu:
      return x / (1 + std::exp(-1.702 * x));
  }
  return 0;
}
// By central differences: good to 1e-9 for values of order 1.
double gate_slope(GateForm form, double x) {
  const double h = 1e-5;
  return (gate_value(form, x + h) - gate_value(form, x - h)) / (2 * h);
}

struct GatedReference {
  std::vector<double> y, dx, dots;  // dots: of a row, y . dy
};
// `weights`: of the rows; empty: 1.
GatedReference gated_reference(const GatedUnit& unit, const Held& x, const Held& dy,
                               const std::vector<double>& weights) {
  const auto clamp = static_cast<double>(unit.clamp), offset = static_cast<double>(unit.offset);
  const int64_t rows = dy.view.rows(), width = dy.view.cols();
  GatedReference r;
  r.dx.resize(static_cast<size_t>(2 * rows * width));
  for (int64_t row = 0; row < rows; ++row) {
    double dot = 0;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t gate_at = row * 2 * width + i, up_at = gate_at + width;
      double gate = x[gate_at], up = x[up_at];
      const bool gate_clamped = clamp > 0 && gate > clamp;
      const bool up_clamped = clamp > 0 && std::abs(up) > clamp;
      if (gate_clamped) gate = clamp;
      if (up_clamped) up = std::copysign(clamp, up);
      up += offset;
      const double value = gate_value(unit.gate, gate), dvalue = dy[row * width + i];
      const double d = weights.empty() ? dvalue : dvalue * weights[static_cast<size_t>(row)];
      r.y.push_back(value * up);
      dot += r.y.back() * dvalue;
      r.dx[static_cast<size_t>(gate_at)] = gate_clamped ? 0 : d * up * gate_slope(unit.gate, gate);
      r.dx[static_cast<size_t>(up_at)] = up_clamped ? 0 : d * value;
    }
    r.dots.push_back(dot);
  }
  return r;
}

constexpr GateForm kGateForms[] = {GateForm::silu, GateForm::gelu_tanh, GateForm::quick_gelu};

double largest_magnitude(const Held& x) {
  double most = 0;
  for (const double value : x.values()) {
    if (std::isnan(value)) return value;
    most = std::max(most, std::abs(value));
  }
  return most;
}
bool same_number(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// Forward and backward of one unit: without weights and with, y made again and not.
void check_gated_unit(Device& device, const GatedUnit& unit, const Held& x, const Held& dy) {
  const DType type = x.view.dtype;
  const int64_t n = dy.view.rows(), f = dy.view.cols();
  Held y(type, {n, f}), again(type, {n, f}), dx(type, {n, 2 * f}), dx_alone(type, {n, 2 * f});
  Held amax(DType::f32, {1}), index(DType::i32, {n});
  Held weights(DType::f32, {n + 2}), dweights(DType::f32, {n + 2});
  device.fill(amax.view, 0);
  device.swiglu_forward({.x = x.view, .y = y.view, .amax = amax.view, .unit = unit});
  check_close(y, gated_reference(unit, x, dy, {}).y, 3e-5, "y");
  CHECK(same_number(amax[0], largest_magnitude(y)));
  std::vector<double> by_row;
  for (int64_t i = 0; i < n; ++i) {
    index.set(i, static_cast<double>(n - i));
    weights.set(n - i, i % 2 == 0 ? -0.75 : 1.25 + static_cast<double>(i));
    by_row.push_back(weights[n - i]);
  }
  device.fill(dweights.view, 7);
  for (const bool weigh : {false, true}) {
    INFO("weights " << weigh);
    SwigluBackward args = {.dy = dy.view, .x = x.view, .dx = dx_alone.view, .unit = unit};
    if (weigh) args.rows = {index.view, weights.view, dweights.view};
    device.swiglu_backward(args);
    const std::vector<uint8_t> dots_alone = dweights.bytes();
    device.fill(amax.view, 0);
    args.dx = dx.view;
    args.y = again.view;
    args.amax = amax.view;
    device.swiglu_backward(args);
    const GatedReference expected =
        gated_reference(unit, x, dy, weigh ? by_row : std::vector<double>());
    check_close(dx, expected.dx, 3e-5 * (weigh ? static_cast<double>(n) + 1 : 1), "dx");
    CHECK(dx.bytes() == dx_alone.bytes());
    CHECK(again.bytes() == y.bytes());
    CHECK(same_number(amax[0], largest_magnitude(dx)));
    CHECK(dweights.bytes() == dots_alone);
    std::vector<double> dots(static_cast<size_t>(n + 2), 7);
    for (int64_t i = 0; i < n && weigh; ++i) {
      dots[static_cast<size_t>(n - i)] = expected.dots[static_cast<size_t>(i)];
    }
    check_close(dweights, dots, 1e-4 * std::sqrt(static_cast<double>(f)), "dweights");
  }
}

}  // namespace

TEST_CASE("gated units with offset and clamp, forward and backward, against the reference") {
  const std::pair<int64_t, int64_t> matrices[] = {{1, 1}, {3, 2}, {5, 16}, {7, 17}, {2, 1032}};
  for_each_device([&](Device& device) {
    std::mt19937 random(33);
    for (const auto& [n, f] : matrices) {
      for (const DType type : kComputeTypes) {
        Held x(type, {n, 2 * f}), dy(type, {n, f});
        x.randomize(random, 1.5);
        dy.randomize(random);
        // Of 1.25 what is at the bound, just beyond it and far beyond, on both sides.
        const double at[] = {1.25, 1.265625, 9, -1.25, -1.265625, -9, -0.0};
        for (int64_t i = 0; i < std::min<int64_t>(f, 7) && f > 2; ++i) {
          x.set(i, at[i]);
          x.set(f + i, at[(i + 3) % 7]);
          x.set(2 * f + i, 0.5);
          x.set(3 * f + i, at[i]);
        }
        for (const GateForm gate : kGateForms) {
          for (const float offset : {0.0f, 1.0f}) {
            for (const float clamp : {0.0f, 1.25f}) {
              INFO(n << " x " << f << " type " << safetensors_name(type) << " gate "
                     << static_cast<int>(gate) << " offset " << offset << " clamp " << clamp);
              check_gated_unit(device, {gate, offset, clamp}, x, dy);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("gated units clamp infinities without a gradient, and a NaN stays") {
  for_each_device([](Device& device) {
    const double inf = INFINITY, nan = NAN;
    // Gate and up.
    const std::pair<double, double> at[] = {{inf, 1}, {1, inf},   {1, -inf}, {inf, -inf},
                                            {nan, 1}, {nan, inf}, {1, nan},  {inf, nan}};
    const int64_t f = 8;
    for (const DType type : kComputeTypes) {
      for (const GateForm gate : kGateForms) {
        INFO("type " << safetensors_name(type) << " gate " << static_cast<int>(gate));
        const GatedUnit unit = {gate, 1, 7};
        Held x(type, {1, 2 * f}), dy(type, {1, f}), y(type, {1, f}), dx(type, {1, 2 * f});
        Held amax(DType::f32, {1});
        device.fill(dy.view, 0.5f);
        device.fill(amax.view, 0);
        for (int64_t i = 0; i < f; ++i) {
          x.set(i, at[i].first);
          x.set(f + i, at[i].second);
        }
        device.swiglu_forward({.x = x.view, .y = y.view, .amax = amax.view, .unit = unit});
        device.swiglu_backward({.dy = dy.view, .x = x.view, .dx = dx.view, .unit = unit});
        CHECK(std::isnan(amax[0]));
        for (int64_t i = 0; i < f; ++i) {
          INFO("gate " << at[i].first << " up " << at[i].second);
          const bool gate_clamped = at[i].first > 7, up_clamped = std::abs(at[i].second) > 7;
          const double g = gate_clamped ? 7 : at[i].first;
          const double u = 1 + (up_clamped ? std::copysign(7, at[i].second) : at[i].second);
          const auto close = [&](double actual, double expected) {
            return std::isnan(expected)
                       ? std::isnan(actual)
                       : std::abs(actual - expected) <= 1e-5 + storage_error(type, expected);
          };
          CHECK(close(y[i], gate_value(gate, g) * u));
          CHECK(close(dx[i], gate_clamped ? 0 : 0.5 * u * gate_slope(gate, g)));
          CHECK(close(dx[f + i], up_clamped ? 0 : 0.5 * gate_value(gate, g)));
        }
      }
    }
  });
}

TEST_CASE("quick_gelu of large gates is its limit") {
  for_each_device([](Device& device) {
    const std::vector<double> gates = {-1e30, -1000, -100, -52, -50,  -20,  0,
                                       20,    50,    52,   100, 1000, 1e30, 3e38};
    const auto f = static_cast<int64_t>(gates.size());
    Held x(DType::f32, {1, 2 * f}), dy(DType::f32, {1, f}), y(DType::f32, {1, f});
    Held dx(DType::f32, {1, 2 * f});
    device.fill(x.view, 0.5f);
    device.fill(dy.view, 1);
    for (int64_t i = 0; i < f; ++i) x.set(i, gates[static_cast<size_t>(i)]);
    const GatedUnit unit = {.gate = GateForm::quick_gelu};
    device.swiglu_forward({.x = x.view, .y = y.view, .unit = unit});
    device.swiglu_backward({.dy = dy.view, .x = x.view, .dx = dx.view, .unit = unit});
    for (int64_t i = 0; i < f; ++i) {
      const double gate = x[i];
      const double value = gate < -400 ? 0 : gate_value(GateForm::quick_gelu, gate);
      const double slope = gate == 0 ? 0.5 : gate > 0 ? 1 : 0;
      INFO("gate " << gate);
      CHECK(std::abs(y[i] - 0.5 * value) <= 1e-6 + 1e-6 * std::abs(value));
      CHECK(std::abs(dx[i] - 0.5 * slope) <= 1e-6);
      CHECK(std::abs(dx[f + i] - value) <= 1e-6 + 1e-6 * std::abs(value));
    }
  });
}

}  // namespace mtl::test
