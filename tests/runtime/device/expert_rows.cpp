// Mixture of experts: the way of the rows to the experts and back, and the block that all tokens go
// through, against plain loops.
#include "runtime/device/routed_tokens.h"

namespace mtl::test {

TEST_CASE("rows of experts against plain loops") {
  for_each_device([](Device& device) {
    std::mt19937 random(5);
    for (const ExpertsShape& shape :
         {ExpertsShape{1, 2, 2, 1}, ExpertsShape{37, 6, 3, 37}, ExpertsShape{300, 4, 2, 300}}) {
      for (const int64_t cols : {1, 7, 16, 33, 768}) {
        for (const DType type : kComputeTypes) {
          INFO(shape.n << " tokens of " << cols << ", type " << safetensors_name(type));
          const int64_t m = shape.n * shape.k;
          Routed r(shape);
          r.logits.randomize(random);
          r.route(device);
          Held x(type, {shape.n, cols}), y(type, {shape.n, cols});
          Held gathered(type, {m, cols}), weighed(type, {m, cols});
          x.randomize(random);
          GatherRows gather = {.from = x.view,
                               .index = r.assignments.view,
                               .divide = shape.k,

                               .to = gathered.view};
          device.gather_rows(gather);
          gather.weights = r.weights.view;
          gather.to = weighed.view;
          device.gather_rows(gather);
          std::vector<double> plain, times;
          for (int64_t row = 0; row < m; ++row) {
            const auto a = static_cast<int64_t>(r.assignments[row]);
            for (int64_t c = 0; c < cols; ++c) {
              plain.push_back(x[a / shape.k * cols + c]);
              times.push_back(plain.back() * r.weights[a]);
            }
          }
          check_close(gathered, plain, 0, "gathered");
          check_close(weighed, times, 1e-6, "weighed");

          Held from(type, {m, cols});
          from.randomize(random);
          for (const bool weights : {false, true}) {
            device.combine_rows({.from = from.view,
                                 .rows = r.rows.view,
                                 .weights = weights ? r.weights.view : Tensor{},
                                 .to = y.view});
            std::vector<double> sums;
            for (int64_t t = 0; t < shape.n; ++t) {
              for (int64_t c = 0; c < cols; ++c) {
                double sum = 0;
                for (int64_t a = t * shape.k; a < (t + 1) * shape.k; ++a) {
                  sum += from[static_cast<int64_t>(r.rows[a]) * cols + c] *
                         (weights ? r.weights[a] : 1);
                }
                sums.push_back(sum);
              }
            }
            check_close(y, sums, 2e-6, "combined");
          }
        }
      }
    }
  });
}

TEST_CASE("products of rows with a vector are added to the sums that rows name") {
  for_each_device([](Device& device) {
    std::mt19937 random(9);
    // More rows than a small grid has warps; none.
    for (const int64_t n : {0, 1, 37, 300}) {
      for (const int64_t cols : {1, 7, 16, 33, 768, 1032}) {
        for (const DType type : kComputeTypes) {
          INFO(n << " rows of " << cols << ", type " << safetensors_name(type));
          Held rows(type, {n, cols}), vector(type, {cols}), index(DType::i32, {n});
          // Of more sums than there are rows; the others stay.
          Held sums(DType::f32, {n + 3}), again(DType::f32, {n + 3});
          rows.randomize(random);
          vector.randomize(random);
          sums.randomize(random, 5);
          device.copy(sums.view, again.view);
          std::vector<double> expected = sums.values();
          for (int64_t i = 0; i < n; ++i) {
            const int64_t at = n + 1 - i;
            index.set(i, static_cast<double>(at));
            for (int64_t c = 0; c < cols; ++c) {
              expected[static_cast<size_t>(at)] += rows[i * cols + c] * vector[c];
            }
          }
          AddRowProducts args = {
              .rows = rows.view, .vector = vector.view, .index = index.view, .sums = sums.view};
          device.add_row_products(args);
          check_close(sums, expected, 2e-6 * (1 + std::sqrt(static_cast<double>(cols))), "sums");
          args.sums = again.view;
          device.add_row_products(args);
          CHECK(again.bytes() == sums.bytes());
        }
      }
    }
  });
}

TEST_CASE("the block of all tokens, with a gate and without, against plain loops") {
  for_each_device([](Device& device) {
    std::mt19937 random(7);
    for (const int64_t n : {1, 37, 300}) {
      for (const int64_t cols : {1, 7, 16, 33, 768}) {
        for (const DType type : kComputeTypes) {
          INFO(n << " tokens of " << cols << ", type " << safetensors_name(type));
          Held from(type, {n, cols}), to(type, {n, cols}), dy(type, {n, cols});
          Held gate(DType::f32, {n, 1}), dgate(type, {n, 1});
          gate.randomize(random, 3);
          from.randomize(random);
          dy.randomize(random);
          const std::vector<double> x = from.values(), before_dy = dy.values();
          const auto open = [&](int64_t t) { return 1 / (1 + std::exp(-gate[t])); };
          for (const bool gated : {false, true}) {
            to.randomize(random);
            std::vector<double> sums = to.values();
            device.add_shared(
                {.from = from.view, .gate = gated ? gate.view : Tensor{}, .to = to.view});
            for (int64_t i = 0; i < n * cols; ++i) {
              sums[static_cast<size_t>(i)] += from[i] * (gated ? open(i / cols) : 1);
            }
            check_close(to, sums, 2e-6, "sum");
          }
          device.add_shared_backward(
              {.x = from.view, .dy = dy.view, .gate = gate.view, .dgate = dgate.view});
          std::vector<double> y, dx, dots;
          for (int64_t t = 0; t < n; ++t) {
            double dot = 0;
            for (int64_t i = t * cols; i < (t + 1) * cols; ++i) {
              const auto at = static_cast<size_t>(i);
              dot += x[at] * before_dy[at];
              y.push_back(x[at] * open(t));
              dx.push_back(before_dy[at] * open(t));
            }
            dots.push_back(dot * open(t) * (1 - open(t)));
          }
          check_close(from, y, 1e-6, "y");
          check_close(dy, dx, 1e-6, "dx");
          check_close(dgate, dots, 2e-5 * std::sqrt(static_cast<double>(cols)), "dgate");
        }
      }
    }
  });
}

}  // namespace mtl::test
