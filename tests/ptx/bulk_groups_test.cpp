// Copies and sums from shared to global memory, in bulk groups: each by a small kernel.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ptx/thrown.h"

using namespace mtl::ptx;

namespace {

constexpr size_t kWords = 2048;
using Words = std::array<float, kWords>;

struct alignas(16) Memory {
  Words words = {};
};

// %rd1: out, %rd2: in, %r1: the thread, %p1: it is the first, %r21: shared memory, which begins as
// what `in` has and has been fenced.
std::string store_kernel(const std::string& body) {
  return snippet(
      "ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\nmov.u32 %r1, %tid.x;\n"
      "mov.u32 %r21, words;\nsetp.eq.u32 %p1, %r1, 0;\nmov.u32 %r50, %ntid.x;\n"
      "mov.u32 %r51, %r1;\nfill:\nshl.b32 %r52, %r51, 4;\nadd.s32 %r53, %r21, %r52;\n"
      "cvt.u64.u32 %rd50, %r52;\nadd.s64 %rd51, %rd2, %rd50;\n"
      "ld.global.v4.u32 {%r54, %r55, %r56, %r57}, [%rd51];\n"
      "st.shared.v4.u32 [%r53], {%r54, %r55, %r56, %r57};\n"
      "add.s32 %r51, %r51, %r50;\nsetp.lt.u32 %p50, %r51, 512;\n@%p50 bra fill;\n"
      "fence.proxy.async.shared::cta;\nbar.sync 0;\n" +
          body,
      ".shared .align 128 .b8 words[8192];\n");
}

const std::string kCopy = "@%p1 cp.async.bulk.global.shared::cta.bulk_group ";
const std::string kAdd = "@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 ";
const std::string kCommit = "@%p1 cp.async.bulk.commit_group;\n";
const std::string kWait = "@%p1 cp.async.bulk.wait_group 0;\n";
const std::string kWaitRead = "@%p1 cp.async.bulk.wait_group.read 0;\n";

Words rising(float from) {
  Words words;
  for (size_t i = 0; i < kWords; ++i) words[i] = from + static_cast<float>(i);
  return words;
}
SnippetRun seeded(unsigned seed, unsigned blocks = 1) {
  SnippetRun how;
  how.block.x = 64;
  how.grid.x = how.resident = blocks;
  how.seed = seed;
  return how;
}
// What `out` has, which began as `before`.
Words written_by(const std::string& body, const Words& before, const Words& in,
                 const SnippetRun& how) {
  Memory out{before}, from{in};
  run_snippet(store_kernel(body), out.words.data(), from.words.data(), how);
  return out.words;
}
std::string store_error(const std::string& body, unsigned seed = 1) {
  Memory out, in;
  return thrown(store_kernel(body), out.words.data(), in.words.data(), seeded(seed));
}
// Whether words [first, end) are those of `expected`.
bool are_same(const Words& words, const Words& expected, size_t first, size_t end) {
  return std::memcmp(&words[first], &expected[first], (end - first) * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("ptx bulk groups: bytes are copied to global memory by the wait") {
  const Words in = rising(1), before = rising(-5000);
  const std::string body = "mov.u32 %r2, 1024;\nmov.b64 %rd3, %rd1;\ncvt.u64.u32 %rd4, %r21;\n" +
                           kCopy + "[%rd3+64], [%rd4+64], %r2;\n" + kCopy +
                           "[%rd1+4096], [%r21+4096], 16;\n" + kCommit + kWait;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const Words out = written_by(body, before, in, seeded(seed));
    REQUIRE(are_same(out, before, 0, 16));
    REQUIRE(are_same(out, in, 16, 272));
    REQUIRE(are_same(out, before, 272, 1024));
    REQUIRE(are_same(out, in, 1024, 1028));
    REQUIRE(are_same(out, before, 1028, kWords));
  }
}

TEST_CASE("ptx bulk groups: sums take each element once, whoever else adds to it") {
  const Words in = rising(1), before = rising(10);
  // Two of a block that overlap, by five blocks.
  const std::string body =
      kAdd + "[%rd1], [%r21], 4096;\n" + kAdd + "[%rd1+2048], [%r21+2048], 4096;\n" + kCommit;
  for (const std::string& wait : {kWait, kWaitRead}) {
    for (unsigned seed = 1; seed <= 20; ++seed) {
      const Words out = written_by(body + wait, before, in, seeded(seed, 5));
      for (size_t i = 0; i < kWords; ++i) {
        const int times = 5 * ((i < 1024) + (i >= 512 && i < 1536));
        REQUIRE(out[i] == before[i] + static_cast<float>(times) * in[i]);
      }
    }
  }
}

TEST_CASE("ptx bulk groups: sums of f32 have no subnormals") {
  constexpr float kSmall = 0x1p-130f;
  Words in = {}, before = {};
  in[0] = kSmall, before[0] = 1;
  in[1] = kSmall, before[1] = kSmall;
  in[2] = -kSmall, before[2] = -0.0f;
  in[3] = -0x1p-126f, before[3] = 0x1.8p-126f;  // normal ones, their sum is not
  in[4] = 0x1p-24f, before[4] = 1;              // to even
  in[5] = 0x1.8p-24f, before[5] = 1;
  in[6] = 0x1p-127f, before[6] = 0x1p-126f;  // the sum is a normal one
  in[7] = 0x1p-126f, before[7] = 0x1p-127f;
  const Words out =
      written_by(kAdd + "[%rd1], [%r21], 32;\n" + kCommit + kWait, before, in, seeded(1));
  CHECK(out[0] == 1);
  CHECK(std::bit_cast<uint32_t>(out[1]) == 0);
  CHECK(std::bit_cast<uint32_t>(out[2]) == 0x80000000);
  CHECK(std::bit_cast<uint32_t>(out[3]) == 0);
  CHECK(out[4] == 1);
  CHECK(out[5] == 0x1.000002p0f);
  CHECK(out[6] == 0x1p-126f);
  CHECK(out[7] == 0x1p-126f);
  // A copy's are what they were.
  const Words copied =
      written_by(kCopy + "[%rd1], [%r21], 32;\n" + kCommit + kWait, before, in, seeded(1));
  CHECK(are_same(copied, in, 0, 8));
}

TEST_CASE("ptx bulk groups: what is read late, and written later") {
  const Words in = rising(1), before = rising(-5000);
  const std::string copy = kCopy + "[%rd1], [%r21], 256;\n" + kCommit;
  // Over the last word of the source, and what the destination's has then to word 100.
  const std::string over = "@%p1 st.shared.u32 [%r21+252], 0;\n";
  const std::string look = "@%p1 ld.global.u32 %r9, [%rd1+252];\n";
  const std::string show = "@%p1 st.global.u32 [%rd1+400], %r9;\n";
  int read_late = 0, read_early = 0, written_late = 0, written_early = 0, between = 0, apart = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    const SnippetRun how = seeded(seed);
    (written_by(copy + over + kWait, before, in, how)[63] == 0 ? read_late : read_early) += 1;
    // Behind .read the source may go, the destination is not there for sure.
    const Words read = written_by(copy + kWaitRead + over + look + kWait + show, before, in, how);
    REQUIRE(are_same(read, in, 0, 64));
    const bool is_late = std::bit_cast<uint32_t>(read[100]) == 0xffffffff;
    REQUIRE((is_late || read[100] == in[63]));
    (is_late ? written_late : written_early) += 1;
    const Words waited = written_by(copy + kWait + look + show, before, in, how);
    REQUIRE(waited[100] == in[63]);
    // It has been read and is not written yet.
    const Words late = written_by(copy + over + look + kWait + show, before, in, how);
    apart += late[63] == in[63] && std::bit_cast<uint32_t>(late[100]) == 0xffffffff;
    // One end is there, the other is not.
    const Words part = written_by(copy + "@%p1 ld.global.u32 %r8, [%rd1];\n" + look + kWait + show +
                                      "@%p1 st.global.u32 [%rd1+404], %r8;\n",
                                  before, in, how);
    between += std::bit_cast<uint32_t>(part[100]) == 0xffffffff && part[101] == in[0];
  }
  CHECK(read_late > 5);
  CHECK(read_early > 5);
  CHECK(written_late > 5);
  CHECK(written_early > 0);
  CHECK(between > 0);
  CHECK(apart > 0);
}

TEST_CASE("ptx bulk groups: nobody has to wait for what they do") {
  // The second warp does until the last word is there, and only then the lane that has asked.
  const std::string body =
      kAdd + "[%rd1], [%r21], 1024;\n" + kCommit +
      "setp.lt.u32 %p2, %r1, 32;\n@%p2 bra met;\nagain:\n"
      "ld.acquire.gpu.global.u32 %r3, [%rd1+1020];\nsetp.eq.u32 %p3, %r3, 0;\n@%p3 bra again;\n"
      "met:\nbar.sync 0;\n" +
      kWait;
  const Words in = rising(1);
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CHECK(written_by(body, Words{}, in, seeded(seed))[255] == in[255]);
  }
}

TEST_CASE("ptx bulk groups: each lane has its own, and they may be empty") {
  const Words in = rising(1), before = rising(-5000);
  // Lanes 0 and 1 copy 64 bytes each at 0 and 64, then at 1024 and 1088; what is there behind the
  // wait goes to 2048 and on.
  const auto kernel = [](const std::string& between, const std::string& wait) {
    return "setp.lt.u32 %p2, %r1, 2;\nsetp.eq.u32 %p3, %r1, 1;\nshl.b32 %r2, %r1, 6;\n"
           "cvt.u64.u32 %rd3, %r2;\nadd.s64 %rd4, %rd1, %rd3;\nadd.s32 %r3, %r21, %r2;\n"
           "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd4], [%r3], 64;\n"
           "@%p2 cp.async.bulk.commit_group;\n"
           "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd4+1024], [%r3+1024], 64;\n"
           "@%p2 cp.async.bulk.commit_group;\n" +
           between + wait +
           "@%p2 ld.global.u32 %r10, [%rd4];\n@%p2 ld.global.u32 %r11, [%rd4+1024];\n"
           "@%p2 cp.async.bulk.wait_group 0;\n@%p2 st.global.u32 [%rd4+2048], %r10;\n"
           "@%p2 st.global.u32 [%rd4+3072], %r11;\n";
  };
  const std::string one = "@%p2 cp.async.bulk.wait_group 1;\n";
  struct Seen {
    std::array<int, 4> late = {};  // 0, 64, 1024, 1088
  };
  const auto seen = [&](const std::string& body) {
    Seen all;
    for (unsigned seed = 1; seed <= 40; ++seed) {
      const Words out = written_by(body, before, in, seeded(seed));
      for (const size_t at : {0, 16, 256, 272}) REQUIRE(are_same(out, in, at, at + 16));
      for (size_t i = 0; i < 4; ++i) {
        const size_t at = i / 2 * 256 + i % 2 * 16;
        const float value = out[512 + at];
        if (value != in[at]) {
          REQUIRE(std::bit_cast<uint32_t>(value) == 0xffffffff);
          ++all.late[i];
        }
      }
    }
    return all;
  };
  const Seen both = seen(kernel("", one));
  CHECK(both.late[0] == 0);
  CHECK(both.late[1] == 0);
  CHECK(both.late[2] > 0);
  CHECK(both.late[3] > 0);
  // An empty group of lane 1 alone is its last one.
  const Seen empty = seen(kernel("@%p3 cp.async.bulk.commit_group;\n", one));
  CHECK(empty.late[1] + empty.late[0] + empty.late[3] == 0);
  CHECK(empty.late[2] > 0);
  // Lane 1 waits for all, lane 0 for nothing.
  const Seen other = seen(kernel("", "@%p3 cp.async.bulk.wait_group 0;\n"));
  CHECK(other.late[1] + other.late[3] == 0);
  CHECK(other.late[0] > 0);
  CHECK(other.late[2] > 0);
  // For more than there are, and where there are none.
  CHECK(seen(kernel("", "@%p2 cp.async.bulk.wait_group 7;\n@!%p2 cp.async.bulk.wait_group 0;\n"))
            .late[0] > 0);
}

TEST_CASE("ptx bulk groups: a block may end when the source has been read") {
  const Words in = rising(1), before = rising(0);
  const std::string add = kAdd + "[%rd1], [%r21], 1024;\n";
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const Words out = written_by(add + kCommit + kWaitRead, before, in, seeded(seed, 3));
    for (size_t i = 0; i < 256; ++i) REQUIRE(out[i] == before[i] + 3 * in[i]);
  }
  // Others wait for what has been left: the second block, for word 255.
  const std::string first =
      "mov.u32 %r2, %ctaid.x;\nsetp.eq.u32 %p2, %r2, 0;\n@%p2 bra first;\n"
      "again:\nld.acquire.gpu.global.u32 %r3, [%rd1+1020];\nsetp.eq.u32 %p3, %r3, 0;\n"
      "@%p3 bra again;\nbra end;\nfirst:\n" +
      add + kCommit + kWaitRead + "end:\n";
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CHECK(written_by(first, Words{}, in, seeded(seed, 2))[255] == in[255]);
  }
  const std::string left = "has not waited until the copy has read shared memory";
  for (unsigned seed = 1; seed <= 5; ++seed) {
    check_thrown(store_error(add, seed), left);
    check_thrown(store_error(add + kCommit, seed), left);
    check_thrown(store_error(add + kWaitRead + kCommit, seed), left);
    check_thrown(
        store_error(add + kCommit + add + kCommit + "@%p1 cp.async.bulk.wait_group.read 1;\n",
                    seed),
        left);
    // Another lane's wait is none.
    check_thrown(store_error(add + kCommit + "@!%p1 cp.async.bulk.wait_group 0;\n", seed), left);
  }
  // Empty groups may be left.
  CHECK(store_error(add + kCommit + kCommit + "@%p1 cp.async.bulk.wait_group 1;\n").empty());
}

TEST_CASE("ptx bulk groups: what may not be asked") {
  check_thrown(store_error(kCopy + "[%rd1], [%r21], 24;\n"), "24 bytes are no multiple of 16");
  check_thrown(store_error("mov.u32 %r2, 0;\n" + kAdd + "[%rd1], [%r21], %r2;\n"),
               "0 bytes are no multiple of 16");
  check_thrown(store_error(kCopy + "[%rd1+8], [%r21], 16;\n"), "is no multiple of 16");
  check_thrown(store_error(kCopy + "[%rd1], [%r21+8], 16;\n"), "16 bytes at");
  check_thrown(store_error(kCopy + "[%rd1], [%r21+8192], 16;\n"), "of shared memory");
  check_thrown(store_error(kAdd + "[%rd1], [%r21+4096], 4112;\n"), "of shared memory");
  check_thrown(store_error(kCopy + "[%rd1], [%rd2], 16;\n"), "not an address of .shared");
  check_thrown(store_error("cvta.shared.u64 %rd3, %rd1;\n" + kCopy + "[%rd1], [%rd3], 16;\n"),
               "not an address of .shared");
  check_thrown(
      store_error("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r21], 16;"),
      "not known how to run");
  check_thrown(store_error("cp.async.bulk.wait_group %r1;"), "not known how to run");
  // Memory of the others is theirs.
  Memory out, in;
  static unsigned char* end = nullptr;
  end = reinterpret_cast<unsigned char*>(out.words.data() + 4);
  Launch launch;
  const Module module(store_kernel(kCopy + "[%rd1], [%r21], 32;\n"));
  launch.kernel = &module.kernel("kernel");
  launch.block.x = 32;
  launch.has = [](const void* address, size_t bytes) {
    const auto* const at = static_cast<const unsigned char*>(address);
    return at + bytes <= end || at > end;
  };
  launch.parameters.resize(16);
  const void* const pointers[2] = {out.words.data(), in.words.data()};
  std::memcpy(launch.parameters.data(), pointers, 16);
  CHECK_THROWS_WITH_AS(run(launch), doctest::Contains("are nobody's"), std::runtime_error);
}

TEST_CASE("ptx bulk groups: watchers are told") {
  class StoreLog : public Watcher {
   public:
    void bulk_store(const Warp&, const Instruction&, unsigned lane, uint32_t from, uint64_t to,
                    size_t bytes, Access access) override {
      log.push_back(fmt::format("lane {} {} {} to {}, {}", lane,
                                access == Access::atomic ? "adds" : "copies",
                                from - kReservedShared, to - out, bytes));
    }
    void stores_committed(const Warp&, Mask lanes) override {
      log.push_back(fmt::format("commits {:x}", lanes));
    }
    void stores_waited(const Warp&, Mask lanes, int pending, bool only_read) override {
      log.push_back(fmt::format("waits {:x} {} {}", lanes, pending, only_read));
    }
    void proxy_fence(const Warp&, Mask lanes, StateSpace space) override {
      log.push_back(
          fmt::format("fence {:x} {}", lanes, space == StateSpace::global ? "global" : "shared"));
    }
    uint64_t out = 0;
    std::vector<std::string> log;
  };
  Memory out, in;
  StoreLog log;
  log.out = reinterpret_cast<uint64_t>(out.words.data());
  SnippetRun how = seeded(1);
  how.block.x = 32;
  how.watchers = {&log};
  run_snippet(
      store_kernel("setp.lt.u32 %p2, %r1, 2;\nshl.b32 %r2, %r1, 5;\nadd.s32 %r3, %r21, "
                   "%r2;\ncvt.u64.u32 %rd3, %r2;\nadd.s64 %rd3, %rd1, %rd3;\n"
                   "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd3+64], [%r3], "
                   "32;\nfence.proxy.async.global;\n" +
                   kAdd + "[%rd1], [%r21+128], 16;\n" + "@%p2 cp.async.bulk.commit_group;\n" +
                   "cp.async.bulk.wait_group.read 3;\n@%p1 fence.proxy.async;\n"
                   "@%p2 cp.async.bulk.wait_group 0;\n"),
      out.words.data(), in.words.data(), how);
  const std::vector<std::string> expected = {"fence ffffffff shared",
                                             "lane 0 copies 0 to 64, 32",
                                             "lane 1 copies 32 to 96, 32",
                                             "fence ffffffff global",
                                             "lane 0 adds 128 to 0, 16",
                                             "commits 3",
                                             "waits ffffffff 3 true",
                                             "fence 1 global",
                                             "fence 1 shared",
                                             "waits 3 0 false"};
  CHECK(fmt::format("{}", fmt::join(log.log, "; ")) ==
        fmt::format("{}", fmt::join(expected, "; ")));
}
