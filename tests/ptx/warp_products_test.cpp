// mma.sync, ldmatrix and stmatrix: each by a small kernel, against plain loops.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ptx/elements.h"
#include "ptx/thrown.h"

using namespace mtl::ptx;

namespace {

// Lane i has input words 16 i to 16 i + 15 in %r11 to %r26 and puts %r31 to %r34 out.
std::string tile_kernel(const std::string& body) {
  std::string text =
      "ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\nmov.u32 %r1, %tid.x;\n"
      "mul.wide.u32 %rd3, %r1, 64;\nadd.s64 %rd4, %rd2, %rd3;\nmov.u32 %r10, room;\n";
  for (int i = 0; i < 16; i += 4) {
    text += fmt::format("ld.global.v4.u32 {{%r{}, %r{}, %r{}, %r{}}}, [%rd4+{}];\n", 11 + i, 12 + i,
                        13 + i, 14 + i, 4 * i);
  }
  return snippet(text + body +
                     "\nmul.wide.u32 %rd5, %r1, 16;\nadd.s64 %rd6, %rd1, %rd5;\n"
                     "st.global.v4.u32 [%rd6], {%r31, %r32, %r33, %r34};",
                 ".shared .align 128 .b8 room[4096];\n");
}
using TileInput = std::array<std::array<uint32_t, 16>, 32>;
using TileOutput = std::array<std::array<uint32_t, 4>, 32>;
TileOutput tile_results(const std::string& body, const TileInput& in) {
  alignas(16) static TileInput input;
  alignas(16) static TileOutput out;
  input = in;
  run_snippet(tile_kernel(body), out.data(), input.data());
  return out;
}

uint16_t rounded_bf16(float value) {  // of values that it has
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}
uint16_t half_of(float value) {  // of values that it has, normal ones
  if (value == 0) return 0;
  int exponent = 0;
  const float mantissa = std::frexp(std::fabs(value), &exponent);  // 0.5 to 1
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                               (static_cast<int>(mantissa * 2048) & 0x3ff));
}

}  // namespace

TEST_CASE("ptx products: elements widen to what they are") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto element = static_cast<uint16_t>(bits);
    const int exponent = static_cast<int>(bits >> 10 & 31),
              mantissa = static_cast<int>(bits & 1023);
    const float sign = bits >> 15 != 0 ? -1.0f : 1.0f;
    const float half = widened_half(element);
    if (exponent == 31 && mantissa != 0) {
      REQUIRE(std::isnan(half));
    } else if (exponent == 31) {
      REQUIRE(half == sign * INFINITY);
    } else {
      const float size = exponent == 0
                             ? std::ldexp(static_cast<float>(mantissa), -24)
                             : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
      REQUIRE(std::bit_cast<uint32_t>(half) == std::bit_cast<uint32_t>(sign * size));
    }
    REQUIRE(std::bit_cast<uint32_t>(widened_bf16(element)) == bits << 16);
  }
}

TEST_CASE("ptx products: mma.sync.m16n8k16") {
  std::mt19937 random(5);
  const auto small = [&] { return static_cast<float>(static_cast<int>(random() % 17) - 8); };
  for (const bool is_bf16 : {true, false}) {
    float a[16][16], b[16][8], c[16][8];
    for (auto& row : a) {
      for (float& x : row) x = small();
    }
    for (auto& row : b) {
      for (float& x : row) x = small();
    }
    for (auto& row : c) {
      for (float& x : row) x = small() / 4;
    }
    const auto bits = [&](float x) { return uint32_t{is_bf16 ? rounded_bf16(x) : half_of(x)}; };
    TileInput in = {};
    // As runtime/device/cuda/gpu.h writes down the manual's figures.
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      auto& words = in[static_cast<size_t>(lane)];
      const auto two = [&](float low, float high) { return bits(low) | bits(high) << 16; };
      words[0] = two(a[g][2 * t], a[g][2 * t + 1]);
      words[1] = two(a[g + 8][2 * t], a[g + 8][2 * t + 1]);
      words[2] = two(a[g][2 * t + 8], a[g][2 * t + 9]);
      words[3] = two(a[g + 8][2 * t + 8], a[g + 8][2 * t + 9]);
      words[4] = two(b[2 * t][g], b[2 * t + 1][g]);
      words[5] = two(b[2 * t + 8][g], b[2 * t + 9][g]);
      words[6] = std::bit_cast<uint32_t>(c[g][2 * t]);
      words[7] = std::bit_cast<uint32_t>(c[g][2 * t + 1]);
      words[8] = std::bit_cast<uint32_t>(c[g + 8][2 * t]);
      words[9] = std::bit_cast<uint32_t>(c[g + 8][2 * t + 1]);
    }
    const std::string type = is_bf16 ? "bf16" : "f16";
    const auto out =
        tile_results("mma.sync.aligned.m16n8k16.row.col.f32." + type + "." + type +
                         ".f32 {%r31,%r32,%r33,%r34}, {%r11,%r12,%r13,%r14}, {%r15,%r16}, "
                         "{%r17,%r18,%r19,%r20};",
                     in);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        float sum = c[row][column];
        for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
        REQUIRE(std::bit_cast<float>(out[static_cast<size_t>(lane)][static_cast<size_t>(i)]) ==
                sum);
      }
    }
  }
}

TEST_CASE("ptx products: ldmatrix and stmatrix") {
  // Rows of 16 bytes, 48 apart, so that no two tiles' rows lie together by chance; lane 8 t + r
  // writes row r of tile t: element (row, column) is 1,000 t + 10 row + column.
  TileInput in = {};
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t first = lane / 8 * 1000 + lane % 8 * 10 + 2 * i;
      in[lane][i] = first | (first + 1) << 16;
    }
  }
  const std::string rows =
      "mul.lo.s32 %r40, %r1, 48;\nadd.s32 %r40, %r10, %r40;\n"
      "st.shared.v4.u32 [%r40], {%r11, %r12, %r13, %r14};\nbar.warp.sync -1;\n";
  const auto plain = tile_results(
      rows + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r31,%r32,%r33,%r34}, [%r40];", in);
  const auto turned = tile_results(
      rows + "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r31,%r32,%r33,%r34}, [%r40];", in);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t tile = 0; tile < 4; ++tile) {
      const uint32_t row = lane / 4, column = lane % 4 * 2;
      const uint32_t first = 1000 * tile + 10 * row + column;
      CHECK(plain[lane][tile] == (first | (first + 1) << 16));
      const uint32_t below = 1000 * tile + 10 * column + row;
      CHECK(turned[lane][tile] == (below | (below + 10) << 16));
    }
  }
  // stmatrix of what ldmatrix has read is what was there: lane 8 t + r reads row r of tile t.
  const auto back = tile_results(
      rows +
          "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r31,%r32,%r33,%r34}, [%r40];\n"
          "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r40+2048], {%r31,%r32,%r33,%r34};\n"
          "bar.warp.sync -1;\nld.shared.v4.u32 {%r31,%r32,%r33,%r34}, [%r40+2048];",
      in);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) CHECK(back[lane][i] == in[lane][i]);
  }
}

TEST_CASE("ptx products: what a warp's may not be asked") {
  const auto refused = [](const std::string& body, unsigned threads = 32) {
    alignas(16) static TileInput input = {};
    alignas(16) static TileOutput out;
    SnippetRun how;
    how.block.x = threads;
    return thrown(tile_kernel(body), out.data(), input.data(), how);
  };
  const std::string load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r31,%r32,%r33,%r34}, ";
  check_thrown(refused(load + "[%r10+8];"), "16 bytes at");
  check_thrown(refused("mov.u32 %r40, 0;\n" + load + "[%r40];"), "of shared memory");
  check_thrown(refused(load + "[%r10];", 24), "not all 32 lanes are here");
  check_thrown(refused("setp.lt.u32 %p1, %r1, 16;\n@%p1 " + load + "[%r10];"), "hangs");
  check_thrown(refused("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r31,%r32}, [%r10];"),
               "not known how to run");
  check_thrown(refused("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r31,%r32,%r33,%r34}, "
                       "{%r11,%r12}, {%r13}, {%r31,%r32,%r33,%r34};"),
               "not known how to run");
}
