// Each kind of race in a small kernel, and beside it the same one mended. What a kernel reads in
// disorder is of no matter here: the order of its accesses is what is looked at.
#include "ptx/races.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ptx/machine.h"
#include "ptx/races_in.h"

namespace mtl::ptx {

TEST_CASE("races: between warps a barrier is needed") {
  const std::string text =
      only(races_in("st.shared.u32 [%r2], %r1;\nld.shared.u32 %r6, [%r4];", 64));
  INFO(text);
  CHECK(says(text, "st.shared.u32 [%r2], %r1"));
  CHECK(says(text, "ld.shared.u32 %r6, [%r4]"));
  CHECK(says(text, "no order between"));
  CHECK(says(text, "block (0, 0, 0)"));
  CHECK(races_in("st.shared.u32 [%r2], %r1;\nbar.sync 0;\nld.shared.u32 %r6, [%r4];", 64).empty());
  // And before it is written again.
  CHECK(races_in("st.shared.u32 [%r2], %r1;\nbar.sync 0;\nld.shared.u32 %r6, [%r4];\n"
                 "st.shared.u32 [%r2], %r1;",
                 64)
            .size() == 1);
  CHECK(races_in("st.shared.u32 [%r2], %r1;\nbar.sync 0;\nld.shared.u32 %r6, [%r4];\nbar.sync 0;\n"
                 "st.shared.u32 [%r2], %r1;",
                 64)
            .empty());
}

TEST_CASE("races: the first one ends the run") {
  std::array<unsigned char, 64> memory = {};
  Races races({});
  SnippetRun how;
  how.block.x = 64;
  how.watchers = {&races};
  CHECK_THROWS_AS(
      run_snippet(snippet(body_of("st.shared.u32 [%r2], %r1;\nld.shared.u32 %r6, [%r4];"), kBuffer),
                  memory.data(), memory.data(), how),
      std::runtime_error);
}

TEST_CASE("races: lanes of a warp are ordered by barriers, not by shuffles") {
  const std::string write = "st.shared.u32 [%r2], %r1;\n", read = "ld.shared.u32 %r6, [%r4];\n";
  const std::string shuffle = "shfl.sync.bfly.b32 %r7, %r1, 1, 31, -1;\n";
  CHECK(races_in(write + read, 32, {}, 1, 1).size() == 1);
  CHECK(races_in(write + shuffle + read, 32, {}, 1, 1).size() == 1);
  CHECK(races_in(write + "bar.warp.sync -1;\n" + read, 32, {}, 1, 1).empty());
  CHECK(races_in(write + "bar.sync 0;\n" + read, 32, {}, 1, 1).empty());
  // A lane's own.
  CHECK(races_in(write + read, 32, {}, 1, 0).empty());
  // All read what one has written.
  const std::string all = "ld.shared.u32 %r6, [%r3];\n";
  CHECK(races_in("setp.eq.s32 %p1, %r1, 3;\n@%p1 st.shared.u32 [%r3], %r1;\n" + all, 32).size() ==
        1);
  CHECK(
      races_in(
          "setp.eq.s32 %p1, %r1, 3;\n@%p1 st.shared.u32 [%r3], %r1;\nbar.warp.sync -1;\n" + all, 32)
          .empty());
  // What many have read, one writes.
  CHECK(races_in(all + "setp.eq.s32 %p1, %r1, 3;\n@%p1 st.shared.u32 [%r3], %r1;", 32).size() == 1);
  CHECK(races_in(all + "bar.warp.sync -1;\nsetp.eq.s32 %p1, %r1, 3;\n"
                       "@%p1 st.shared.u32 [%r3], %r1;",
                 32)
            .empty());
}

TEST_CASE("races: of a place that many have read none is forgotten") {
  const std::string all = "ld.shared.u32 %r6, [%r3];\n";
  const std::string once_more =
      "setp.eq.s32 %p1, %r1, 3;\n@%p1 ld.shared.u32 %r6, [%r3];\n"
      "@%p1 st.shared.u32 [%r3], %r1;\n";
  CHECK(races_in(all + once_more, 32).size() == 1);
  CHECK(races_in(all + "bar.warp.sync -1;\n" + once_more, 32).empty());
}

TEST_CASE("races: bytes beside each other are not the same") {
  const std::string halves =
      "shl.b32 %r7, %r1, 1;\nadd.s32 %r7, %r3, %r7;\nmov.u16 %rs1, 1;\n"
      "st.shared.u16 [%r7], %rs1;\n";
  CHECK(races_in(halves, 32).empty());
  CHECK(races_in(halves + "ld.shared.u32 %r6, [%r2];", 32).size() == 1);
  CHECK(races_in(halves + "bar.warp.sync -1;\nld.shared.u32 %r6, [%r2];", 32).empty());
}

TEST_CASE("races: atomics among themselves are none") {
  const std::string add = "atom.shared.add.u32 %r6, [%r3], 1;\n";
  CHECK(races_in(add + add, 64).empty());
  CHECK(races_in(add + "ld.shared.u32 %r6, [%r3];", 64).size() == 1);
  CHECK(races_in(add + "bar.sync 0;\nld.shared.u32 %r6, [%r3];", 64).empty());
  CHECK(races_in("st.shared.u32 [%r3], 0;\n" + add, 1).empty());
}

TEST_CASE("races: barriers of some threads") {
  // The first warp writes and tells, the second one waits and reads.
  const auto kernel = [](const std::string& tells, const std::string& waits) {
    return "setp.lt.u32 %p1, %r1, 32;\n@!%p1 bra other;\nst.shared.u32 [%r2], %r1;\n" + tells +
           "bra end;\nother:\n" + waits + "ld.shared.u32 %r6, [%r4];\nend:\n";
  };
  CHECK(races_in(kernel("", ""), 64).size() == 1);
  CHECK(races_in(kernel("bar.arrive 1, 64;\n", "bar.sync 1, 64;\n"), 64).empty());
  // Whoever only arrives does not wait: the other way there is no order.
  CHECK(races_in(kernel("bar.sync 1, 64;\n", "bar.arrive 1, 64;\n"), 64).size() == 1);
}

TEST_CASE("races: arrivals at an mbarrier come before its waits") {
  const auto kernel = [](const std::string& tells, const std::string& waits) {
    return with_mbarrier(
        1, "setp.lt.u32 %p1, %r1, 32;\n@!%p1 bra other;\nst.shared.u32 [%r2], %r1;\n" + tells +
               "bra end;\nother:\n" + waits + "ld.shared.u32 %r6, [%r4];\nend:\n");
  };
  const std::string arrive = "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];\n";
  // Without a barrier of the warp the first lane tells its own doings only.
  const std::vector<Race> races = races_in(kernel(arrive, wait_for(0, "again")), 64);
  REQUIRE(says(only(races), "ld.shared.u32"));
  CHECK(races[0].times == 31);
  CHECK(races_in(kernel("bar.warp.sync -1;\n" + arrive, wait_for(0, "again")), 64).empty());
  CHECK(races_in(kernel("bar.warp.sync -1;\n" + arrive, ""), 64).size() == 1);
}

TEST_CASE("races: an mbarrier is used behind its making") {
  CHECK(says(
      only(races_in(
          with_mbarrier(
              1, "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];\n" + wait_for(0, "again"), false),
          32)),
      "makes it"));
  CHECK(races_in(with_mbarrier(1, kBulkCopy + wait_for(0, "again")), 32).empty());
  // Whichever lanes: the second one makes it, the first one uses it.
  const auto second = [](const std::string& meet) {
    return races_in(
        "add.s32 %r10, %r3, 2048;\nsetp.eq.s32 %p1, %r1, 1;\nsetp.eq.s32 %p2, %r1, 0;\n"
        "@%p1 mbarrier.init.shared::cta.b64 [%r10], 1;\n" +
            meet + "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];\n",
        32);
  };
  CHECK(says(only(second("")), "makes it"));
  CHECK(second("bar.warp.sync -1;\n").empty());
}

TEST_CASE("races: bulk copies are waited for") {
  const std::string read = "ld.shared.u32 %r6, [%r2];\n";
  const std::string text =
      only(races_in(with_mbarrier(1, kBulkCopy + read + wait_for(0, "again")), 32));
  CHECK(says(text, "copies to"));
  CHECK(says(text, "no order between"));
  CHECK(races_in(with_mbarrier(1, kBulkCopy + wait_for(0, "again") + read), 32).empty());
  // One over the other.
  CHECK(races_in(with_mbarrier(2, kBulkCopy + kBulkCopy + wait_for(0, "again")), 32).size() == 1);
  CHECK(
      races_in(with_mbarrier(1, kBulkCopy + wait_for(0, "again") + kBulkCopy + wait_for(1, "more")),
               32)
          .empty());
}

TEST_CASE("races: where the copy engine writes, threads have read and said so by a fence") {
  const std::string read_copied = kBulkCopy + wait_for(0, "again") + "ld.shared.u32 %r6, [%r2];\n";
  const std::string again = kBulkCopy + wait_for(1, "more");
  const std::string fence = "fence.proxy.async.shared::cta;\n";
  CHECK(says(only(races_in(with_mbarrier(1, read_copied + again), 32)), "no order between"));
  CHECK(says(only(races_in(with_mbarrier(1, read_copied + "bar.sync 0;\n" + again), 32)),
             "no fence.proxy.async between"));
  // By those that have read, or by the one that copies.
  CHECK(races_in(with_mbarrier(1, read_copied + fence + "bar.sync 0;\n" + again), 32).empty());
  CHECK(races_in(with_mbarrier(1, read_copied + "bar.sync 0;\n" + fence + again), 32).empty());
  // A fence of the others is none for what came behind it.
  CHECK(races_in(with_mbarrier(1, kBulkCopy + wait_for(0, "again") + fence +
                                      "ld.shared.u32 %r6, [%r2];\nbar.sync 0;\n" + again),
                 32)
            .size() == 1);
  // The same of what they have written.
  const std::string written = "st.shared.u32 [%r2], %r1;\nbar.sync 0;\n" + kBulkCopy;
  CHECK(says(only(races_in(with_mbarrier(1, written + wait_for(0, "again")), 32)),
             "no fence.proxy.async between"));
}

TEST_CASE("races: cp.async is waited for by its lane, then told to the others") {
  const std::string copy =
      "shl.b32 %r7, %r1, 4;\nadd.s32 %r8, %r3, %r7;\ncvt.u64.u32 %rd3, %r7;\nadd.s64 %rd3, %rd2, "
      "%rd3;\ncp.async.cg.shared.global [%r8], [%rd3], 16;\ncp.async.commit_group;\n";
  const std::string own = "ld.shared.u32 %r6, [%r8];\n", others = "ld.shared.u32 %r6, [%r4];\n";
  const std::string wait = "cp.async.wait_group 0;\n", meet = "bar.warp.sync -1;\n";
  CHECK(races_in(copy + own, 32).size() == 1);
  CHECK(races_in(copy + wait + own, 32).empty());
  CHECK(races_in(copy + wait + others, 32, {}, 1, 4).size() == 1);
  CHECK(races_in(copy + meet + others, 32, {}, 1, 4).size() == 1);
  CHECK(races_in(copy + wait + meet + others, 32, {}, 1, 4).empty());
  // The group before the last one.
  const std::string next =
      "add.s32 %r8, %r8, 1024;\ncp.async.cg.shared.global [%r8], [%rd3], 16;\n"
      "cp.async.commit_group;\ncp.async.wait_group 1;\n";
  CHECK(races_in(copy + next + own, 32).size() == 1);
  CHECK(races_in(copy + next + "ld.shared.u32 %r6, [%r8+-1024];\n", 32).empty());
}

TEST_CASE("races: what nobody has written") {
  const std::string half =
      "setp.lt.u32 %p1, %r1, 16;\n@%p1 st.shared.u32 [%r2], %r1;\n"
      "bar.warp.sync -1;\nld.shared.u32 %r6, [%r2];\n";
  CHECK(races_in(half, 32).empty());
  RaceOptions options;
  options.unwritten = true;
  const std::vector<Race> races = races_in(half, 32, options);
  REQUIRE(says(only(races), "nobody has written"));
  CHECK(races[0].times == 16);
  CHECK(races_in("st.shared.u32 [%r2], %r1;\nld.shared.u32 %r6, [%r2];\n", 32, options).empty());
}

TEST_CASE("races: global memory between the threads of a block") {
  const std::string write =
      "cvt.u64.u32 %rd3, %r1;\nshl.b64 %rd3, %rd3, 2;\nadd.s64 %rd3, %rd1, "
      "%rd3;\nst.global.u32 [%rd3], %r1;\n";
  const std::string read = "xor.b64 %rd3, %rd3, 128;\nld.global.u32 %r6, [%rd3];\n";
  CHECK(says(only(races_in(write + read, 64)), "global memory"));
  CHECK(races_in(write + "bar.sync 0;\n" + read, 64).empty());
  RaceOptions shared_only;
  shared_only.global = false;
  CHECK(races_in(write + read, 64, shared_only).empty());
  // Two blocks write to the same.
  CHECK(says(only(races_in(write, 32, {}, 2)), ": block "));
}

TEST_CASE("races: blocks that wait for one another") {
  // Block 0's second warp writes, its first lane tells of it at out + 1024; block 1 reads.
  const auto kernel = [](const std::string& meet, const std::string& tell,
                         const std::string& poll) {
    return "mov.u32 %r7, %ctaid.x;\nsetp.eq.s32 %p1, %r7, 0;\nsetp.eq.s32 %p2, %r1, 0;\n"
           "@!%p1 bra other;\nsetp.lt.u32 %p4, %r1, 32;\n@!%p4 st.global.u32 [%rd1], %r1;\n" +
           meet + "@%p2 " + tell + " [%rd1+1024], 1;\nbra end;\nother:\n@!%p2 bra met;\nagain:\n" +
           poll + " %r8, [%rd1+1024];\nsetp.lt.u32 %p3, %r8, 1;\n@%p3 bra again;\nmet:\n" +
           "bar.sync 0;\nld.global.u32 %r6, [%rd1];\nend:\n";
  };
  const std::string meet = "bar.sync 0;\n";
  const std::string tell = "red.release.gpu.global.add.u32", poll = "ld.acquire.gpu.global.u32";
  const auto races_between = [](const std::string& body) {
    // One lane writes, so that it is no race in itself.
    std::string text = body;
    const std::string all = "setp.lt.u32 %p4, %r1, 32;";
    text.replace(text.find(all), all.size(), "setp.ne.s32 %p4, %r1, 40;");
    return races_in(text, 64, {}, 2);
  };
  CHECK(races_between(kernel(meet, tell, poll)).empty());
  CHECK(races_between(kernel("", tell, poll)).size() == 1);
  CHECK(races_between(kernel(meet, "red.relaxed.gpu.global.add.u32", poll)).size() == 1);
  CHECK(races_between(kernel(meet, tell, "ld.relaxed.gpu.global.u32")).size() == 1);
}

namespace {

// Hooks called by hand: a block of four warps.
struct Scene {
  Scene() : grid(start()), block(grid, 0) {
    write.opcode = "st.shared.v4.u32";
    write.text = "st.shared.v4.u32 [%r1], {}";
    add.opcode = "atom.shared.add.u32";
    add.text = "atom.shared.add.u32 %r1, [%r2], 1";
    product.opcode = "wgmma.mma_async";
    product.text = "wgmma.mma_async {}";
  }
  const Launch& start() {
    kernel.name = "scene";
    kernel.static_shared = kernel.dynamic_shared = kReservedShared + 4096;
    launch.kernel = &kernel;
    launch.block.x = 128;
    launch.watchers = {&races};
    return launch;
  }
  const Warp& warp(unsigned index) { return *block.warps()[index]; }
  void writes(unsigned index, uint32_t piece) { touches(index, piece, write, Access::write); }
  void adds(unsigned index, uint32_t piece) { touches(index, piece, add, Access::atomic); }
  void touches(unsigned index, uint32_t piece, const Instruction& instruction, Access access) {
    std::array<uint32_t, kLanes> addresses = {};
    addresses[0] = kReservedShared + 16 * piece;
    races.shared(warp(index), instruction, 1, addresses.data(), 16, access);
    races.ran(warp(index), instruction, 1);
  }
  void multiplies(unsigned index, uint32_t piece) {
    races.product_reads(warp(index), product, kReservedShared + 16 * piece, 16);
    races.ran(warp(index), product, ~Mask{0});
  }
  void meet(uint64_t generation) {
    for (unsigned i = 0; i < 4; ++i) races.barrier_reached(warp(i), 0, generation);
    for (unsigned i = 0; i < 4; ++i) races.barrier_passed(warp(i), 0, generation);
  }

  Races races{{.stop = false}};
  Kernel kernel;
  Instruction write, add, product;
  Launch launch;
  Grid grid;
  Block block;
};

}  // namespace

TEST_CASE("races: a write stays one, though its lane has added since") {
  Scene scene;
  scene.writes(0, 0);
  scene.adds(0, 0);
  CHECK(scene.races.found().empty());
  scene.adds(1, 0);
  CHECK(scene.races.found().size() == 1);
}

TEST_CASE("races: products read what was written before a fence and a barrier") {
  SUBCASE("as it has to be") {
    Scene scene;
    scene.writes(1, 0);
    scene.races.proxy_fence(scene.warp(1), ~Mask{0}, StateSpace::shared);
    scene.meet(0);
    scene.multiplies(0, 0);
    CHECK(scene.races.found().empty());
  }
  SUBCASE("a warp's own") {
    Scene scene;
    scene.writes(0, 0);
    scene.races.proxy_fence(scene.warp(0), ~Mask{0}, StateSpace::shared);
    scene.multiplies(0, 0);
    CHECK(scene.races.found().empty());
  }
  SUBCASE("no fence") {
    Scene scene;
    scene.writes(1, 0);
    scene.meet(0);
    scene.multiplies(0, 0);
    CHECK(says(only(scene.races.found()), "no fence.proxy.async between"));
  }
  SUBCASE("no barrier") {
    Scene scene;
    scene.writes(1, 0);
    scene.races.proxy_fence(scene.warp(1), ~Mask{0}, StateSpace::shared);
    scene.multiplies(0, 0);
    CHECK(says(only(scene.races.found()), "no order between"));
  }
}

TEST_CASE("races: what a product reads is not written before its wait") {
  Scene scene;
  scene.multiplies(0, 0);
  scene.races.products_committed(scene.warp(0));
  scene.multiplies(0, 1);
  scene.races.products_committed(scene.warp(0));
  SUBCASE("waited for") {
    scene.races.products_waited(scene.warp(0), 0);
    scene.writes(0, 0);
    scene.writes(0, 1);
    CHECK(scene.races.found().empty());
  }
  SUBCASE("the first group only") {
    scene.races.products_waited(scene.warp(0), 1);
    scene.writes(0, 0);
    CHECK(scene.races.found().empty());
    scene.writes(0, 1);
    CHECK(says(only(scene.races.found()), "multiplies"));
  }
  SUBCASE("by another warp") {
    scene.races.products_waited(scene.warp(0), 0);
    scene.meet(0);
    scene.writes(3, 0);
    CHECK(scene.races.found().empty());
  }
  SUBCASE("by another warp, met too early") {
    scene.meet(0);
    scene.races.products_waited(scene.warp(0), 0);
    scene.writes(3, 0);
    CHECK(scene.races.found().size() == 1);
  }
}

}  // namespace mtl::ptx
