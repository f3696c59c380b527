// fill, cast, scale, add, copy, all_finite, bias_grad, sum_rows and the embedding ops.
#include "runtime/device/ops_test.h"

namespace mtl::test {

namespace {

// Its conversions have one NaN, whatever they were given.
bool is_gpu(const Device& device) {
  return device.communicates_beside();
}

const int64_t kSizes[] = {1, 3, 15, 16, 17, 63, 64, 65, 255, 4095, 4096, 4097, 10007};

}  // namespace

TEST_CASE("fill, scale and add of every size") {
  for_each_device([](Device& device) {
    std::mt19937 random(1);
    for (const int64_t n : kSizes) {
      for (const DType type : kComputeTypes) {
        INFO("n " << n << " type " << safetensors_name(type));
        Held x(type, {n}), y(type, {n});
        device.fill(x.view, 1.375f);
        check_close(x, std::vector<double>(static_cast<size_t>(n), 1.375), 0, "fill");
        x.randomize(random);
        y.randomize(random);
        std::vector<double> scaled, sum;
        for (int64_t i = 0; i < n; ++i) {
          sum.push_back(x[i] + y[i]);
          scaled.push_back(x[i] * static_cast<double>(0.3f));
        }
        device.add(x.view, y.view);
        device.scale(x.view, 0.3f);
        // One rounding of numbers below 10: at most 2^-24 * 8.
        check_close(y, sum, 5e-7, "add");
        check_close(x, scaled, 5e-7, "scale");
      }
    }
  });
}

TEST_CASE("copy keeps every bit") {
  for_each_device([](Device& device) {
    std::mt19937 random(6);
    for (const DType type : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::u8}) {
      for (const int64_t n : {1, 65, (1 << 20) + 3}) {
        Held from(type, {n}), to(type, {n}, 2);
        for (int64_t i = 0; i < from.view.bytes(); ++i) {
          from.view.as<uint8_t>()[i] = static_cast<uint8_t>(random());
        }
        device.copy(from.view, to.view);
        CHECK(to.bytes() == from.bytes());
      }
    }
  });
}

TEST_CASE("copy_columns moves the columns of rows and touches no others") {
  struct Shape {
    int64_t n, from, to, from_column, to_column, columns;
  };
  const Shape shapes[] = {{1, 1, 1, 0, 0, 1},         {3, 7, 5, 2, 1, 3},
                          {37, 576, 64, 512, 0, 64},  {130, 96, 160, 32, 64, 64},
                          {1000, 64, 576, 0, 512, 8}, {9, 48, 48, 16, 10, 20}};
  for_each_device([&](Device& device) {
    std::mt19937 random(8);
    for (const Shape& shape : shapes) {
      for (const DType type : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::u8}) {
        INFO("n " << shape.n << " columns " << shape.columns << " of " << shape.from << " to "
                  << shape.to << " type " << safetensors_name(type));
        Held from(type, {shape.n, shape.from}), to(type, {shape.n, shape.to});
        for (const Held* held : {&from, &to}) {
          for (int64_t i = 0; i < held->view.bytes(); ++i) {
            held->view.as<uint8_t>()[i] = static_cast<uint8_t>(random());
          }
        }
        std::vector<uint8_t> expected = to.bytes();
        const std::vector<uint8_t> given = from.bytes();
        const int64_t bytes = bytes_of(type);
        for (int64_t row = 0; row < shape.n; ++row) {
          const int64_t at = (row * shape.from + shape.from_column) * bytes;
          std::copy_n(given.begin() + at, shape.columns * bytes,
                      expected.begin() + (row * shape.to + shape.to_column) * bytes);
        }
        device.copy_columns({.from = from.view,
                             .to = to.view,
                             .from_column = shape.from_column,
                             .to_column = shape.to_column,
                             .columns = shape.columns});
        CHECK(to.bytes() == expected);
        CHECK(from.bytes() == given);
      }
    }
  });
}

TEST_CASE("regroup_columns: pieces of sections become blocks, and their sums rows again") {
  struct Shape {
    int64_t n, parts;
    std::array<ColumnSection, 3> sections;
  };
  const Shape shapes[] = {{1, 1, {{{5, 1}}}},
                          {3, 2, {{{4, 2}, {2, 2}, {2, 2}}}},
                          {37, 4, {{{64, 4}, {32, 4}, {32, 4}}}},
                          {5, 3, {{{9, 3}}}},
                          {130, 2, {{{96, 2}, {}, {48, 2}}}},
                          {1000, 8, {{{512, 8}, {64, 8}, {64, 8}}}},
                          // Fewer pieces than parts: neighbours have the same.
                          {7, 4, {{{12, 4}, {3, 1}, {3, 1}}}},
                          {70, 4, {{{64, 4}, {32, 2}, {32, 2}}}},
                          {9, 6, {{{48, 6}, {24, 3}, {16, 2}}}}};
  for_each_device([&](Device& device) {
    std::mt19937 random(7);
    for (const Shape& shape : shapes) {
      for (const DType type : kComputeTypes) {
        int64_t cols = 0, width = 0;
        for (const ColumnSection& section : shape.sections) {
          cols += section.columns;
          width += section.width();
        }
        INFO("n " << shape.n << " parts " << shape.parts << " columns " << cols << " type "
                  << safetensors_name(type));
        Held rows(type, {shape.n, cols}), back(type, {shape.n, cols});
        Held blocks(type, {shape.parts * shape.n, width});
        rows.randomize(random);
        ColumnBlocks args = {.rows = rows.view,
                             .blocks = blocks.view,
                             .parts = shape.parts,
                             .sections = shape.sections};
        device.regroup_columns(args);
        std::vector<double> expected, sums(static_cast<size_t>(shape.n * cols));
        const auto each = [&](auto&& visit) {  // in the order of the blocks
          for (int64_t part = 0; part < shape.parts; ++part) {
            for (int64_t row = 0; row < shape.n; ++row) {
              int64_t first = row * cols;
              for (const ColumnSection& section : shape.sections) {
                const int64_t piece = part * section.pieces / shape.parts;
                for (int64_t c = 0; c < section.width(); ++c) {
                  visit(first + piece * section.width() + c);
                }
                first += section.columns;
              }
            }
          }
        };
        each([&](int64_t in_rows) { expected.push_back(rows[in_rows]); });
        check_close(blocks, expected, 0, "blocks");
        // Other numbers in each block.
        blocks.randomize(random);
        int64_t in_blocks = 0;
        each([&](int64_t in_rows) { sums[static_cast<size_t>(in_rows)] += blocks[in_blocks++]; });
        args.rows = back.view;
        args.to_rows = true;
        device.regroup_columns(args);
        // Up to four numbers below 10, in f32.
        check_close(back, sums, 2e-6, "rows");
      }
    }
  });
}

TEST_CASE("outputs that go around the caches are whole") {
  // More than 8 MB per thread, at aligned addresses, with a tail.
  const int64_t n = (int64_t{3} << 21) + 5;
  for_each_device([&](Device& device) {
    void* const memory = device.allocate(static_cast<size_t>(n) * 4);
    void* const other = device.allocate(static_cast<size_t>(n) * 4);
    const Tensor wide(memory, DType::f32, {n});
    std::vector<float> numbers(static_cast<size_t>(n)), back(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 255);
    device.fill(wide, 2.5f);
    device.copy_to_host(back.data(), wide);
    device.synchronize();
    CHECK(std::all_of(back.begin(), back.end(), [](float x) { return x == 2.5f; }));
    for (const DType type : {DType::bf16, DType::f16}) {
      device.copy_from_host(wide, numbers.data());
      device.cast(wide, Tensor(other, type, {n}));
      device.fill(wide, 0);
      device.cast(Tensor(other, type, {n}), wide);
      device.copy_to_host(back.data(), wide);
      device.synchronize();
      CHECK(back == numbers);
      const Tensor twice(other, type, {2 * n});
      device.fill(twice, 3);
      std::vector<uint16_t> threes(static_cast<size_t>(2 * n));
      device.copy_to_host(threes.data(), twice);
      device.synchronize();
      const uint16_t three = type == DType::bf16 ? 0x4040 : 0x4200;
      CHECK(std::all_of(threes.begin(), threes.end(), [&](uint16_t x) { return x == three; }));
    }
    device.free(memory);
    device.free(other);
  });
}

TEST_CASE("cast is exact: every bf16 there and back, rounding to nearest even") {
  for_each_device([](Device& device) {
    const bool one_nan = is_gpu(device);
    Held all(DType::bf16, {65536}), wide(DType::f32, {65536}), back(DType::bf16, {65536});
    for (int64_t i = 0; i < 65536; ++i) all.view.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    device.cast(all.view, wide.view);
    device.cast(wide.view, back.view);
    int64_t wrong = 0;
    for (uint32_t i = 0; i < 65536; ++i) {
      const uint32_t bits = wide.view.as<uint32_t>()[i];
      wrong += bits != i << 16;
      const bool nan = (i & 0x7fff) > 0x7f80;
      const uint16_t got = back.view.as<uint16_t>()[i];
      wrong += nan && one_nan ? (got & 0x7fff) <= 0x7f80 : got != (nan ? i | 0x40 : i);
    }
    CHECK(wrong == 0);

    // Random bit patterns, and all around the ties of some values, of infinity and of NaN.
    std::vector<uint32_t> patterns;
    std::mt19937 random(7);
    for (int i = 0; i < 100000; ++i) patterns.push_back(random());
    for (const uint32_t top : {0x3f80u, 0x3f81u, 0x7f7fu, 0x7f80u, 0xff7fu, 0xff80u, 0u, 0x8000u,
                               1u, 0x7fc0u, 0xffffu}) {
      for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        patterns.push_back(top << 16 | low);
      }
    }
    const auto n = static_cast<int64_t>(patterns.size());
    Held from(DType::f32, {n}), to(DType::bf16, {n});
    std::memcpy(from.view.data, patterns.data(), patterns.size() * 4);
    device.cast(from.view, to.view);
    for (int64_t i = 0; i < n; ++i) {
      const auto x = std::bit_cast<float>(patterns[static_cast<size_t>(i)]);
      const uint16_t got = to.view.as<uint16_t>()[i];
      wrong += std::isnan(x) && one_nan ? (got & 0x7fff) <= 0x7f80 : got != bf16_of_float(x);
    }
    CHECK(wrong == 0);
    device.cast(from.view, from.view);  // same type: a copy
    CHECK(std::memcmp(from.view.data, patterns.data(), patterns.size() * 4) == 0);
  });
}

TEST_CASE("cast is exact: every f16 there and back, rounding to nearest even") {
  for_each_device([](Device& device) {
    const bool one_nan = is_gpu(device);
    Held all(DType::f16, {65536}), wide(DType::f32, {65536}), back(DType::f16, {65536});
    for (int64_t i = 0; i < 65536; ++i) all.view.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    device.cast(all.view, wide.view);
    device.cast(wide.view, back.view);
    int64_t wrong = 0;
    for (uint32_t i = 0; i < 65536; ++i) {
      const bool nan = (i & 0x7fff) > 0x7c00;
      const float value = wide.view.as<float>()[i];
      wrong += nan ? !std::isnan(value)
                   : std::bit_cast<uint32_t>(value) !=
                         std::bit_cast<uint32_t>(float_of_f16(static_cast<uint16_t>(i)));
      const uint16_t got = back.view.as<uint16_t>()[i];
      wrong += nan && one_nan ? (got & 0x7fff) <= 0x7c00 : got != (nan ? i | 0x200 : i);
    }
    CHECK(wrong == 0);

    // All around every value and every middle between two neighbours, subnormals, the end of the
    // range and infinity among them; numbers that f16 rounds to 0; NaN; random bit patterns.
    std::vector<uint32_t> patterns = {0,          1,          0x7fffff,   0x800000,   0x32ffffff,
                                      0x33000000, 0x33000001, 0x477fefff, 0x477ff000, 0x477ff001,
                                      0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
    for (uint16_t half = 0; half < 0x7c00; ++half) {
      const auto at = std::bit_cast<uint32_t>(float_of_f16(half));
      const double next = half == 0x7bff ? 65536 : static_cast<double>(float_of_f16(half + 1));
      const auto middle = std::bit_cast<uint32_t>(
          static_cast<float>((static_cast<double>(float_of_f16(half)) + next) / 2));
      for (const uint32_t x : {at, middle}) {
        patterns.insert(patterns.end(), {x, x + 1, x == 0 ? 0 : x - 1});
      }
    }
    std::mt19937 random(8);
    for (int i = 0; i < 100000; ++i) patterns.push_back(random() & 0x7fffffff);
    const size_t positive = patterns.size();
    for (size_t i = 0; i < positive; ++i) patterns.push_back(patterns[i] | 0x80000000);
    const auto n = static_cast<int64_t>(patterns.size());
    Held from(DType::f32, {n}), to(DType::f16, {n});
    std::memcpy(from.view.data, patterns.data(), patterns.size() * 4);
    device.cast(from.view, to.view);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t bits = patterns[static_cast<size_t>(i)];
      const uint16_t got = to.view.as<uint16_t>()[i];
      if ((bits & 0x7fffffff) > 0x7f800000) {  // quiet, of the same sign
        wrong +=
            (got & 0x7fff) <= 0x7c00 || (got & 0x200) == 0 || (!one_nan && got >> 15 != bits >> 31);
      } else {
        wrong += got != f16_of_float(std::bit_cast<float>(bits));
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("what f16 cannot hold becomes infinite in every op that stores it") {
  for_each_device([](Device& device) {
    Held x(DType::f16, {37}), y(DType::f16, {37});
    device.fill(x.view, 65519.9f);  // still nearer to 65504
    CHECK(x.values() == std::vector<double>(37, 65504.0));
    device.fill(y.view, 65520);
    CHECK(y.values() == std::vector<double>(37, INFINITY));
    device.fill(y.view, 16);
    device.add(x.view, y.view);
    CHECK(y.values() == std::vector<double>(37, INFINITY));
    device.scale(x.view, -1.001f);
    CHECK(x.values() == std::vector<double>(37, -INFINITY));
    device.add(x.view, y.view);
    for (int64_t i = 0; i < 37; ++i) CHECK(std::isnan(y[i]));
    device.fill(x.view, 0x1p-24f);
    device.scale(x.view, 3);
    CHECK(x.values() == std::vector<double>(37, 0x3p-24));
  });
}

TEST_CASE("all_finite finds one infinite or NaN element anywhere") {
  for_each_device([](Device& device) {
    std::mt19937 random(9);
    for (const DType type : kComputeTypes) {
      const double largest =
          type == DType::f16 ? 65504 : static_cast<double>(type == DType::f32 ? 3.4e38f : 3.3e38f);
      for (const int64_t n : {1, 5, 16, 17, 4095, 4096, 4099, 200003}) {
        INFO("n " << n << " type " << safetensors_name(type));
        Held x(type, {n});
        x.randomize(random);
        x.set(n / 2, largest);
        x.set(n - 1, -largest);
        CHECK(device.all_finite(x.view));
        for (const int64_t at : {int64_t{0}, n / 3, n / 2, n - 1}) {
          for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(-INFINITY),
                                   static_cast<double>(NAN)}) {
            const double saved = x[at];
            x.set(at, bad);
            CHECK(!device.all_finite(x.view));
            x.set(at, saved);
          }
        }
        CHECK(device.all_finite(x.view));
      }
      CHECK(device.all_finite(Tensor(nullptr, type, {0})));
    }
  });
}

TEST_CASE("sum_rows adds in order and in f32") {
  for_each_device([](Device& device) {
    std::mt19937 random(4);
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {2, 7}, {3, 64}, {8, 5000}, {5, 8191}, {2, 40000}}) {
      for (const DType type : kComputeTypes) {
        for (const bool accumulate : {false, true}) {
          INFO(rows << " x " << cols << " type " << safetensors_name(type));
          Held x(type, {rows, cols}), sum(DType::f32, {cols});
          x.randomize(random);
          sum.randomize(random);
          std::vector<double> expected;
          for (int64_t c = 0; c < cols; ++c) {
            auto total = accumulate ? static_cast<float>(sum[c]) : 0.0f;
            for (int64_t r = 0; r < rows; ++r) total += static_cast<float>(x[r * cols + c]);
            expected.push_back(total);
          }
          device.sum_rows(x.view, sum.view, accumulate);
          CHECK(sum.values() == expected);
        }
      }
    }
  });
}

TEST_CASE("bias_grad sums the rows") {
  for_each_device([](Device& device) {
    std::mt19937 random(2);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                     {1, 100},
                                     {2, 7},
                                     {31, 16},
                                     {32, 17},
                                     {33, 65},
                                     {129, 3},
                                     {5000, 5},
                                     {300, 768}}) {
      for (const DType type : kComputeTypes) {
        for (const bool accumulate : {false, true}) {
          INFO(rows << " x " << cols << " type " << safetensors_name(type));
          Held dy(type, {rows, cols}), db(DType::f32, {cols});
          dy.randomize(random);
          db.randomize(random);
          std::vector<double> expected(static_cast<size_t>(cols), 0.0);
          if (accumulate) expected = db.values();
          for (int64_t i = 0; i < dy.size(); ++i) {
            expected[static_cast<size_t>(i % cols)] += dy[i];
          }
          device.bias_grad(dy.view, db.view, accumulate);
          // Sums of `rows` values about 1 grow like sqrt(rows) and so do their roundings; chunks of
          // at most 40 rows here, 2^-24 each.
          check_close(db, expected, 2e-6 * std::sqrt(static_cast<double>(rows)), "bias_grad");
        }
      }
    }
  });
}

TEST_CASE("embedding_forward copies rows, with zeros for ids of other shards") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    for (const auto& [n, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {9, 7}, {257, 64}, {40, 768}}) {
      for (const DType type : kComputeTypes) {
        for (const int64_t first : {0, 20}) {
          const int64_t table_rows = 30;
          Held tokens(DType::i32, {n}), table(type, {table_rows, cols}), out(type, {n, cols});
          tokens.randomize_ids(random, -5, 60);
          table.randomize(random);
          out.randomize(random);
          std::vector<double> expected;
          for (int64_t i = 0; i < n; ++i) {
            const auto row = static_cast<int64_t>(tokens[i]) - first;
            for (int64_t c = 0; c < cols; ++c) {
              expected.push_back(row >= 0 && row < table_rows ? table[row * cols + c] : 0);
            }
          }
          device.embedding_forward(tokens.view, table.view, first, out.view);
          CHECK(out.values() == expected);
        }
      }
    }
  });
}

TEST_CASE("embedding_backward adds in token order, bit for bit") {
  for_each_device([](Device& device) {
    std::mt19937 random(4);
    for (const auto& [n, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {50, 7}, {300, 129}, {64, 768}}) {
      for (const DType type : kComputeTypes) {
        for (const int64_t first : {0, 5}) {
          const int64_t table_rows = 11;
          Held tokens(DType::i32, {n}), dout(type, {n, cols}),
              dtable(DType::f32, {table_rows, cols});
          tokens.randomize_ids(random, -4, 20);  // few ids: many additions to the same row
          dout.randomize(random);
          dtable.randomize(random);
          std::vector<float> expected(dtable.view.as<float>(),
                                      dtable.view.as<float>() + dtable.size());
          for (int64_t i = 0; i < n; ++i) {
            const auto row = static_cast<int64_t>(tokens[i]) - first;
            if (row < 0 || row >= table_rows) continue;
            for (int64_t c = 0; c < cols; ++c) {
              expected[static_cast<size_t>(row * cols + c)] +=
                  static_cast<float>(dout[i * cols + c]);
            }
          }
          device.embedding_backward(tokens.view, dout.view, first, dtable.view);
          CHECK(std::memcmp(dtable.view.data, expected.data(), expected.size() * 4) == 0);
        }
      }
    }
  });
}

}  // namespace mtl::test
