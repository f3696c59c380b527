// What becomes of a Matmul on a GPU, executed literally on the host: cuBLASLt's part by
// support/lt_product.h, the steps behind it by their very kernels (run by support/gpu_on_host.h).
// Proves every index, leading dimension and transposition of the plans.
#include <cmath>
#include <tuple>

#include "runtime/device/cuda/matmul_plan.h"
#include "runtime/device/ops_test.h"
#include "support/gelu.h"
#include "support/lt_product.h"

using namespace mtl;
using namespace mtl::test;
using cuda::Fuse;
using cuda::LtEpilogue;
using cuda::LtGemm;
using cuda::MatmulPlan;

namespace {

class HostSteps final : public cuda::MatmulSteps {
 public:
  void gemm(const LtGemm& g, const cuda::LtOperands& operands) override {
    CHECK(g.fast_sums == (is_float8(g.first_type) && g.first_type == g.second_type));
    ++products;
    multiply(g, operands);
  }
  Tensor wide(int64_t rows, int64_t columns) override {
    wide_.assign(static_cast<size_t>(rows * columns), NAN);
    return Tensor(wide_.data(), DType::f32, {rows, columns});
  }
  void add_bias(Tensor from, Tensor bias, Tensor to, bool accumulate) override {
    cuda_.add_bias(from, bias, to, accumulate);
  }
  void gelu_forward(Tensor x, Tensor y) override { cuda_.gelu_forward(x, y); }
  void gelu_backward(Tensor dy, Tensor aux) override { cuda_.gelu_backward(dy, aux); }
  void add(Tensor x, Tensor y) override { cuda_.add(x, y); }

  int products = 0;

 private:
  EmulatedCuda cuda_;
  std::vector<float> wide_;
};

// FP8: `in` is A's type, `b` B's.
struct Form {
  int64_t m, n, k;
  bool ta = false, tb = false, accumulate = false;
  DType in = DType::f32, out = DType::f32;
  int bias = 0;  // 0 none, 1 f32, 2 16 bits
  Epilogue epilogue = Epilogue::none;
  DType b = DType::u8;  // u8: as `in`
  bool gelu_once = false;
  DType type_of_b() const { return b == DType::u8 ? in : b; }
};

// Tensors of a form, random, with a Matmul over them; `offset` elements off a multiple of 16 bytes.
struct Product {
  explicit Product(const Form& f, int64_t offset = 0)
      : random(static_cast<unsigned>(f.m * 131 + f.n * 17 + f.k)),
        a(f.in, {f.ta ? f.k : f.m, f.ta ? f.m : f.k}, offset),
        b(f.type_of_b(), {f.tb ? f.n : f.k, f.tb ? f.k : f.n}, offset),
        c(f.out, {f.m, f.n}, offset),
        aux(f.out, {f.m, f.n}, offset),
        scale_a(DType::f32, {1}, 0),
        scale_b(DType::f32, {1}, 0),
        bias(f.bias == 2 ? (f.in == DType::f16 ? DType::f16 : DType::bf16) : DType::f32, {f.n},
             offset) {
    a.randomize(random);
    b.randomize(random);
    c.randomize(random);
    aux.randomize(random, 2);
    bias.randomize(random);
    args.a = a.view;
    args.b = b.view;
    args.c = c.view;
    args.transpose_a = f.ta;
    args.transpose_b = f.tb;
    args.accumulate = f.accumulate;
    if (f.bias != 0) args.bias = bias.view;
    args.epilogue = f.epilogue;
    args.gelu_once = f.gelu_once;
    if (f.epilogue != Epilogue::none) args.aux = aux.view;
    scale_a.set(0, 0.7);
    scale_b.set(0, 1.3);
    if (!is_float8(f.in)) return;
    args.scale_a = scale_a.view;
    args.scale_b = scale_b.view;
  }
  // What a product is multiplied by.
  double scale() const { return args.scale_a ? scale_a[0] * scale_b[0] : 1; }
  std::mt19937 random;
  Held a, b, c, aux, scale_a, scale_b, bias;
  Matmul args;
};

// Of one rounded value.
double rounding(DType dtype, double value) {
  return storage_error(dtype, value) + std::abs(value) * 0x1p-23;
}

void check_plan(const Form& f, Fuse fuse, int64_t offset) {
  CAPTURE(offset);
  CAPTURE(f.m);
  CAPTURE(f.n);
  CAPTURE(f.k);
  CAPTURE(f.ta);
  CAPTURE(f.tb);
  CAPTURE(f.accumulate);
  CAPTURE(static_cast<int>(f.in));
  CAPTURE(static_cast<int>(f.out));
  CAPTURE(f.bias);
  CAPTURE(static_cast<int>(f.epilogue));
  CAPTURE(static_cast<int>(fuse));
  Product p(f, offset);
  const std::vector<double> before = p.c.values(), aux_before = p.aux.values();
  REQUIRE(cuda::misfit(p.args).empty());
  const MatmulPlan plan = cuda::plan_matmul(p.args, fuse);
  HostSteps steps;
  cuda::run_matmul(plan, p.args, steps);

  double worst = 0;
  for (int64_t i = 0; i < f.m; ++i) {
    for (int64_t j = 0; j < f.n; ++j) {
      const int64_t at = i * f.n + j;
      double sum = 0;
      for (int64_t q = 0; q < f.k; ++q) {
        sum += p.a[f.ta ? q * f.m + i : i * f.k + q] * p.b[f.tb ? j * f.k + q : q * f.n + j];
      }
      sum *= p.scale();
      // The product, what it is added to and the bias are each f32 at least once on the way.
      double size = std::abs(sum);
      if (f.accumulate) size += std::abs(before[static_cast<size_t>(at)]);
      if (f.bias != 0) size += std::abs(p.bias[j]);
      const double summed = size * 0x1p-22;
      if (f.accumulate) sum += before[static_cast<size_t>(at)];
      if (f.bias != 0) sum += p.bias[j];
      double expected = sum, allowed = summed + rounding(f.out, sum) + 1e-30;
      if (f.epilogue == Epilogue::gelu) {
        worst = std::max(worst, std::abs(p.aux[at] - sum) / allowed);
        expected = gelu(p.aux[at]);
        allowed = rounding(f.out, expected) + 0x1p-20 * (std::abs(p.aux[at]) + 1e-10);
        // Of what is not rounded; GELU's slope is at most 1.13.
        if (f.gelu_once) allowed += 1.14 * (summed + rounding(f.out, sum));
      } else if (f.epilogue == Epilogue::gelu_grad) {
        const double slope = gelu_slope(aux_before[static_cast<size_t>(at)]);
        expected = sum * slope;
        allowed = (summed + rounding(f.out, sum)) * std::abs(slope) + rounding(f.out, expected) +
                  0x1p-19 * std::abs(sum) + 1e-30;
        if (f.out != DType::f32) {
          allowed += hardware_slope_error(aux_before[static_cast<size_t>(at)]) * std::abs(sum);
        }
      }
      worst = std::max(worst, std::abs(p.c[at] - expected) / allowed);
    }
  }
  CHECK(worst <= 1.0);
  if (f.epilogue == Epilogue::gelu_grad) CHECK(p.aux.values() == aux_before);
}
void check_plan(const Form& f, Fuse fuse) {
  for (const int64_t offset : {0, 1}) check_plan(f, fuse, offset);
}

constexpr Fuse kFuses[] = {Fuse::all, Fuse::bias, Fuse::nothing};

void check_all(const Form& form) {
  for (const Fuse fuse : kFuses) check_plan(form, fuse);
}

// The types of operands and result that there are.
constexpr std::tuple<DType, DType> kTypePairs[] = {{DType::f32, DType::f32},
                                                   {DType::bf16, DType::f32},
                                                   {DType::bf16, DType::bf16},
                                                   {DType::f16, DType::f16},
                                                   {DType::f16, DType::f32}};

}  // namespace

TEST_CASE("cuda matmul: plans of every form give the product") {
  const int64_t sizes[][3] = {{1, 1, 1},   {1, 17, 3},  {3, 1, 65},  {17, 3, 12},
                              {13, 24, 7}, {33, 16, 5}, {16, 16, 16}};
  for (const auto& s : sizes) {
    for (const auto& [in, out] : kTypePairs) {
      for (const int form : {0, 1, 2, 3}) {
        for (const bool accumulate : {false, true}) {
          check_plan({s[0], s[1], s[2], form % 2 == 1, form / 2 == 1, accumulate, in, out},
                     Fuse::all);
        }
      }
    }
  }
}

TEST_CASE("cuda matmul: plans with a bias, onto nothing or onto what is there") {
  const int64_t sizes[][3] = {{1, 1, 1}, {5, 17, 3}, {13, 24, 7}};
  for (const auto& s : sizes) {
    for (const auto& [in, out] : kTypePairs) {
      for (const int bias : {1, 2}) {
        for (const bool ta : {false, true}) {
          for (const bool accumulate : {false, true}) {
            check_all({s[0], s[1], s[2], ta, true, accumulate, in, out, bias});
          }
        }
      }
    }
  }
}

TEST_CASE("cuda matmul: plans with GELU and its gradient") {
  // Multiples of 8 columns, where the epilogue may take it, and others.
  const int64_t sizes[][3] = {{1, 1, 1}, {5, 17, 3}, {13, 24, 7}, {2, 8, 1}};
  for (const auto& s : sizes) {
    for (const auto& [in, out] : kTypePairs) {
      for (const int bias : {0, 1, 2}) {
        Form form{s[0], s[1], s[2], false, true, false, in, out, bias, Epilogue::gelu_grad};
        check_all(form);
        form.epilogue = Epilogue::gelu;
        check_all(form);
        form.gelu_once = true;
        check_all(form);
      }
    }
  }
}

TEST_CASE("cuda matmul: plans of FP8 of every kind that training asks for") {
  const DType e4m3 = DType::f8_e4m3, e5m2 = DType::f8_e5m2;
  for (const auto& [m, n, k] :
       {std::tuple(16, 16, 16), std::tuple(48, 32, 16), std::tuple(37, 32, 16)}) {
    for (const auto& [a, b] :
         {std::pair(e4m3, e4m3), std::pair(e5m2, e4m3), std::pair(e4m3, e5m2)}) {
      for (const DType out : {DType::bf16, DType::f32}) {
        for (const bool accumulate : {false, true}) {
          for (const int bias : {0, 1, 2}) {
            Form form{m, n, k, false, true, accumulate, a, out, bias};
            form.b = b;
            check_all(form);
            if (accumulate) continue;
            form.epilogue = Epilogue::gelu;
            check_all(form);
            form.gelu_once = true;
            check_all(form);
            form.epilogue = Epilogue::gelu_grad;
            check_all(form);
          }
        }
      }
    }
  }
  // One call each: forward with its bias, the gradients of input and weight.
  const auto plan_of = [](Form form, DType b) {
    form.b = b;
    const Product p(form);
    REQUIRE(cuda::misfit(p.args).empty());
    return cuda::plan_matmul(p.args, Fuse::all);
  };
  const MatmulPlan forward = plan_of({64, 48, 32, false, true, false, e4m3, DType::bf16, 2}, e4m3);
  CHECK(forward.bias_in_gemm);
  CHECK(forward.gemm.fast_sums);
  const MatmulPlan weight = plan_of({64, 48, 32, false, true, true, e5m2, DType::f32}, e4m3);
  CHECK(weight.gemm.add);
  CHECK_FALSE(weight.gemm.fast_sums);
  CHECK(weight.gemm.first_type == e4m3);
  CHECK(weight.gemm.second_type == e5m2);
}

TEST_CASE("cuda matmul: the sums of an operand come from the product, where it is nothing else") {
  const int64_t sizes[][3] = {{1, 1, 1}, {5, 17, 3}, {24, 13, 70}};
  for (const auto& s : sizes) {
    for (const auto& [in, out] : kTypePairs) {
      for (const bool of_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const Form form{s[0], s[1], s[2], true, false, accumulate, in, out};
          Product together(form), apart(form);
          const int64_t count = of_b ? form.n : form.m;
          Held sums(DType::f32, {count});
          sums.randomize(together.random);
          const std::vector<double> before = sums.values();
          (of_b ? together.args.sums_of_b : together.args.sums_of_a) = sums.view;
          REQUIRE(cuda::misfit(together.args).empty());
          const MatmulPlan plan =
              cuda::plan_matmul(together.args, Fuse::all, cuda::Sums::in_product);
          CHECK(plan.sums_in_gemm == (out == DType::f32));
          CHECK_FALSE(cuda::plan_matmul(together.args, Fuse::all).sums_in_gemm);
          if (!plan.sums_in_gemm) continue;
          HostSteps steps;
          cuda::run_matmul(plan, together.args, steps);
          cuda::run_matmul(cuda::plan_matmul(apart.args, Fuse::all), apart.args, steps);
          CHECK(together.c.bytes() == apart.c.bytes());
          double worst = 0;
          for (int64_t i = 0; i < count; ++i) {
            double sum = 0, size = 0;
            for (int64_t p = 0; p < form.k; ++p) {
              sum += (of_b ? together.b : together.a)[p * count + i];
            }
            size = std::abs(sum);
            if (accumulate) {
              sum += before[static_cast<size_t>(i)];
              size += std::abs(before[static_cast<size_t>(i)]);
            }
            worst = std::max(worst, std::abs(sums[i] - sum) / (size * 0x1p-22 + 1e-30));
          }
          CHECK(worst <= 1.0);
        }
      }
    }
  }
}

TEST_CASE("cuda matmul: what goes through f32 is cut into slices of rows") {
  // 64 rows of 128 Ki columns fill what a slice may take.
  const Form form{130, 131'072, 2, false, false, true, DType::bf16, DType::bf16, 1};
  const Product p(form);
  const MatmulPlan plan = cuda::plan_matmul(p.args, Fuse::all);
  CHECK(plan.into == MatmulPlan::Into::wide);
  CHECK(plan.slice_rows == 64);
  CHECK(plan.gemm.result_type == DType::f32);
  CHECK(!plan.gemm.add);
  CHECK(plan.add_before);
  // The same in small, by a plan cut by hand: 3 + 3 + 1 rows.
  for (const bool ta : {false, true}) {
    for (const Epilogue epilogue : {Epilogue::none, Epilogue::gelu, Epilogue::gelu_grad}) {
      const Form small{7, 10, 5, ta, true, false, DType::bf16, DType::bf16, 1, epilogue};
      Product whole(small), cut(small);
      MatmulPlan small_plan = cuda::plan_matmul(whole.args, Fuse::all);
      REQUIRE(small_plan.slice_rows == 7);
      HostSteps steps;
      cuda::run_matmul(small_plan, whole.args, steps);
      CHECK(steps.products == 1);
      small_plan.slice_rows = 3;
      cuda::run_matmul(small_plan, cut.args, steps);
      CHECK(steps.products == 4);
      CHECK(whole.c.bytes() == cut.c.bytes());
      CHECK(whole.aux.bytes() == cut.aux.bytes());
    }
  }
}

TEST_CASE("cuda matmul: what a training step asks for is one call of cuBLASLt") {
  const auto plan_of = [](const Form& form, Fuse fuse = Fuse::all) {
    const Product p(form);
    return cuda::plan_matmul(p.args, fuse);
  };
  const auto is_one_call = [](const MatmulPlan& plan) {
    return plan.into == MatmulPlan::Into::c && !plan.add_bias &&
           plan.then == MatmulPlan::Then::nothing;
  };
  const DType bf16 = DType::bf16, f32 = DType::f32;
  // A linear layer with a bias, the gradient of a GELU, of an input and of a weight.
  const MatmulPlan layer = plan_of({64, 48, 32, false, true, false, bf16, bf16, 2});
  CHECK(is_one_call(layer));
  CHECK(layer.gemm == LtGemm{.first_type = bf16,
                             .second_type = bf16,
                             .result_type = bf16,
                             .rows = 48,
                             .columns = 64,
                             .k = 32,
                             .transpose_first = true,
                             .transpose_second = false,
                             .ld_first = 32,
                             .ld_second = 32,
                             .ld_result = 48,
                             .epilogue = LtEpilogue::bias,
                             .bias_type = bf16});
  const Form activated{64, 48, 32, false, true, false, bf16, bf16, 2, Epilogue::gelu};
  Form gradient = activated;
  gradient.bias = 0;
  gradient.epilogue = Epilogue::gelu_grad;
  CHECK(is_one_call(plan_of(gradient)));
  CHECK(plan_of(gradient).gemm.epilogue == LtEpilogue::dgelu);
  CHECK(plan_of(gradient).gemm.ld_aux == 48);
  CHECK(is_one_call(plan_of({64, 48, 32, false, false, false, bf16, bf16})));
  const MatmulPlan weight = plan_of({64, 48, 32, true, false, true, bf16, f32});
  CHECK(is_one_call(weight));
  CHECK(weight.gemm.add);
  CHECK(weight.gemm.result_type == f32);
  CHECK(weight.gemm.transpose_second);
  CHECK(weight.gemm.ld_second == 64);

  // A GELU that may be computed again is a kernel's, behind the bias: of what is stored, as
  // gelu_forward's.
  for (const Fuse fuse : {Fuse::all, Fuse::bias}) {
    const MatmulPlan plan = plan_of(activated, fuse);
    CHECK(plan.into == MatmulPlan::Into::aux);
    CHECK(plan.gemm.epilogue == LtEpilogue::bias);
    CHECK(plan.then == MatmulPlan::Then::gelu);
  }
  Form once = activated;
  once.gelu_once = true;
  CHECK(is_one_call(plan_of(once)));
  CHECK(plan_of(once).gemm.epilogue == LtEpilogue::gelu_aux_bias);
  CHECK(plan_of(once).gemm.ld_aux == 48);
  CHECK(plan_of(once, Fuse::bias).then == MatmulPlan::Then::gelu);
  once.bias = 0;
  CHECK(plan_of(once).gemm.epilogue == LtEpilogue::gelu_aux);
  // Where cuBLASLt has no such epilogue, a kernel makes the gradient, too.
  CHECK(plan_of(gradient, Fuse::bias).then == MatmulPlan::Then::gelu_grad);
  // Its GELU is not exact enough for f32; a bias or aux at an odd address is not given to it.
  Form wide = gradient;
  wide.out = f32;
  CHECK(plan_of(wide).then == MatmulPlan::Then::gelu_grad);
  wide = once;
  wide.out = f32;
  CHECK(plan_of(wide).gemm.epilogue == LtEpilogue::none);
  CHECK(plan_of(wide).then == MatmulPlan::Then::gelu);
  for (const Form& form : {once, gradient, Form{64, 48, 32, false, true, false, bf16, bf16, 2}}) {
    const Product odd_address(form, 1);
    const MatmulPlan plan = cuda::plan_matmul(odd_address.args, Fuse::all);
    CHECK(plan.gemm.epilogue == LtEpilogue::none);
    CHECK_FALSE(plan.bias_in_gemm);
  }
  Form odd = gradient;  // no leading dimension for aux
  odd.n = 47;
  CHECK(plan_of(odd).gemm.epilogue == LtEpilogue::none);
  CHECK(plan_of(odd).then == MatmulPlan::Then::gelu_grad);
  // A bias in another type than the result's.
  CHECK(plan_of({64, 48, 32, false, true, false, bf16, f32, 2}).add_bias);
  CHECK(plan_of({64, 48, 32, false, true, false, f32, f32, 2}).gemm.epilogue == LtEpilogue::none);
}

TEST_CASE("cuda matmul: arguments that do not fit are said") {
  Product p({4, 3, 2});
  CHECK(cuda::misfit(p.args).empty());
  Matmul wrong = p.args;
  wrong.transpose_a = true;
  CHECK(cuda::misfit(wrong).find("do not fit") != std::string::npos);
  wrong = p.args;
  wrong.c.dtype = DType::bf16;
  CHECK(cuda::misfit(wrong).find("types") != std::string::npos);
  wrong = p.args;
  wrong.bias = p.c.view;
  CHECK(cuda::misfit(wrong).find("bias of 12 elements") != std::string::npos);
  wrong = p.args;
  wrong.epilogue = Epilogue::gelu;
  CHECK(cuda::misfit(wrong).find("aux") != std::string::npos);
  wrong.aux = p.aux.view;
  CHECK(cuda::misfit(wrong).empty());
  wrong.accumulate = true;
  CHECK(cuda::misfit(wrong).find("accumulate") != std::string::npos);

  // Sums of an operand that lies along k, of another size or type, of both.
  Product weight({4, 3, 2, true});
  Held sums(DType::f32, {4}), others(DType::f32, {3}), half(DType::bf16, {4});
  wrong = weight.args;
  wrong.sums_of_a = sums.view;
  CHECK(cuda::misfit(wrong).empty());
  wrong.sums_of_a = others.view;
  CHECK(cuda::misfit(wrong).find("sums of A") != std::string::npos);
  wrong.sums_of_a = half.view;
  CHECK(cuda::misfit(wrong).find("another type") != std::string::npos);
  wrong.sums_of_a = sums.view;
  wrong.sums_of_b = others.view;
  CHECK(cuda::misfit(wrong).find("both operands") != std::string::npos);
  wrong = p.args;
  wrong.sums_of_a = sums.view;
  CHECK(cuda::misfit(wrong).find("sums of A") != std::string::npos);
}
