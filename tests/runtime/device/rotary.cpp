// Rotary positions against a double-precision reference, and the gradient as the transposed map.
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

struct RotaryCase {
  int64_t rows, heads, kv_heads, dim, seq, first_row;
  int64_t turned = dim;  // of a head's elements
};
const RotaryCase kRotaryCases[] = {
    {1, 1, 1, 2, 1, 0},        {3, 2, 1, 6, 5, 0},         {7, 3, 3, 16, 4, 0},
    {9, 4, 2, 32, 9, 90},      {5, 2, 2, 34, 16, 13},      {40, 2, 1, 64, 16, 1 << 20},
    {33, 4, 4, 80, 64, 40},    {20, 12, 12, 64, 20, 0},    {6, 2, 1, 128, 3, 2},
    {3, 2, 1, 6, 5, 0, 2},     {7, 3, 3, 16, 4, 0, 8},     {5, 2, 2, 33, 16, 13, 18},
    {40, 2, 1, 64, 16, 5, 16}, {33, 4, 4, 80, 64, 40, 32}, {6, 2, 1, 128, 3, 2, 64},
    {9, 4, 2, 72, 9, 0, 36}};

std::vector<double> turned(const Held& x, const Held& table, const RotaryCase& c, bool backward) {
  std::vector<double> y = x.values();
  const int64_t cols = (c.heads + 2 * c.kv_heads) * c.dim, half = c.turned / 2;
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t angles = (c.first_row + row) % c.seq * c.turned;
    for (int64_t head = 0; head < c.heads + c.kv_heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t first = row * cols + head * c.dim + i, second = first + half;
        const double cosine = table[angles + i];
        const double sine = backward ? -table[angles + half + i] : table[angles + half + i];
        y[static_cast<size_t>(first)] = x[first] * cosine - x[second] * sine;
        y[static_cast<size_t>(second)] = x[second] * cosine + x[first] * sine;
      }
    }
  }
  return y;
}

}  // namespace

TEST_CASE("rope turns what it is to turn of the q and k heads, by their positions, and no more") {
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    for (const RotaryCase& c : kRotaryCases) {
      for (const DType type : kComputeTypes) {
        for (const bool backward : {false, true}) {
          INFO("rows " << c.rows << " heads " << c.heads << "+" << c.kv_heads << " of " << c.dim
                       << ", " << c.turned << " turned, seq " << c.seq << " first row "
                       << c.first_row << " type " << safetensors_name(type) << " backward "
                       << backward);
          const int64_t cols = (c.heads + 2 * c.kv_heads) * c.dim;
          Held qkv(type, {c.rows, cols}), table(DType::f32, {c.seq + 1, c.turned});
          qkv.randomize(random);
          fill_table(table, c.turned);
          const std::vector<double> before = qkv.values();
          const std::vector<double> expected = turned(qkv, table, c, backward);
          device.rope({.qkv = qkv.view,
                       .heads = c.heads,
                       .kv_heads = c.kv_heads,
                       .head_dim = c.dim,
                       .table = table.view,
                       .seq = c.seq,
                       .first_row = c.first_row,
                       .backward = backward});
          check_close(qkv, expected, 1e-6, "rope");  // three roundings of numbers below 8
          const int64_t v_at = (c.heads + c.kv_heads) * c.dim;
          int64_t touched = 0;
          for (int64_t i = 0; i < qkv.size(); ++i) {
            const bool stays = i % cols >= v_at || i % cols % c.dim >= c.turned;
            touched += stays && qkv[i] != before[static_cast<size_t>(i)];
          }
          CHECK(touched == 0);
        }
      }
    }
  });
}

TEST_CASE("rope by positions that are given turns a row as if it were alone") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    constexpr int64_t kRows = 70, kHeads = 3, kKvHeads = 1, kSeq = 40;
    for (const int64_t dim : {16, 20}) {
      for (const DType type : kComputeTypes) {
        for (const bool backward : {false, true}) {
          Held qkv(type, {kRows, (kHeads + 2 * kKvHeads) * dim}), table(DType::f32, {kSeq, dim});
          Held positions(DType::i32, {kRows});
          qkv.randomize(random);
          fill_table(table, dim);
          const std::vector<double> before = qkv.values();
          Rope args = {.qkv = qkv.view,
                       .heads = kHeads,
                       .kv_heads = kKvHeads,
                       .head_dim = dim,
                       .table = table.view,
                       .seq = kSeq,
                       .backward = backward,
                       .positions = positions.view};
          for (int64_t r = 0; r < kRows; ++r)
            positions.set(r, static_cast<double>(random() % kSeq));
          device.rope(args);
          const std::vector<double> got = qkv.values();
          const int64_t cols = qkv.view.cols();
          for (int64_t i = 0; i < qkv.size(); ++i) qkv.set(i, before[static_cast<size_t>(i)]);
          args.positions = {};
          for (int64_t r = 0; r < kRows; ++r) {
            args.qkv = Tensor(qkv.view.slice(r * cols, cols).data, type, {1, cols});
            args.first_row = static_cast<int64_t>(positions[r]);
            device.rope(args);
          }
          CHECK(got == qkv.values());
        }
      }
    }
  });
}

TEST_CASE("rope backward is the gradient of rope, also where it stretches") {
  for_each_device([](Device& device) {
    for (const auto& [amplitude, part] : {std::pair(1.0, 20), {1.25, 20}, {1.25, 12}}) {
      std::mt19937 random(2);
      const RotaryCase c = {.rows = 11,
                            .heads = 3,
                            .kv_heads = 1,
                            .dim = 20,
                            .seq = 8,
                            .first_row = 5,
                            .turned = part};
      const int64_t cols = (c.heads + 2 * c.kv_heads) * c.dim;
      Held x(DType::f32, {c.rows, cols}), dy(DType::f32, {c.rows, cols});
      Held table(DType::f32, {c.seq, c.turned});
      x.randomize(random);
      dy.randomize(random);
      fill_table(table, c.turned, amplitude);
      Rope args = {.qkv = dy.view,
                   .heads = c.heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.dim,
                   .table = table.view,
                   .seq = c.seq,
                   .first_row = c.first_row,
                   .backward = true};
      const std::vector<double> weights = dy.values();
      device.rope(args);
      // The loss sum(weights * rope(x)) is linear in x: a difference of any width is its
      // derivative.
      std::vector<double> expected;
      for (int64_t i = 0; i < x.size(); ++i) {
        Held step(DType::f32, {c.rows, cols});
        step.set(i, 1);
        double slope = 0;
        const std::vector<double> y = turned(step, table, c, false);
        for (size_t k = 0; k < y.size(); ++k) slope += y[k] * weights[k];
        expected.push_back(slope);
      }
      check_close(dy, expected, 1e-6, "gradient");
      // And there and back again.
      std::vector<double> twice = x.values();
      for (size_t i = 0; i < twice.size(); ++i) {
        const int64_t at = static_cast<int64_t>(i) % cols;
        const bool turns = at < (c.heads + c.kv_heads) * c.dim && at % c.dim < c.turned;
        if (turns) twice[i] *= amplitude * amplitude;
      }
      args.qkv = x.view;
      args.backward = false;
      device.rope(args);
      args.backward = true;
      device.rope(args);
      check_close(x, twice, 3e-6, "there and back");
    }
  });
}

}  // namespace mtl::test
