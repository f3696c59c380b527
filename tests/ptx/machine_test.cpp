#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ptx/snippet.h"

using namespace mtl::ptx;

namespace {

// out[thread of the grid] = %r10 behind the body.
std::vector<uint32_t> results(const std::string& body, const SnippetRun& how = {},
                              const void* in = nullptr, const std::string& shared = "") {
  std::vector<uint32_t> out(how.grid.count() * how.block.count(), 0xdeadbeef);
  run_snippet(snippet("mov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\n"
                      "ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\n" +
                          body +
                          "\nmad.lo.s32 %r60, %r2, %r3, %r1;\nmul.wide.u32 %rd60, %r60, 4;\n"
                          "add.s64 %rd61, %rd1, %rd60;\nst.global.u32 [%rd61], %r10;",
                      shared),
              out.data(), in, how);
  return out;
}

std::string refusal(const std::string& body, const SnippetRun& how = {}, const void* in = nullptr,
                    const std::string& shared = "") {
  try {
    results(body, how, in, shared);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return true;
}

}  // namespace

TEST_CASE("ptx machine: lanes go apart and meet again") {
  // Odd lanes go round a loop as often as their number says, even ones skip it.
  const auto out = results(
      "mov.u32 %r10, 0;\nand.b32 %r4, %r1, 1;\nsetp.eq.u32 %p1, %r4, 0;\nmov.u32 %r5, %r1;\n"
      "@%p1 bra behind;\n"
      "round:\nadd.s32 %r10, %r10, 2;\nsub.s32 %r5, %r5, 1;\nsetp.ne.s32 %p2, %r5, 0;\n"
      "@%p2 bra round;\n"
      "behind:\nshfl.sync.bfly.b32 %r11|%p3, %r10, 1, 31, -1;\nadd.s32 %r10, %r10, %r11;");
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK(out[lane] == 2 * (lane | 1));
}

TEST_CASE("ptx machine: lanes that wait for others of their warp wait as long as those go on") {
  // Whatever the lot gives as the length of a turn.
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SnippetRun how;
    how.seed = seed;
    const auto out = results(
        "mov.u32 %r10, 0;\nsetp.eq.u32 %p1, %r1, 0;\n@!%p1 bra behind;\n"
        "round:\nadd.s32 %r10, %r10, 1;\nsetp.ne.s32 %p2, %r10, 1000;\n@%p2 bra round;\n"
        "behind:\nbar.warp.sync -1;",
        how);
    CHECK(out[0] == 1000);
    CHECK(out[1] == 0);
  }
}

TEST_CASE("ptx machine: guards, scopes of names, and lanes that end early") {
  const auto out = results(
      "mov.u32 %r10, 1;\nsetp.gt.u32 %p1, %r1, 20;\n@%p1 ret;\n"
      "{\n.reg .pred p;\nsetp.lt.u32 p, %r1, 5;\n@p bra end;\n@!p mov.u32 %r10, 2;\nend:\n}\n"
      "{\n.reg .pred p;\nsetp.eq.u32 p, %r1, 7;\n@p mov.u32 %r10, 3;\nend:\n}");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    CHECK(out[lane] == (lane > 20 ? 0xdeadbeef : lane < 5 ? 1 : lane == 7 ? 3 : 2));
  }
}

TEST_CASE("ptx machine: shuffles") {
  const auto lanes = [](const std::string& statement) { return results(statement + ";"); };
  const auto up = lanes("shfl.sync.up.b32 %r10|%p1, %r1, 3, 0, -1");
  const auto down = lanes("shfl.sync.down.b32 %r10|%p1, %r1, 3, 31, -1");
  const auto index = lanes("shfl.sync.idx.b32 %r10|%p1, %r1, 5, 31, -1");
  // In halves of 16 lanes: the clamp's upper bits say so.
  const auto halves = lanes("shfl.sync.idx.b32 %r10|%p1, %r1, 2, 4127, -1");
  const auto inside =
      lanes("shfl.sync.down.b32 %r11|%p1, %r1, 3, 31, -1;\nselp.u32 %r10, 1, 0, %p1");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    CHECK(up[lane] == (lane < 3 ? lane : lane - 3));
    CHECK(down[lane] == (lane > 28 ? lane : lane + 3));
    CHECK(index[lane] == 5);
    CHECK(halves[lane] == (lane & 16) + 2);
    CHECK(inside[lane] == (lane <= 28 ? 1 : 0));
  }
  CHECK(results("setp.lt.u32 %p1, %r1, 4;\nvote.sync.ballot.b32 %r10, %p1, -1;")[31] == 15);
  CHECK(results("setp.lt.u32 %p1, %r1, 4;\nvote.sync.any.pred %p2, %p1, -1;\n"
                "selp.u32 %r10, 1, 0, %p2;")[31] == 1);
  CHECK(results("setp.lt.u32 %p1, %r1, 4;\nvote.sync.all.pred %p2, %p1, -1;\n"
                "selp.u32 %r10, 1, 0, %p2;")[0] == 0);
}

TEST_CASE("ptx machine: memory") {
  std::vector<uint32_t> in(64);
  std::iota(in.begin(), in.end(), 100);
  // Four words of each lane, of which the last one is kept.
  CHECK(results("and.b32 %r4, %r1, 7;\nmul.wide.u32 %rd3, %r4, 16;\nadd.s64 %rd3, %rd2, %rd3;\n"
                "ld.global.v4.u32 {%r5, %r6, %r7, %r10}, [%rd3];",
                {}, in.data())[9] == 107);
  const int16_t negative[2] = {-5, -6};
  CHECK(results("ld.global.s16 %r10, [%rd2+2];", {}, negative)[0] == static_cast<uint32_t>(-6));
  CHECK(results("ld.global.u16 %rs1, [%rd2];\ncvt.u32.u16 %r10, %rs1;", {}, negative)[0] == 0xfffb);
  // A sign goes on over a wider register.
  CHECK(results("ld.global.s16 %rd5, [%rd2];\nshr.u64 %rd5, %rd5, 40;\ncvt.u32.u64 %r10, %rd5;", {},
                negative)[0] == 0xffffff);
  // Static and dynamic shared memory, and a generic address of it.
  const std::string both =
      ".shared .align 4 .b8 fixed[128];\n.extern .shared .align 128 .b8 open[];\n";
  SnippetRun how;
  how.dynamic_shared = 128;
  const auto exchanged = results(
      "shl.b32 %r4, %r1, 2;\nmov.u32 %r5, fixed;\nmov.u32 %r6, open;\nadd.s32 %r7, %r5, %r4;\n"
      "add.s32 %r8, %r6, %r4;\nst.shared.u32 [%r7], %r1;\nld.shared.u32 %r9, [%r7];\n"
      "cvt.u64.u32 %rd5, %r8;\ncvta.shared.u64 %rd6, %rd5;\nst.u32 [%rd6], %r9;\n"
      "ld.shared.u32 %r10, [%r8];\nadd.s32 %r10, %r10, %r6;",
      how, nullptr, both);
  // The fixed ones come behind what is the system's.
  CHECK(exchanged[31] == 31 + kReservedShared + 128);
  uint32_t count = 5;
  const auto before = results("atom.global.add.u32 %r10, [%rd2], 2;", {}, &count);
  CHECK(count == 69);
  CHECK(before[31] == 67);
  float sums[4] = {1, 2, 3, 4};
  results(
      "red.relaxed.gpu.global.add.v4.f32 [%rd2], {0f3F800000, 0f3F800000, 0f00000000, "
      "0fBF800000};",
      {}, sums);
  CHECK(sums[0] == 33);
  CHECK(sums[2] == 3);
  CHECK(sums[3] == -28);
}

TEST_CASE("ptx machine: local memory is each lane's own") {
  const auto out = results(
      ".local .align 4 .b8 mine[8];\nmov.b64 %rd5, mine;\nst.local.u32 [%rd5+4], %r1;\n"
      "ld.local.u32 %r10, [%rd5+4];");
  CHECK(out[0] == 0);
  CHECK(out[31] == 31);
}

TEST_CASE("ptx machine: blocks that wait for another one run beside it") {
  // Every block says that it has come and waits for all of them.
  const std::string body =
      "setp.eq.u32 %p1, %r1, 0;\n@%p1 red.release.gpu.global.add.u32 [%rd2], 1;\n"
      "again:\nld.acquire.gpu.global.u32 %r10, [%rd2];\nsetp.lt.u32 %p2, %r10, 4;\n"
      "@%p2 bra again;";
  for (unsigned seed = 1; seed <= 5; ++seed) {
    uint32_t come = 0;
    SnippetRun how;
    how.grid.x = how.resident = 4;
    how.seed = seed;
    for (const uint32_t seen : results(body, how, &come)) CHECK(seen == 4);
  }
  uint32_t come = 0;
  SnippetRun too_few;
  too_few.grid.x = 4;
  too_few.resident = 3;
  says(refusal(body, too_few, &come), "waits for what no block will write");
}

TEST_CASE("ptx machine: what a GPU would not do is an error that says where") {
  says(refusal("ld.global.u32 %r10, [%rd2+2];", {}, std::array<uint32_t, 2>{}.data()),
       "is no multiple of 4");
  says(refusal("mov.u32 %r4, 2000;\nst.shared.u32 [%r4], %r1;"), "of shared memory, which has");
  says(refusal("mov.u32 %r4, 0;\nst.shared.u32 [%r4], %r1;"), "of shared memory, which has");
  says(refusal("mov.u32 %r4, x;\nld.shared.u32 %r10, [%r4+2];", {}, nullptr,
               ".shared .align 4 .b8 x[64];\n"),
       "no multiple of 4");
  // Half of the warp never comes.
  says(refusal("setp.lt.u32 %p1, %r1, 16;\n@%p1 bra other;\n"
               "shfl.sync.bfly.b32 %r10|%p2, %r1, 1, 31, -1;\nbra behind;\n"
               "other:\nshfl.sync.bfly.b32 %r10|%p2, %r1, 2, 31, -1;\nbehind:\nmov.u32 %r5, 1;"),
       "hangs");
  says(refusal("setp.lt.u32 %p1, %r1, 16;\n@%p1 bra other;\n"
               "shfl.sync.bfly.b32 %r10|%p2, %r1, 16, 31, 65535;\nother:\nmov.u32 %r5, 1;"),
       "a lane that its own mask does not name");
  says(refusal("trap;"), "line 17");
  says(refusal("frobnicate.b32 %r10, %r1;"), "not known how to run");
  says(refusal("mov.u32 %r10, %r99;"), "unknown");
  says(refusal("bra nowhere;"), "unknown name");
  SnippetRun wide;
  wide.block.x = 2048;
  says(refusal("mov.u32 %r10, 1;", wide), "2048 threads, 1024 at most");
}
