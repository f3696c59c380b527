// wgmma: every shape, order and pattern against plain loops over tiles that are written through
// the manual's swizzling tables, and what its registers may not be used for.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ptx/tensor_cores.h"
#include "ptx/thrown.h"

using namespace mtl::ptx;

namespace {

constexpr uint32_t kImage = 98304, kImageAt = kReservedShared;
constexpr uint32_t kLeftAt = kImageAt, kRightAt = kImageAt + kImage / 2;

struct alignas(64) GroupInput {
  uint64_t left = 0, right = 0;
  uint32_t adds = 1, unused[11] = {};
  std::array<std::array<uint32_t, 4>, 128> fragments = {};
  std::array<std::array<float, 64>, 128> sums = {};
  alignas(16) std::array<unsigned char, kImage> image = {};
};
using GroupOutput = std::array<std::array<float, 64>, 128>;

std::string numbered(const char* prefix, int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i) {
    text += fmt::format("{}{}{}", i > first ? "," : "", prefix, i);
  }
  return text;
}

// Descriptors in %rd10 and %rd11, %p1 whether it adds, sums in %f0 on, A in %r11 to %r14; the
// image is in shared memory. The sums go out.
std::string group_kernel(const std::string& body, int sums, bool stores = true) {
  std::string text = fmt::format(
      "ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\nmov.u32 %r1, %tid.x;\n"
      "mov.u32 %r10, image;\nld.global.v2.u64 {{%rd10, %rd11}}, [%rd2];\n"
      "ld.global.u32 %r9, [%rd2+16];\nsetp.ne.u32 %p1, %r9, 0;\nshr.u32 %r2, %r1, 5;\n"
      "mul.wide.u32 %rd3, %r1, 16;\nadd.s64 %rd4, %rd2, %rd3;\n"
      "ld.global.v4.u32 {{%r11, %r12, %r13, %r14}}, [%rd4+{}];\n"
      "mul.wide.u32 %rd5, %r1, 256;\nadd.s64 %rd6, %rd2, %rd5;\nadd.s64 %rd7, %rd1, %rd5;\n",
      offsetof(GroupInput, fragments));
  for (int i = 0; i < sums; ++i) {
    text += fmt::format("ld.global.f32 %f{}, [%rd6+{}];\n", i,
                        offsetof(GroupInput, sums) + 4 * static_cast<size_t>(i));
  }
  text += fmt::format(
      "mov.u32 %r3, %r1;\nround:\nshl.b32 %r4, %r3, 4;\nadd.s32 %r5, %r10, %r4;\n"
      "cvt.u64.u32 %rd8, %r4;\nadd.s64 %rd9, %rd2, %rd8;\n"
      "ld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%rd9+{}];\n"
      "st.shared.v4.u32 [%r5], {{%r20, %r21, %r22, %r23}};\nadd.s32 %r3, %r3, 128;\n"
      "setp.lt.u32 %p2, %r3, {};\n@%p2 bra round;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n",
      offsetof(GroupInput, image), kImage / 16);
  text += body + "\n";
  for (int i = 0; i < sums && stores; ++i) {
    text += fmt::format("st.global.f32 [%rd7+{}], %f{};\n", 4 * i, i);
  }
  return snippet(text, fmt::format(".shared .align 1024 .b8 image[{}];\n", kImage));
}
std::string product(int columns, const std::string& left, const std::string& immediates,
                    const std::string& type = "bf16", const std::string& right = "%rd11") {
  return fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, {}, {}, %p1, {};\n",
                     columns, type, type, numbered("%f", 0, columns / 2), left, right, immediates);
}
const std::string kFence = "wgmma.fence.sync.aligned;\n";
const std::string kDone = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
const std::string kRegisters = "{%r11,%r12,%r13,%r14}";

struct Matrix {
  int rows, columns;
  std::vector<float> at;
  Matrix(int r, int c) : rows(r), columns(c), at(static_cast<size_t>(r * c)) {}
  float& operator()(int r, int c) { return at[static_cast<size_t>(r * columns + c)]; }
};
Matrix drawn(int rows, int columns, std::mt19937& random) {
  Matrix result(rows, columns);
  for (float& x : result.at) x = static_cast<float>(static_cast<int>(random() % 15) - 7);
  return result;
}

uint16_t element_bits(float value, bool is_bf16) {  // of small whole numbers
  if (is_bf16) return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  if (value == 0) return 0;
  int exponent = 0;
  const float mantissa = std::frexp(std::fabs(value), &exponent);
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                               (static_cast<int>(mantissa * 2048) & 0x3ff));
}

// A tile in panels of `panel` columns, swizzled: pieces of 16 bytes of row r are exchanged by r % 8
// in rows of 128 bytes, by r / 2 % 4 in rows of 64.
struct Tile {
  uint32_t at;  // a multiple of 1,024
  int panel, rows;
  uint32_t row_bytes() const { return 2u * static_cast<uint32_t>(panel); }
  uint32_t panel_bytes() const { return row_bytes() * static_cast<uint32_t>(rows); }
  uint32_t place(int row, int column) const {
    const int piece = column % panel / 8 ^ (panel == 64 ? row % 8 : row / 2 % 4);
    return at + static_cast<uint32_t>(column / panel) * panel_bytes() +
           static_cast<uint32_t>(row) * row_bytes() + static_cast<uint32_t>(16 * piece) +
           static_cast<uint32_t>(column % 8 * 2);
  }
  // Where (row, column) would be without exchanges: what a descriptor begins with.
  uint32_t begin(int row, int column) const {
    return at + static_cast<uint32_t>(column / panel) * panel_bytes() +
           static_cast<uint32_t>(row) * row_bytes() + static_cast<uint32_t>(column % panel * 2);
  }
};
void write(GroupInput& input, const Tile& tile, Matrix& values, bool is_bf16) {
  for (int row = 0; row < values.rows; ++row) {
    for (int column = 0; column < values.columns; ++column) {
      const uint16_t bits = element_bits(values(row, column), is_bf16);
      std::memcpy(&input.image.at(tile.place(row, column) - kImageAt), &bits, 2);
    }
  }
}
uint64_t descriptor(const Tile& tile, int row, int column, uint32_t leading) {
  return uint64_t{tile.begin(row, column)} >> 4 | uint64_t{leading} >> 4 << 16 |
         uint64_t{8 * tile.row_bytes()} >> 4 << 32 | uint64_t{tile.panel == 64 ? 1u : 2u} << 62;
}

// How an operand lies: of `width` rows (A) or columns (B) by 16 of k from a place of a tile.
struct Stored {
  Tile tile;
  Matrix values;  // as the tile has them
  bool turned;
  int row, column;  // where the operand begins
  float at(int i, int k) {
    return turned ? values(row + k, column + i) : values(row + i, column + k);
  }
  uint64_t bits() const { return descriptor(tile, row, column, turned ? tile.panel_bytes() : 16); }
};
Stored stored(uint32_t at, int panel, bool turned, int width, std::mt19937& random) {
  // Turned: 48 rows of k, of which 16 from row 8 or 24 on; otherwise two panels of k.
  const int rows = turned ? 48 : width + 16, columns = turned ? width : 2 * panel;
  const int row = turned ? (random() % 2 == 0 ? 8 : 24) : (random() % 2 == 0 ? 0 : 16);
  const int column =
      turned ? 0 : static_cast<int>(random() % static_cast<unsigned>(2 * panel / 16)) * 16;
  return {{at, panel, rows}, drawn(rows, columns, random), turned, row, column};
}

SnippetRun of_group(unsigned seed) {
  SnippetRun how;
  how.block.x = 128;
  how.seed = seed;
  return how;
}
std::unique_ptr<GroupInput> zeros() {
  return std::make_unique<GroupInput>();
}
std::string group_error(const std::string& body, int sums = 32, unsigned threads = 128,
                        GroupInput* given = nullptr) {
  const auto input = zeros();
  const Tile left{kLeftAt, 64, 64}, right{kRightAt, 64, 64};
  input->left = descriptor(left, 0, 0, 16);
  input->right = descriptor(right, 0, 0, 16);
  GroupOutput out = {};
  SnippetRun how;
  how.block.x = threads;
  return thrown(group_kernel(body, sums, false), out.data(), given != nullptr ? given : input.get(),
                how);
}

}  // namespace

TEST_CASE("ptx products: wgmma of every shape, order and pattern") {
  std::mt19937 random(11);
  for (const int columns : {32, 48, 64, 96, 128}) {
    for (const char* const kind : {"rows", "columns", "registers"}) {
      for (const bool right_turned : {false, true}) {
        for (const int panel : {64, 32}) {
          const std::string how = kind;
          const bool left_turned = how == "columns", in_registers = how == "registers";
          const bool is_bf16 = random() % 2 == 0, adds = random() % 3 != 0;
          const int left_sign = random() % 2 == 0 ? 1 : -1, right_sign = random() % 2 == 0 ? 1 : -1;
          INFO(how << " of " << columns << ", panels of " << panel);
          CAPTURE(right_turned);
          const auto input = zeros();
          Stored left = stored(kLeftAt, panel, left_turned, 64, random);
          // A pattern of its own for B.
          Stored right =
              stored(kRightAt, random() % 2 == 0 ? 64 : 32, right_turned, columns, random);
          // Panels and a half of columns that lie side by side are not asked for.
          if (right_turned && columns == 48) right = stored(kRightAt, 64, true, 48, random);
          if (right_turned && columns == 96) right = stored(kRightAt, 32, true, 96, random);
          write(*input, left.tile, left.values, is_bf16);
          write(*input, right.tile, right.values, is_bf16);
          input->left = left.bits();
          input->right = right.bits();
          input->adds = adds ? 1 : 0;
          for (int thread = 0; thread < 128; ++thread) {
            const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
            const auto two = [&](int r, int k) {
              return element_bits(left.at(r, k), is_bf16) |
                     uint32_t{element_bits(left.at(r, k + 1), is_bf16)} << 16;
            };
            input->fragments[static_cast<size_t>(thread)] = {two(row, column), two(row + 8, column),
                                                             two(row, column + 8),
                                                             two(row + 8, column + 8)};
            for (float& x : input->sums[static_cast<size_t>(thread)]) {
              x = adds ? static_cast<float>(static_cast<int>(random() % 99) - 49) / 8 : NAN;
            }
          }
          const std::string signs = fmt::format("{}, {}, ", left_sign, right_sign);
          GroupOutput out = {};
          run_snippet(group_kernel(kFence +
                                       product(columns, in_registers ? kRegisters : "%rd10",
                                               signs +
                                                   (in_registers  ? ""
                                                    : left_turned ? "1, "
                                                                  : "0, ") +
                                                   (right_turned ? "1" : "0"),
                                               is_bf16 ? "bf16" : "f16") +
                                       kDone,
                                   columns / 2),
                      out.data(), input.get(), of_group(static_cast<unsigned>(columns)));
          for (int thread = 0; thread < 128; ++thread) {
            for (int i = 0; i < columns / 2; ++i) {
              const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
              const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
              const auto at = [&](auto& all) {
                return all[static_cast<size_t>(thread)][static_cast<size_t>(i)];
              };
              float expected = adds ? at(input->sums) : 0;
              for (int k = 0; k < 16; ++k) {
                expected += static_cast<float>(left_sign * right_sign) * left.at(row, k) *
                            right.at(column, k);
              }
              REQUIRE(at(out) == expected);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("ptx products: watchers are told what a warp's share of wgmma reads") {
  class Reads : public Watcher {
   public:
    void product_reads(const Warp& warp, const Instruction&, uint32_t address,
                       size_t bytes) override {
      for (uint32_t i = 0; i < bytes; i += 2) bytes_of[warp.index()].insert(address + i);
      ++calls;
    }
    void products_committed(const Warp&) override { ++commits; }
    void products_waited(const Warp&, int pending) override { waits += pending == 0; }
    std::array<std::set<uint32_t>, 4> bytes_of;
    int calls = 0, commits = 0, waits = 0;
  };
  std::mt19937 random(3);
  for (const bool turned : {false, true}) {
    const auto input = zeros();
    const Stored left = stored(kLeftAt, 64, turned, 64, random);
    const Stored right = stored(kRightAt, 32, turned, 64, random);
    input->left = left.bits();
    input->right = right.bits();
    Reads reads;
    SnippetRun watched = of_group(1);
    watched.watchers = {&reads};
    GroupOutput out = {};
    run_snippet(
        group_kernel(kFence + product(64, "%rd10", turned ? "1, 1, 1, 1" : "1, 1, 0, 0") + kDone,
                     32),
        out.data(), input.get(), watched);
    for (int warp = 0; warp < 4; ++warp) {
      std::set<uint32_t> expected;
      const auto add = [&](const Stored& operand, int i, int k) {
        expected.insert(operand.turned ? operand.tile.place(operand.row + k, operand.column + i)
                                       : operand.tile.place(operand.row + i, operand.column + k));
      };
      for (int k = 0; k < 16; ++k) {
        for (int i = 0; i < 16; ++i) add(left, 16 * warp + i, k);
        for (int i = 0; i < 64; ++i) add(right, i, k);
      }
      CHECK(reads.bytes_of[static_cast<size_t>(warp)] == expected);
    }
    CHECK(reads.commits == 4);
    CHECK(reads.waits == 4);
    CHECK(reads.calls <= 4 * (64 + 16));
  }
}

TEST_CASE("ptx products: registers of wgmma are nobody's before the wait") {
  const std::string one = product(64, kRegisters, "1, 1, 1");
  const std::string commit = "wgmma.commit_group.sync.aligned;\n";
  const auto wait = [](int pending) {
    return fmt::format("wgmma.wait_group.sync.aligned {};\n", pending);
  };
  // A second product in registers of its own.
  const std::string other = fmt::format(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{}}}, %rd10, %rd11, %p1, 1, 1, 0, "
      "0;\n",
      numbered("%f", 32, 32));
  CHECK(group_error(kFence + one + kDone + "add.f32 %f3, %f3, %f3;\nmov.u32 %r11, 0;\n").empty());
  check_thrown(group_error(kFence + one + commit + "add.f32 %f60, %f3, %f3;\n" + wait(0)),
               "reads sum 3 of a product of 64 columns, which nobody has waited for");
  check_thrown(group_error(kFence + one + commit + "mov.f32 %f3, 0f00000000;\n" + wait(0)),
               "writes sum 3");
  check_thrown(group_error(kFence + one + commit + "mov.u32 %r12, 0;\n" + wait(0)),
               "writes element 1 of A");
  check_thrown(group_error(kFence + one + "st.shared.f32 [%r10], %f3;\n" + commit + wait(0)),
               "reads sum 3");
  check_thrown(
      group_error(kFence + one + "st.shared.v2.f32 [%r10], {%f60, %f3};\n" + commit + wait(0)),
      "reads sum 3");
  // A guard that holds for no lane touches nothing.
  CHECK(group_error("setp.eq.u32 %p3, %r1, 999;\n" + kFence + one + commit +
                    "@%p3 add.f32 %f3, %f3, %f3;\n" + wait(0))
            .empty());
  // wait_group 1 leaves the last group alone.
  const std::string two = kFence + other + commit + one + commit + wait(1);
  CHECK(group_error(two + "add.f32 %f40, %f40, %f40;\n" + wait(0), 64).empty());
  check_thrown(group_error(two + "add.f32 %f4, %f40, %f40;\n" + wait(0), 64), "writes sum 4");
  // Without a commit nothing is waited for.
  check_thrown(group_error(kFence + one + wait(0) + "add.f32 %f60, %f3, %f3;\n" + commit + wait(0)),
               "reads sum 3");
  check_thrown(group_error(kFence + one + commit), "products that it has not waited for");
  check_thrown(group_error(kFence + one + commit + "mov.f32 %f60, %f3;\n" + wait(0)),
               "reads sum 3");
  // Sums that other products add to at the same place need no wait and no fence; others do.
  CHECK(group_error(kFence + one + one + commit + one + commit + wait(0)).empty());
  const std::string turned_round = fmt::format(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{},%f0}}, %rd10, %rd11, %p1, 1, 1, "
      "0, 0;\n",
      numbered("%f", 1, 31));
  check_thrown(group_error(kFence + one + turned_round + commit + wait(0)),
               "sum 0 of a product of 64 columns: its register is sum 1");
}

TEST_CASE("ptx products: wgmma.fence comes between other instructions and products") {
  const std::string one = product(64, kRegisters, "1, 1, 1");
  const std::string as_first = product(96, "%rd10", "1, 1, 0, 0");
  check_thrown(group_error(one + kDone), "no wgmma.fence before the first product");
  check_thrown(group_error(kFence + "add.f32 %f3, %f3, %f3;\n" + one + kDone),
               "another instruction has touched its register since the last wgmma.fence");
  check_thrown(group_error(kFence + "st.shared.f32 [%r10], %f3;\n" + one + kDone),
               "sum 3 of a product of 64 columns: another instruction has touched");
  check_thrown(group_error(kFence + "mov.u32 %r11, 0;\n" + one + kDone),
               "element 0 of A: another instruction has touched");
  check_thrown(group_error(kFence + one + kDone + "add.f32 %f3, %f3, %f3;\n" + one + kDone),
               "another instruction has touched");
  CHECK(group_error(kFence + one + kDone + "add.f32 %f3, %f3, %f3;\n" + kFence + one + kDone)
            .empty());
  // To read A in between harms nothing.
  CHECK(group_error(kFence + one + kDone + "add.s32 %r30, %r11, %r12;\n" + one + kDone).empty());
  // Another shape.
  check_thrown(group_error(kFence + one + kDone + as_first + kDone, 48), "no wgmma.fence since");
  CHECK(group_error(kFence + one + kDone + kFence + as_first + kDone, 48).empty());
}

TEST_CASE("ptx products: the warps of a warpgroup do the same") {
  const std::string one = product(64, "%rd10", "1, 1, 0, 0");
  check_thrown(group_error(kFence + one + kDone, 32, 96), "a warpgroup has four warps");
  // Warp 2 has one of its own.
  check_thrown(group_error("setp.eq.u32 %p3, %r2, 2;\n" + kFence + "@%p3 bra other;\n" + one +
                           "bra meet;\nother:\n" + one + "meet:\n" + kDone),
               "another warp of its warpgroup was here at line");
  check_thrown(group_error("setp.eq.u32 %p3, %r2, 3;\n" + kFence + "@%p3 bra skip;\n" + one +
                           kDone + "skip:\nmov.u32 %r30, 0;\n"),
               "fewer or more products");
  check_thrown(group_error("setp.eq.u32 %p3, %r2, 1;\n@%p3 add.s64 %rd11, %rd11, 2;\n" + kFence +
                           one + kDone),
               "different descriptors");
  check_thrown(group_error("setp.eq.u32 %p1, %r2, 1;\n" + kFence + one + kDone),
               "different descriptors or scale-d");
  check_thrown(group_error("setp.eq.u32 %p1, %r1, 1;\n" + kFence + one + kDone),
               "lanes differ in scale-d");
  check_thrown(group_error("setp.eq.u32 %p3, %r1, 1;\n@%p3 add.s64 %rd11, %rd11, 2;\n" + kFence +
                           one + kDone),
               "lanes differ in a descriptor");
}

TEST_CASE("ptx products: descriptors that wgmma cannot read by") {
  const Tile tile{kRightAt, 64, 64}, narrow{kRightAt, 32, 64};
  const auto refused = [&](uint64_t right, bool turned = false) {
    const auto input = zeros();
    input->left = descriptor({kLeftAt, 64, 64}, 0, 0, 16);
    input->right = right;
    return group_error(kFence + product(64, "%rd10", turned ? "1, 1, 0, 1" : "1, 1, 0, 0") + kDone,
                       32, 128, input.get());
  };
  const uint64_t good = descriptor(tile, 0, 0, 16);
  CHECK(refused(good).empty());
  CHECK(refused(descriptor(tile, 8, 48, 16)).empty());
  check_thrown(refused(good & ~(uint64_t{3} << 62)), "swizzling mode 0");
  check_thrown(refused(good | uint64_t{3} << 62), "swizzling mode 3");
  check_thrown(refused(good | uint64_t{1} << 49), "a base offset");
  check_thrown(refused(good | uint64_t{1} << 46), "descriptor 0x");
  check_thrown(refused(descriptor(tile, 4, 0, 16)), "begins in row 4 of a pattern");
  check_thrown(refused(descriptor(narrow, 3, 0, 16)), "begins in row 3 of a pattern");
  check_thrown(refused(good + (112 >> 4)), "goes over the end of the pattern's rows");
  check_thrown(refused(descriptor(tile, 0, 16, 8192), true),
               "goes over the end of the pattern's rows");
  check_thrown(refused(good + (uint64_t{512 >> 4} << 32)), "patterns are 1536 bytes apart");
  check_thrown(refused(descriptor(narrow, 0, 0, 4096 + 256), true),
               "patterns are 4352 bytes apart");
  const Tile last{kImageAt + kImage - 4096, 64, 64};
  check_thrown(refused(descriptor(last, 0, 0, 16)), "of shared memory");
}
