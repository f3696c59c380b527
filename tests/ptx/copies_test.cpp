// cp.async and the copy engine: each by a small kernel.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ptx/asynchronous.h"
#include "ptx/tensor_map.h"
#include "ptx/thrown.h"

using namespace mtl::ptx;

namespace {

constexpr size_t kRoom = 16384;  // bytes of shared memory, which go to `out`

struct alignas(64) CopyInput {
  TensorMap map;
  uint32_t numbers[4];
  alignas(16) unsigned char bytes[kRoom];
};

// %r20: barriers, %r21: the room, %rd3: the input's bytes, %r4 to %r7: its numbers, %rd4: its map.
// Ends with the room in `out`.
std::string copy_kernel(const std::string& body) {
  return snippet(
      fmt::format("ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\nmov.u32 %r1, %tid.x;\n"
                  "mov.u32 %r20, barriers;\nmov.u32 %r21, room;\nmov.b64 %rd4, %rd2;\n"
                  "add.s64 %rd3, %rd2, {};\nld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd2+{}];\n"
                  "setp.eq.u32 %p1, %r1, 0;\n",
                  offsetof(CopyInput, bytes), offsetof(CopyInput, numbers)) +
          body +
          fmt::format("\nbar.sync 0;\nmov.u32 %r50, %ntid.x;\nmov.u32 %r51, %r1;\n"
                      "out_round:\nshl.b32 %r52, %r51, 4;\nadd.s32 %r53, %r21, %r52;\n"
                      "ld.shared.v4.u32 {{%r54, %r55, %r56, %r57}}, [%r53];\n"
                      "cvt.u64.u32 %rd50, %r52;\nadd.s64 %rd51, %rd1, %rd50;\n"
                      "st.global.v4.u32 [%rd51], {{%r54, %r55, %r56, %r57}};\n"
                      "add.s32 %r51, %r51, %r50;\nsetp.lt.u32 %p50, %r51, {};\n"
                      "@%p50 bra out_round;",
                      kRoom / 16),
      ".shared .align 1024 .b8 room[16384];\n.shared .align 8 .b8 barriers[64];\n");
}

std::string wait_for_copies(const std::string& parity = "0") {
  return "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%r20], " +
         parity + ";\n@done bra end;\nbra again;\nend:\n}\n";
}
const std::string kMade =
    "@%p1 mbarrier.init.shared::cta.b64 [%r20], 1;\n@%p1 fence.mbarrier_init.release.cluster;\n"
    "bar.sync 0;\n";
std::string announced(const std::string& bytes) {
  return "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], " + bytes + ";\n";
}
const std::string kBulk = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ";
const std::string kBox =
    "@%p1 cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes ";

CopyInput counted() {
  CopyInput input = {};
  for (size_t i = 0; i < kRoom; ++i) {
    input.bytes[i] = static_cast<unsigned char>(i * 7 + i / 256 * 3 + 1);
  }
  return input;
}
SnippetRun of_seed(unsigned seed, unsigned threads = 64) {
  SnippetRun how;
  how.block.x = threads;
  how.seed = seed;
  return how;
}
std::vector<unsigned char> copied(const std::string& body, const CopyInput& input,
                                  const SnippetRun& how) {
  alignas(16) static std::array<unsigned char, kRoom> out;
  run_snippet(copy_kernel(body), out.data(), &input, how);
  return {out.begin(), out.end()};
}
std::string copy_error(const std::string& body, const CopyInput& input = counted(),
                       const SnippetRun& how = of_seed(1)) {
  alignas(16) std::array<unsigned char, kRoom> out;
  return thrown(copy_kernel(body), out.data(), &input, how);
}

}  // namespace

TEST_CASE("ptx copies: cp.async brings its bytes and zeros, by the wait") {
  // Thread i brings 16 bytes, of which i % 17 are copied.
  const std::string body =
      "shl.b32 %r8, %r1, 4;\nadd.s32 %r9, %r21, %r8;\ncvt.u64.u32 %rd5, %r8;\n"
      "add.s64 %rd6, %rd3, %rd5;\nrem.u32 %r10, %r1, 17;\n"
      "cp.async.cg.shared.global [%r9], [%rd6], 16, %r10;\ncp.async.commit_group;\n"
      "cp.async.wait_group 0;";
  const CopyInput input = counted();
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto out = copied(body, input, of_seed(seed));
    for (size_t i = 0; i < 1024; ++i) {
      REQUIRE(out[i] == (i % 16 < i / 16 % 17 ? input.bytes[i] : 0));
    }
  }
  // All 16 without a number.
  const auto whole = copied(
      "cp.async.cg.shared.global [%r21], [%rd3], 16;\ncp.async.commit_group;\n"
      "cp.async.wait_group 0;",
      input, of_seed(1));
  CHECK(std::equal(whole.begin(), whole.begin() + 16, input.bytes));
}

TEST_CASE("ptx copies: wait_group counts groups, of each lane its own") {
  // Three groups; behind wait_group 1 the first two are there, and the third by lot. Odd lanes
  // commit once more before: theirs is the last but one. A second buffer has what was seen then.
  const std::string body =
      "shl.b32 %r8, %r1, 4;\nadd.s32 %r9, %r21, %r8;\ncvt.u64.u32 %rd5, %r8;\n"
      "add.s64 %rd6, %rd3, %rd5;\nand.b32 %r10, %r1, 1;\nsetp.eq.u32 %p2, %r10, 1;\n"
      "cp.async.cg.shared.global [%r9], [%rd6], 16;\ncp.async.commit_group;\n"
      "cp.async.cg.shared.global [%r9+1024], [%rd6+1024], 16;\ncp.async.commit_group;\n"
      "cp.async.cg.shared.global [%r9+2048], [%rd6+2048], 16;\ncp.async.commit_group;\n"
      "@%p2 cp.async.commit_group;\ncp.async.wait_group 1;\n"
      "ld.shared.v4.u32 {%r11, %r12, %r13, %r14}, [%r9+1024];\n"
      "st.shared.v4.u32 [%r9+5120], {%r11, %r12, %r13, %r14};\n"
      "ld.shared.v4.u32 {%r11, %r12, %r13, %r14}, [%r9+2048];\n"
      "st.shared.v4.u32 [%r9+6144], {%r11, %r12, %r13, %r14};\ncp.async.wait_group 0;";
  const CopyInput input = counted();
  int late = 0, early = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    const auto out = copied(body, input, of_seed(seed));
    REQUIRE(std::equal(out.begin(), out.begin() + 3072, input.bytes));
    REQUIRE(std::equal(out.begin() + 5120, out.begin() + 6144, input.bytes + 1024));
    for (size_t i = 0; i < 1024; i += 16) {
      const bool came =
          std::equal(out.begin() + 6144 + static_cast<std::ptrdiff_t>(i),
                     out.begin() + 6160 + static_cast<std::ptrdiff_t>(i), input.bytes + 2048 + i);
      if (i / 16 % 2 == 1) REQUIRE(came);
      (came ? early : late) += i / 16 % 2 == 0;
    }
  }
  CHECK(early > 0);
  CHECK(late > 0);
}

TEST_CASE("ptx copies: what was not committed is not waited for") {
  bool late = false;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto out = copied(
        "@%p1 cp.async.cg.shared.global [%r21], [%rd3], 16;\n"
        "cp.async.wait_group 0;",
        counted(), of_seed(seed));
    late = late || out[0] == 0xff;
  }
  CHECK(late);
}

TEST_CASE("ptx copies: what cp.async may not be asked") {
  check_thrown(copy_error("cp.async.cg.shared.global [%r21+8], [%rd3], 16;"), "16 bytes at");
  check_thrown(copy_error("cp.async.cg.shared.global [%r21], [%rd3+8], 16;"),
               "is no multiple of 16");
  check_thrown(copy_error("cp.async.cg.shared.global [%r21+16384], [%rd3], 16;\n"
                          "mov.u32 %r9, 300000;\ncp.async.cg.shared.global [%r9], [%rd3], 16;"),
               "of shared memory");
  check_thrown(copy_error("mov.u32 %r9, 17;\ncp.async.cg.shared.global [%r21], [%rd3], 16, %r9;"),
               "17 bytes of 16");
  check_thrown(copy_error("cp.async.ca.shared.global [%r21], [%rd3], 4;"), "not known how to run");
  // Where nothing is read there need be nothing.
  CHECK(copy_error("mov.b64 %rd6, 0;\nmov.u32 %r9, 0;\n"
                   "cp.async.cg.shared.global [%r21], [%rd6], 16, %r9;")
            .empty());
}

TEST_CASE("ptx copies: bytes in a row complete on a barrier") {
  const std::string body = kMade + announced("4096") + kBulk +
                           "[%r21], [%rd3+1024], 1024, [%r20];\n" + kBulk +
                           "[%r21+1024], [%rd3+4096], 3072, [%r20];\n" + wait_for_copies();
  const CopyInput input = counted();
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto out = copied(body, input, of_seed(seed));
    REQUIRE(std::equal(out.begin(), out.begin() + 1024, input.bytes + 1024));
    REQUIRE(std::equal(out.begin() + 1024, out.begin() + 4096, input.bytes + 4096));
    REQUIRE(out[4096] == 0xff);
  }
  // The copy may be asked for before its bytes are announced.
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto out = copied(
        kMade + kBulk + "[%r21], [%rd3], 1024, [%r20];\n" + announced("1024") + wait_for_copies(),
        input, of_seed(seed));
    REQUIRE(std::equal(out.begin(), out.begin() + 1024, input.bytes));
  }
}

TEST_CASE("ptx copies: until they have arrived there is something else") {
  bool old = false, fresh = false;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto out = copied(kMade + announced("16") + "@%p1 st.shared.u32 [%r21], 0;\n" + kBulk +
                                "[%r21], [%rd3], 16, [%r20];\n@%p1 ld.shared.u32 %r9, [%r21];\n" +
                                wait_for_copies() + "@%p1 st.shared.u32 [%r21+64], %r9;",
                            counted(), of_seed(seed));
    (out[64] == 0xff && out[65] == 0xff ? old : fresh) = true;
    REQUIRE(out[0] == 1);
  }
  CHECK(old);
  CHECK(fresh);
}

TEST_CASE("ptx copies: a box of a tensor is in order and swizzled; what is outside is zeros") {
  // 16-bit elements [sequence 2][row 5][head 3][column 40 of 48], rows of 3 heads and 16 more.
  alignas(16) static std::array<uint16_t, 2 * 5 * 160> tensor;
  std::iota(tensor.begin(), tensor.end(), uint16_t{1});
  constexpr size_t kRowStride = 160;
  struct Case {
    uint32_t panel;
    std::array<int32_t, 4> at;  // column, head, row, sequence
  };
  for (const auto& [panel, at] :
       {Case{64, {0, 0, 0, 0}}, Case{64, {16, 1, 2, 1}}, Case{64, {-8, 2, -3, 1}},
        Case{64, {40, 0, 0, 0}}, Case{64, {0, 3, 0, 0}}, Case{64, {0, 0, 0, -1}},
        Case{64, {0, 1, 4, 1}}, Case{32, {0, 0, 0, 0}}, Case{32, {32, 1, 1, 1}},
        Case{32, {-5, 2, 0, 0}}, Case{64, {3, 1, 0, 0}}}) {
    CopyInput input = counted();
    input.map.base = reinterpret_cast<unsigned char*>(tensor.data());
    const uint64_t sizes[4] = {40, 3, 5, 2}, strides[3] = {2 * 48, 2 * kRowStride, 10 * kRowStride};
    std::copy_n(sizes, 4, input.map.sizes);
    std::copy_n(strides, 3, input.map.strides);
    const uint32_t box[4] = {panel, 1, 8, 1};
    std::copy_n(box, 4, input.map.box);
    input.map.element_bytes = 2;
    input.map.swizzle_bytes = 2 * panel;
    for (size_t i = 0; i < 4; ++i) input.numbers[i] = static_cast<uint32_t>(at[i]);
    const uint32_t bytes = 2 * panel * 8;
    for (unsigned seed = 1; seed <= 4; ++seed) {
      const auto out =
          copied(kMade + "@%p1 prefetch.tensormap [%rd4];\n" + announced(fmt::to_string(bytes)) +
                     kBox + "[%r21], [%rd4, {%r4, %r5, %r6, %r7}], [%r20];\n" + wait_for_copies(),
                 input, of_seed(seed));
      for (int row = 0; row < 8; ++row) {
        for (int column = 0; column < static_cast<int>(panel); ++column) {
          const int c = at[0] + column, r = at[2] + row;
          const bool inside = c >= 0 && c < 40 && at[1] >= 0 && at[1] < 3 && r >= 0 && r < 5 &&
                              at[3] >= 0 && at[3] < 2;
          const uint16_t expected = inside
                                        ? tensor[static_cast<size_t>(at[3] * 5 + r) * kRowStride +
                                                 static_cast<size_t>(at[1] * 48 + c)]
                                        : 0;
          // The manual's tables: of 128 bytes the pieces of row r are exchanged by r % 8, of 64
          // those of a pair of rows by the pair's number % 4.
          const int piece = column / 8 ^ (panel == 64 ? row % 8 : row / 2 % 4);
          uint16_t found = 0;
          std::memcpy(&found,
                      &out[static_cast<size_t>(row * static_cast<int>(2 * panel) + 16 * piece +
                                               column % 8 * 2)],
                      2);
          REQUIRE(found == expected);
        }
      }
      REQUIRE(out[bytes] == 0xff);
    }
  }
}

TEST_CASE("ptx copies: what the copy engine may not be asked") {
  const std::string copy = kBulk + "[%r21], [%rd3], 1024, [%r20];\n";
  check_thrown(copy_error(kMade + announced("512") + copy + wait_for_copies()),
               "than were announced");
  check_thrown(copy_error(kMade + announced("2048") + copy + wait_for_copies()),
               "in phase 0 0 of 1 arrivals and 1024 bytes to come");
  // Two copies, of which one was announced: the phase must not end with the other under way.
  int early = 0, refused = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const std::string words =
        copy_error(kMade + announced("1024") + copy + kBulk +
                       "[%r21+1024], [%rd3], 1024, [%r20];\n" + wait_for_copies(),
                   counted(), of_seed(seed));
    early += words.find("ends and a copy for it is under way") != words.npos;
    refused += !words.empty();
  }
  CHECK(refused == 20);
  CHECK(early > 5);
  check_thrown(copy_error(kMade + announced("24") + kBulk + "[%r21], [%rd3], 24, [%r20];\n"),
               "no multiple of 16");
  check_thrown(copy_error(kMade + announced("16") + kBulk + "[%r21+8], [%rd3], 16, [%r20];\n"),
               "16 bytes at");
  check_thrown(copy_error(kMade + announced("16") + kBulk + "[%r21], [%rd3+8], 16, [%r20];\n"),
               "is no multiple of 16");
  check_thrown(copy_error(kBulk + "[%r21], [%rd3], 16, [%r20];\n"), "nobody has made");
  check_thrown(copy_error("@%p1 mbarrier.init.shared::cta.b64 [%r20], 1;\nbar.sync 0;\n" + copy),
               "maker has not fenced it");
  // Another thread's fence is none.
  check_thrown(copy_error("@%p1 mbarrier.init.shared::cta.b64 [%r20], 1;\n"
                          "@!%p1 fence.proxy.async.shared::cta;\nbar.sync 0;\n" +
                          copy),
               "maker has not fenced it");
  bool left = false;
  for (unsigned seed = 1; seed <= 20 && !left; ++seed) {
    const std::string words =
        copy_error(kMade + announced("1024") + copy + "@%p1 ret;", counted(), of_seed(seed, 32));
    left = words.find("the block has ended and the copy is under way") != words.npos;
  }
  CHECK(left);
  const std::string box = kBox + "[%r21], [%rd4, {%r4, %r5, %r6, %r7}], [%r20];\n";
  CopyInput none = counted();
  none.map.mark = 0;
  check_thrown(copy_error(kMade + box, none), "this is no tensor map");
  check_thrown(copy_error("prefetch.tensormap [%rd4];", none), "this is no tensor map");
  check_thrown(copy_error("prefetch.tensormap [%rd4+16];"), "is no multiple of 64");
  CopyInput input = counted();
  input.map.base = input.bytes;
  std::fill_n(input.map.sizes, 4, 1);
  std::fill_n(input.map.box, 4, 1);
  input.map.box[0] = 64;
  input.map.element_bytes = 2;
  input.map.swizzle_bytes = 128;
  check_thrown(
      copy_error(kMade + kBox + "[%r21+512], [%rd4, {%r4, %r5, %r6, %r7}], [%r20];\n", input),
      "is no multiple of 1024 bytes");
  input.map.swizzle_bytes = 64;
  check_thrown(copy_error(kMade + box, input), "a box's row of 128 bytes");
}

TEST_CASE("ptx copies: watchers are told") {
  class CopyLog : public Watcher {
   public:
    void global(const Warp&, const Instruction&, Mask lanes, const uint64_t* addresses,
                unsigned bytes, Access access) override {
      if (bytes != 16 || access != Access::read || addresses[0] != from) return;
      log.push_back(fmt::format("reads {:x}", lanes));
    }
    void copy(const Warp&, const Instruction&, Mask lanes, const uint32_t* addresses,
              unsigned bytes) override {
      log.push_back(fmt::format("copies {:x} {} {}", lanes, addresses[1] - addresses[0], bytes));
    }
    void copies_committed(const Warp&, Mask lanes) override {
      log.push_back(fmt::format("commits {:x}", lanes));
    }
    void copies_waited(const Warp&, Mask lanes, int pending) override {
      log.push_back(fmt::format("waits {:x} {}", lanes, pending));
    }
    void bulk_copy(const Warp&, const Instruction&, unsigned, uint32_t address, size_t bytes,
                   uint32_t barrier, uint64_t phase) override {
      log.push_back(fmt::format("brings {:x} {} {:x} {}", address, bytes, barrier, phase));
    }
    void bulk_reads(const Warp&, const Instruction&, unsigned lane, uint64_t address, size_t bytes,
                    uint32_t barrier, uint64_t phase) override {
      log.push_back(
          fmt::format("of lane {} {} {} {:x} {}", lane, address - from, bytes, barrier, phase));
    }
    uint64_t from = 0;
    std::vector<std::string> log;
  };
  const CopyInput input = counted();
  CopyLog log;
  log.from = reinterpret_cast<uint64_t>(input.bytes);
  SnippetRun how = of_seed(1, 32);
  how.watchers = {&log};
  // Lanes from 8 on bring zeros alone.
  copied(
      "shl.b32 %r8, %r1, 4;\nadd.s32 %r9, %r21, %r8;\nsetp.lt.u32 %p2, %r1, 8;\n"
      "selp.u32 %r10, 16, 0, %p2;\ncvt.u64.u32 %rd5, %r8;\nadd.s64 %rd6, %rd3, %rd5;\n"
      "cp.async.cg.shared.global [%r9], [%rd6], 16, %r10;\ncp.async.commit_group;\n"
      "@%p2 cp.async.wait_group 2;\n" +
          kMade + announced("1024") + kBulk + "[%r21+1024], [%rd3], 1024, [%r20];\n" +
          wait_for_copies() + announced("16") + kBulk + "[%r21], [%rd3], 16, [%r20];\n" +
          wait_for_copies("1"),
      input, how);
  const uint32_t barrier = kReservedShared, room = barrier + 1024;  // as they are named
  const std::vector<std::string> expected = {
      "reads ff",
      "copies ffffffff 16 16",
      "commits ffffffff",
      "waits ff 2",
      fmt::format("brings {:x} 1024 {:x} 0", room + 1024, barrier),
      fmt::format("of lane 0 0 1024 {:x} 0", barrier),
      fmt::format("brings {:x} 16 {:x} 1", room, barrier),
      fmt::format("of lane 0 0 16 {:x} 1", barrier)};
  CHECK(fmt::format("{}", fmt::join(log.log, ", ")) ==
        fmt::format("{}", fmt::join(expected, ", ")));
  // Of a box the rows, as far as they are there: of rows of 80 bytes the last two, from byte 32 on.
  CopyInput tensor = counted();
  tensor.map.base = tensor.bytes;
  const uint64_t sizes[4] = {40, 1, 5, 1}, strides[3] = {96, 96, 480};
  std::copy_n(sizes, 4, tensor.map.sizes);
  std::copy_n(strides, 3, tensor.map.strides);
  const uint32_t box[4] = {64, 1, 8, 1}, place[4] = {16, 0, 3, 0};
  std::copy_n(box, 4, tensor.map.box);
  std::copy_n(place, 4, tensor.numbers);
  tensor.map.element_bytes = 2;
  tensor.map.swizzle_bytes = 128;
  log.log.clear();
  log.from = reinterpret_cast<uint64_t>(tensor.bytes);
  copied(kMade + announced("1024") + kBox + "[%r21], [%rd4, {%r4, %r5, %r6, %r7}], [%r20];\n" +
             wait_for_copies(),
         tensor, how);
  CHECK(fmt::format("{}", fmt::join(log.log, ", ")) ==
        fmt::format("brings {0:x} 1024 {1:x} 0, of lane 0 320 48 {1:x} 0, of lane 0 416 48 {1:x} 0",
                    room, barrier));
}
