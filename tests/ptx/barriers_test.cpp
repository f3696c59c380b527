// mbarrier, bar.sync and its kin, setmaxnreg: each by a small kernel.
#include <algorithm>
#include <array>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ptx/asynchronous.h"
#include "ptx/thrown.h"

using namespace mtl::ptx;

namespace {

// %r1: the thread, %r2: its warp; shared: 16 barriers, and 1,024 words. Ends with out[thread] =
// %r10.
std::string barrier_kernel(const std::string& body) {
  return snippet(
      "ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\nmov.u32 %r1, %tid.x;\n"
      "shr.u32 %r2, %r1, 5;\nmov.u32 %r10, 0;\nmov.u32 %r20, barriers;\nmov.u32 %r21, words;\n" +
          body +
          "\nmul.wide.u32 %rd60, %r1, 4;\nadd.s64 %rd61, %rd1, %rd60;\n"
          "st.global.u32 [%rd61], %r10;",
      ".shared .align 8 .b8 barriers[128];\n.shared .align 128 .b8 words[4096];\n");
}
SnippetRun of_threads(unsigned threads, unsigned seed = 1) {
  SnippetRun how;
  how.block.x = threads;
  how.seed = seed;
  return how;
}
std::array<uint32_t, 1024> barrier_results(const std::string& body, const SnippetRun& how) {
  std::array<uint32_t, 1024> out = {};
  run_snippet(barrier_kernel(body), out.data(), nullptr, how);
  return out;
}
std::string barrier_error(const std::string& body, const SnippetRun& how = of_threads(32)) {
  std::array<uint32_t, 1024> out = {};
  return thrown(barrier_kernel(body), out.data(), nullptr, how);
}

// A loop of mbarrier.try_wait, as the kernels have it.
std::string wait_for_phase(const std::string& at, const std::string& parity) {
  return "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [" + at +
         "], " + parity + ";\n@done bra end;\nbra again;\nend:\n}\n";
}
// By thread 0; then all go on.
std::string made(int arrivals) {
  return fmt::format(
      "setp.eq.u32 %p1, %r1, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r20], {};\nbar.sync 0;\n",
      arrivals);
}

// What is told of barriers.
class BarrierLog : public Watcher {
 public:
  void barrier_reached(const Warp& warp, int number, uint64_t generation) override {
    log.push_back(fmt::format("{} reaches {} {}", warp.index(), number, generation));
  }
  void barrier_passed(const Warp& warp, int number, uint64_t generation) override {
    log.push_back(fmt::format("{} passes {} {}", warp.index(), number, generation));
  }
  void mbarrier_made(const Warp&, uint32_t) override { log.push_back("made"); }
  void mbarrier_reached(const Warp& warp, uint32_t, uint64_t phase) override {
    log.push_back(fmt::format("{} reaches phase {}", warp.index(), phase));
  }
  void mbarrier_passed(const Warp& warp, uint32_t, uint64_t phase) override {
    log.push_back(fmt::format("{} passes phase {}", warp.index(), phase));
  }
  void warp_synchronized(const Warp&, Mask lanes) override {
    log.push_back(fmt::format("warp {:x}", lanes));
  }
  void proxy_fence(const Warp&, Mask lanes, StateSpace) override {
    log.push_back(fmt::format("fence {:x}", lanes));
  }
  size_t count(const std::string& line) const {
    return static_cast<size_t>(std::count(log.begin(), log.end(), line));
  }
  std::vector<std::string> log;
};

}  // namespace

TEST_CASE("ptx barriers: bar.sync lets nobody on before all have come") {
  // Each thread writes its word, and reads that of a thread of another warp.
  const std::string body =
      "shl.b32 %r4, %r1, 2;\nadd.s32 %r5, %r21, %r4;\nst.shared.u32 [%r5], %r1;\nbar.sync 0;\n"
      "xor.b32 %r6, %r4, 384;\nadd.s32 %r6, %r21, %r6;\nld.shared.u32 %r10, [%r6];";
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto out = barrier_results(body, of_threads(128, seed));
    for (uint32_t i = 0; i < 128; ++i) REQUIRE(out[i] == (i ^ 96));
  }
}

TEST_CASE("ptx barriers: bar.sync of all goes on without warps that have ended") {
  const auto out = barrier_results(
      "setp.ge.u32 %p1, %r1, 64;\n@%p1 ret;\nbar.sync 0;\nmov.u32 %r10, 7;", of_threads(96));
  CHECK(out[0] == 7);
  CHECK(out[63] == 7);
  CHECK(out[64] == 0);
}

TEST_CASE("ptx barriers: bar.arrive counts and goes on; the turn passes between two warps") {
  // Warp 0 writes a word and arrives at barrier 3; warp 1 waits there, reads, and arrives at 4.
  const std::string body =
      "mov.u32 %r7, 64;\nmov.u32 %r8, 0;\nsetp.eq.u32 %p1, %r2, 0;\n@!%p1 bra reader;\n"
      "writer:\nst.shared.u32 [%r21], %r8;\nbar.arrive 3, 64;\nbar.sync 4, %r7;\n"
      "add.s32 %r8, %r8, 1;\nsetp.lt.u32 %p2, %r8, 10;\n@%p2 bra writer;\nbra behind;\n"
      "reader:\nmov.u32 %r9, 3;\nbar.sync %r9, 64;\nld.shared.u32 %r11, [%r21];\n"
      "mad.lo.s32 %r10, %r10, 3, %r11;\nbar.arrive 4, 64;\nadd.s32 %r8, %r8, 1;\n"
      "setp.lt.u32 %p2, %r8, 10;\n@%p2 bra reader;\nbehind:\nbar.sync 0;";
  uint32_t expected = 0;
  for (uint32_t i = 0; i < 10; ++i) expected = expected * 3 + i;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    REQUIRE(barrier_results(body, of_threads(64, seed))[32] == expected);
  }
}

TEST_CASE("ptx barriers: what bar may not be asked") {
  check_thrown(barrier_error("mov.u32 %r4, 16;\nbar.sync %r4, 32;"), "barrier 16: 0 to 15");
  check_thrown(barrier_error("bar.sync 1, 48;"), "48 threads are no whole warps");
  check_thrown(barrier_error("bar.sync 1, 64;"), "the block has 32");
  check_thrown(barrier_error("and.b32 %r4, %r1, 1;\nbar.sync %r4, 32;"),
               "lanes differ in the barrier");
  // Two warps with different counts.
  check_thrown(
      barrier_error(
          "add.s32 %r4, %r2, 2;\nmin.u32 %r4, %r4, 4;\nshl.b32 %r4, %r4, 5;\nbar.sync 1, %r4;",
          of_threads(128)),
      "others wait at barrier 1");
  check_thrown(barrier_error("bar.arrive 1, 64;\nbar.sync 1, 64;\nbar.sync 1, 64;", of_threads(64)),
               "has come to barrier 1 already");
  check_thrown(barrier_error("setp.eq.u32 %p1, %r2, 0;\n@%p1 bar.sync 1, 64;", of_threads(64)),
               "barrier 1: 32 of 64 threads have come");
  check_thrown(barrier_error("setp.lt.u32 %p1, %r1, 16;\n@%p1 bar.sync 0;"), "hangs");
  check_thrown(barrier_error("bar.arrive 1, 64;\nbar.sync 0;", of_threads(32)), "the block has 32");
  check_thrown(barrier_error("setp.eq.u32 %p1, %r2, 0;\n@%p1 bar.arrive 1, 64;", of_threads(64)),
               "some have come that nobody has waited for");
}

TEST_CASE("ptx barriers: bar.warp.sync gathers the lanes of its mask") {
  // Lane 0 writes after a long detour; the others read behind the barrier.
  const std::string body =
      "mov.u32 %r4, 0;\nsetp.eq.u32 %p1, %r1, 0;\n@!%p1 bra meet;\n"
      "round:\nadd.s32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, 2000;\n@%p2 bra round;\n"
      "st.shared.u32 [%r21], %r4;\nmeet:\nbar.warp.sync -1;\nld.shared.u32 %r10, [%r21];";
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto out = barrier_results(body, of_threads(32, seed));
    for (size_t i = 0; i < 32; ++i) REQUIRE(out[i] == 2000);
  }
  // Of lanes that are named, those that have ended are not waited for.
  CHECK(barrier_error("setp.lt.u32 %p1, %r1, 5;\n@%p1 ret;\nbar.warp.sync -1;").empty());
  check_thrown(barrier_error("bar.warp.sync 65535;"), "a lane is not in its own mask");
}

TEST_CASE("ptx barriers: a phase ends with its last arrival; parities tell phases apart") {
  // 64 threads arrive each round, all wait; thread i adds up what thread i ^ 32 wrote before.
  const std::string body =
      made(64) +
      "mov.u32 %r8, 0;\nshl.b32 %r4, %r1, 2;\nadd.s32 %r5, %r21, %r4;\nxor.b32 %r6, %r4, 128;\n"
      "add.s32 %r6, %r21, %r6;\n"
      "round:\nmad.lo.s32 %r11, %r8, 100, %r1;\nand.b32 %r9, %r8, 1;\nshl.b32 %r12, %r9, 8;\n"
      "add.s32 %r13, %r5, %r12;\nst.shared.u32 [%r13], %r11;\n"
      "mbarrier.arrive.shared::cta.b64 _, [%r20];\n" +
      wait_for_phase("%r20", "%r9") +
      "add.s32 %r13, %r6, %r12;\nld.shared.u32 %r14, [%r13];\nadd.s32 %r10, %r10, %r14;\n"
      "add.s32 %r8, %r8, 1;\nsetp.lt.u32 %p2, %r8, 6;\n@%p2 bra round;";
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto out = barrier_results(body, of_threads(64, seed));
    for (uint32_t i = 0; i < 64; ++i) REQUIRE(out[i] == 6 * (i ^ 32) + 1500);
  }
}

TEST_CASE("ptx barriers: of a barrier in its first phase, the phase of parity 1 has ended") {
  CHECK(barrier_results(made(1) + wait_for_phase("%r20", "1") + "mov.u32 %r10, 5;",
                        of_threads(32))[0] == 5);
  check_thrown(barrier_error(made(1) + wait_for_phase("%r20", "0")),
               "in phase 0 1 of 1 arrivals and 0 bytes to come");
}

TEST_CASE("ptx barriers: lanes that wait for different barriers go on by themselves") {
  // Lane 1's barrier ends only when lane 0, whose barrier has ended, arrives there.
  const std::string body =
      "setp.lt.u32 %p1, %r1, 2;\n@!%p1 ret;\nshl.b32 %r4, %r1, 3;\nadd.s32 %r5, %r20, %r4;\n"
      "mbarrier.init.shared::cta.b64 [%r5], 1;\nmov.u32 %r6, 1;\nsub.s32 %r6, %r6, %r1;\n" +
      wait_for_phase("%r5", "%r6") +
      "setp.eq.u32 %p2, %r1, 0;\n@%p2 mbarrier.arrive.shared::cta.b64 _, [%r20+8];\n"
      "mov.u32 %r10, 9;";
  const auto out = barrier_results(body, of_threads(32));
  CHECK(out[0] == 9);
  CHECK(out[1] == 9);
}

TEST_CASE("ptx barriers: what an mbarrier may not be asked") {
  check_thrown(barrier_error("mbarrier.arrive.shared::cta.b64 _, [%r20];"), "nobody has made");
  check_thrown(barrier_error(wait_for_phase("%r20", "0")), "nobody has made");
  check_thrown(barrier_error(made(0)), "0 arrivals");
  check_thrown(barrier_error(made(1 << 20)), "1048576 arrivals");
  check_thrown(barrier_error(made(1) + made(1)), "there is a barrier at");
  check_thrown(barrier_error("add.s32 %r20, %r20, 4;\n" + made(1)), "8 bytes at");
  check_thrown(barrier_error(made(1) + "mov.u32 %r4, 2;\n" + wait_for_phase("%r20", "%r4")),
               "a parity is 0 or 1");
  // Bytes are announced of a phase of which all arrivals have come.
  check_thrown(
      barrier_error(made(1) + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 16;\n"
                              "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r20];"),
      "all 1 arrivals of phase 0 have come already");
  check_thrown(barrier_error(made(1) + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], "
                                       "1048576;"),
               "more than a barrier counts");
  check_thrown(barrier_error(made(2) + "st.shared.u32 [%r20+4], %r1;\n"
                                       "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r20];"),
               "was written over");
  check_thrown(barrier_error(made(2) +
                             "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], "
                             "16;\n" +
                             wait_for_phase("%r20", "0")),
               "in phase 0 1 of 2 arrivals and 16 bytes to come");
}

TEST_CASE(
    "ptx barriers: a phase that may end before a waiter has seen the one before is an error") {
  // Warp 1 arrives again and again; warp 0 waits for phase 0 and would have to be quick.
  const std::string body =
      made(1) +
      "setp.eq.u32 %p2, %r2, 0;\n@%p2 bra waits;\nsetp.ne.u32 %p3, %r1, 32;\n"
      "@%p3 ret;\nmov.u32 %r8, 0;\n"
      "round:\nmbarrier.arrive.shared::cta.b64 _, [%r20];\nadd.s32 %r8, %r8, 1;\n"
      "setp.lt.u32 %p4, %r8, 9;\n@%p4 bra round;\nret;\nwaits:\n" +
      wait_for_phase("%r20", "0");
  std::set<std::string> kinds;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    const std::string words = barrier_error(body, of_threads(64, seed));
    kinds.insert(words.find("it may miss it") != words.npos ? "missed"
                 : words.empty()                            ? "fine"
                                                            : words);
  }
  CHECK(kinds.count("missed") == 1);
  CHECK(kinds.size() <= 2);
}

TEST_CASE("ptx barriers: watchers are told") {
  BarrierLog log;
  SnippetRun how = of_threads(64);
  how.watchers = {&log};
  barrier_results(made(2) +
                      "fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n"
                      "and.b32 %r4, %r1, 31;\nsetp.eq.u32 %p2, %r4, 0;\n"
                      "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r20];\n" +
                      wait_for_phase("%r20", "0") +
                      "bar.warp.sync -1;\nbar.sync 0;\nsetp.eq.u32 %p3, %r2, 0;\n"
                      "@%p3 bar.arrive 5, 64;\n@!%p3 bar.sync 5, 64;",
                  how);
  CHECK(log.count("made") == 1);
  for (const int warp : {0, 1}) {
    for (const int generation : {0, 1}) {
      CHECK(log.count(fmt::format("{} reaches 0 {}", warp, generation)) == 1);
      CHECK(log.count(fmt::format("{} passes 0 {}", warp, generation)) == 1);
    }
    CHECK(log.count(fmt::format("{} reaches phase 0", warp)) == 1);
    CHECK(log.count(fmt::format("{} passes phase 0", warp)) == 1);
  }
  CHECK(log.count("0 reaches 5 0") == 1);
  CHECK(log.count("1 reaches 5 0") == 1);
  for (const std::string& line : log.log) CHECK(!line.starts_with("0 passes 5"));  // it went on
  CHECK(log.count("1 passes 5 0") == 1);
  CHECK(log.count("warp ffffffff") == 2);
  CHECK(log.count("fence ffffffff") == 2);
  // Nobody passes before both have come.
  const auto place = [&](const std::string& line) {
    return std::find(log.log.begin(), log.log.end(), line) - log.log.begin();
  };
  for (const int warp : {0, 1}) {
    for (const int other : {0, 1}) {
      CHECK(place(fmt::format("{} reaches phase 0", other)) <
            place(fmt::format("{} passes phase 0", warp)));
      CHECK(place(fmt::format("{} reaches 0 1", other)) <
            place(fmt::format("{} passes 0 1", warp)));
    }
  }
}

TEST_CASE("ptx barriers: setmaxnreg gives and takes from the block's registers") {
  // 384 threads begin with 168 each, and end with 24, 240 and 240: those that take wait until the
  // first warpgroup has given.
  const std::string exchange =
      "setp.lt.u32 %p1, %r1, 128;\n@%p1 bra gives;\nsetmaxnreg.inc.sync.aligned.u32 {};\n"
      "bra behind;\ngives:\nsetmaxnreg.dec.sync.aligned.u32 24;\nbehind:\nmov.u32 %r10, 1;";
  for (unsigned seed = 1; seed <= 5; ++seed) {
    CHECK(barrier_error(fmt::format(fmt::runtime(exchange), 240), of_threads(384, seed)).empty());
  }
  check_thrown(barrier_error(fmt::format(fmt::runtime(exchange), 248), of_threads(384)), "hangs");
  check_thrown(barrier_error("setmaxnreg.dec.sync.aligned.u32 20;", of_threads(128)), "24 to 256");
  check_thrown(barrier_error("setmaxnreg.inc.sync.aligned.u32 160;", of_threads(384)),
               "the warp has 168 registers");
  check_thrown(barrier_error("setmaxnreg.dec.sync.aligned.u32 176;", of_threads(384)),
               "the warp has 168 registers");
  // Half of a warpgroup.
  check_thrown(barrier_error("setp.lt.u32 %p1, %r1, 64;\n@%p1 setmaxnreg.dec.sync.aligned.u32 24;",
                             of_threads(128)),
               "fewer or more");
}
