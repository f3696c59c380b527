// Races with the copy engine in global memory, and on its way there: each in a small kernel, and
// beside it the same one mended.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ptx/races_in.h"

namespace mtl::ptx {

namespace {

// The first lane (%p2) takes the first warp's words of the buffer to `out`, and back.
const std::string kFirst = "setp.eq.s32 %p2, %r1, 0;\n";
const std::string kPut =
    "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 128;\n"
    "@%p2 cp.async.bulk.commit_group;\n";
const std::string kSum =
    "@%p2 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r3], 128;\n"
    "@%p2 cp.async.bulk.commit_group;\n";
const std::string kGet =
    "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 128;\n"
    "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+512], [%rd1], "
    "128, [%r10];\n";
const std::string kHasWritten = "@%p2 cp.async.bulk.wait_group 0;\n";
const std::string kHasRead = "@%p2 cp.async.bulk.wait_group.read 0;\n";
const std::string kMeet = "bar.warp.sync -1;\n";
const std::string kFenceGlobal = "fence.proxy.async.global;\n";
const std::string kFenceShared = "fence.proxy.async.shared::cta;\n";
const std::string kWrite = "st.shared.u32 [%r2], %r1;\n";
// The lanes' words of `out`.
const std::string kPlace = "mul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd5, %rd1, %rd5;\n";
const std::string kStoreOut = kPlace + "st.global.u32 [%rd5], %r1;\n";
const std::string kLoadOut = kPlace + "ld.global.u32 %r6, [%rd5];\n";
const std::string kAddOut = kPlace + "red.relaxed.gpu.global.add.f32 [%rd5], 0f3f800000;\n";

std::vector<Race> warp_races(const std::string& body) {
  return races_in(kFirst + body, 32);
}
void check_clean(const std::vector<Race>& races) {
  INFO((races.empty() ? "" : races[0].text));
  CHECK(races.empty());
}
void check_says(const std::vector<Race>& races, const std::string& what) {
  const std::string text = only(races);
  INFO(text);
  CHECK(says(text, what));
}
const std::string kNoOrder = "no order between", kNoFence = "no fence.proxy.async.global between";

}  // namespace

TEST_CASE("races: what a bulk group copies was written before a fence and a barrier") {
  const std::string end = kPut + kHasRead;
  const std::string text = only(warp_races(kWrite + kMeet + end));
  CHECK(says(text, "shared memory"));
  CHECK(says(text, "copies from"));
  CHECK(says(text, "no fence.proxy.async between"));
  check_says(warp_races(kWrite + kFenceGlobal + kMeet + end), "no fence.proxy.async between");
  check_says(warp_races(kWrite + kFenceShared + end), kNoOrder);
  check_clean(warp_races(kWrite + kFenceShared + kMeet + end));
  check_clean(warp_races(kWrite + "fence.proxy.async;\n" + kMeet + end));
  check_clean(warp_races(kWrite + kMeet + kFenceShared + end));
  // What the copy engine has brought it takes away without one.
  check_clean(races_in(with_mbarrier(1, kBulkCopy + wait_for(0, "again") + end), 32));
  check_says(races_in(with_mbarrier(1, kBulkCopy + end + wait_for(0, "again")), 32), kNoOrder);
}

TEST_CASE("races: what a bulk group copies is not written before it has been read") {
  check_says(warp_races(kPut + kMeet + kWrite + kHasRead), "copies from");
  check_says(warp_races(kPut + kHasRead + kWrite), kNoOrder);
  check_says(warp_races(kPut + kMeet + kHasRead + kWrite), kNoOrder);
  check_clean(warp_races(kPut + kHasRead + kMeet + kWrite));
  check_clean(warp_races(kPut + kHasWritten + kMeet + kWrite));
  // Its own lane needs no barrier, and another one's wait is none.
  check_clean(warp_races(kPut + kHasRead + "@%p2 st.shared.u32 [%r2], %r1;\n"));
  check_says(warp_races(kPut + "@%p2 st.shared.u32 [%r2], %r1;\n" + kHasRead), "copies from");
  check_says(warp_races(kPut + "@!%p2 cp.async.bulk.wait_group 0;\n" + kMeet + kWrite + kHasRead),
             "copies from");
  // Of two groups the first, and the last; an empty one counts.
  const std::string next =
      "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1+256], [%r3+256], 128;\n"
      "@%p2 cp.async.bulk.commit_group;\n";
  const std::string one = "@%p2 cp.async.bulk.wait_group.read 1;\n";
  const std::string end = kMeet + "st.shared.u32 [%r2+256], %r1;\n" + kHasRead;
  check_clean(warp_races(kPut + next + one + kMeet + kWrite + kHasRead));
  check_says(warp_races(kPut + next + one + end), "copies from");
  check_clean(warp_races(kPut + next + "@%p2 cp.async.bulk.commit_group;\n" + one + end));
  // What is committed later is waited for later.
  check_says(
      warp_races("@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 128;\n" +
                 kHasRead + kMeet + kWrite + "@%p2 cp.async.bulk.commit_group;\n" + kHasRead),
      "copies from");
  // It may be read meanwhile, also by another copy.
  check_clean(warp_races(kPut + "ld.shared.u32 %r6, [%r2];\n" +
                         "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1+256], [%r3], "
                         "128;\n@%p2 cp.async.bulk.commit_group;\n" +
                         kHasRead));
  // Two lanes copy it, one has not waited.
  check_says(warp_races("setp.lt.u32 %p4, %r1, 2;\nmul.wide.u32 %rd6, %r1, 256;\n"
                        "add.s64 %rd6, %rd1, %rd6;\n"
                        "@%p4 cp.async.bulk.global.shared::cta.bulk_group [%rd6], [%r3], 128;\n"
                        "@%p4 cp.async.bulk.commit_group;\n" +
                        kHasRead + kMeet + kWrite + "@%p4 cp.async.bulk.wait_group.read 0;\n"),
             "lane 1 copies from");
}

TEST_CASE("races: what the copy engine writes is there behind the wait for all of it") {
  for (const std::string& put : {kPut, kSum}) {
    CAPTURE(put);
    const std::string deed = put == kPut ? "copies to" : "adds to";
    check_says(warp_races(put + kHasRead + kMeet + kLoadOut), deed);
    check_says(warp_races(put + kHasWritten + kLoadOut), kNoOrder);
    check_clean(warp_races(put + kHasWritten + kMeet + kLoadOut));
    check_clean(warp_races(put + kHasWritten + "@%p2 ld.global.u32 %r6, [%rd1];\n"));
    check_says(warp_races(put + kHasRead + "@%p2 ld.global.u32 %r6, [%rd1];\n"), deed);
    check_says(warp_races(put + kHasRead + kMeet + kStoreOut), deed);
    check_clean(warp_races(put + kHasWritten + kMeet + kStoreOut));
    // The copy engine itself.
    const std::string get = kGet + wait_for(0, "again");
    check_says(races_in(with_mbarrier(1, put + kHasRead + get), 32), kNoOrder);
    check_clean(races_in(with_mbarrier(1, put + kHasWritten + get), 32));
    check_says(warp_races(put + kPut + kHasRead), kNoOrder);
    check_clean(warp_races(put + kHasWritten + kPut + kHasRead));
  }
}

TEST_CASE("races: before the copy engine takes global memory there is a fence") {
  for (const std::string& before : {kStoreOut, kLoadOut, kAddOut}) {
    for (const std::string& put : {kPut, kSum}) {
      CAPTURE(before);
      CAPTURE(put);
      const std::string end = put + kHasRead;
      check_says(warp_races(before + end), kNoOrder);
      check_says(warp_races(before + kMeet + end), kNoFence);
      check_says(warp_races(before + kFenceShared + kMeet + end), kNoFence);
      check_says(warp_races(kFenceGlobal + before + kMeet + end), kNoFence);
      check_clean(warp_races(before + kFenceGlobal + kMeet + end));
      check_clean(warp_races(before + kMeet + kFenceGlobal + end));
      check_clean(warp_races(before + kMeet + "fence.proxy.async;\n" + end));
    }
  }
  // As it reads.
  const auto reads = [](const std::string& before) {
    return races_in(with_mbarrier(1, before + kGet + wait_for(0, "again")), 32);
  };
  check_says(reads(kStoreOut), kNoOrder);
  check_says(reads(kStoreOut + kMeet), kNoFence);
  check_says(reads(kStoreOut + kFenceShared + kMeet), kNoFence);
  check_clean(reads(kStoreOut + kFenceGlobal + kMeet));
  check_clean(reads(kStoreOut + kMeet + kFenceGlobal));
  check_clean(reads(kLoadOut));
}

TEST_CASE("races: a fence is told of by mbarriers, and by words of global memory") {
  // The first warp writes, the second one copies there.
  const auto races = [](const std::string& first, const std::string& tell,
                        const std::string& wait) {
    return races_in(with_mbarrier(1,
                                  "setp.lt.u32 %p1, %r1, 32;\nsetp.eq.s32 %p5, %r1, 32;\n"
                                  "@!%p1 bra other;\n" +
                                      first + kMeet + tell + "bra end;\nother:\n" + wait + kMeet +
                                      "@%p5 cp.async.bulk.global.shared::cta.bulk_group [%rd1], "
                                      "[%r3], 128;\n@%p5 cp.async.bulk.commit_group;\n"
                                      "@%p5 cp.async.bulk.wait_group.read 0;\nend:\n"),
                    64);
  };
  const std::string arrive = "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];\n";
  const std::string wait = wait_for(0, "again");
  check_clean(races(kStoreOut + kFenceGlobal, arrive, wait));
  check_says(races(kStoreOut, arrive, wait), kNoFence);
  const std::string release = "@%p2 red.release.gpu.global.add.u32 [%rd1+2048], 1;\n";
  const std::string poll =
      "poll:\nld.acquire.gpu.global.u32 %r8, [%rd1+2048];\nsetp.lt.u32 %p4, %r8, 1;\n"
      "@%p4 bra poll;\n";
  check_clean(races(kStoreOut + kFenceGlobal, release, poll));
  check_says(races(kStoreOut, release, poll), kNoFence);
}

TEST_CASE("races: what the copy engine reads of global memory is not written meanwhile") {
  const std::string wait = wait_for(0, "again");
  check_says(races_in(with_mbarrier(1, kGet + kMeet + kStoreOut + wait), 32), "copies from");
  check_clean(races_in(with_mbarrier(1, kGet + wait + kStoreOut), 32));
  check_says(races_in(with_mbarrier(1, kGet + kSum + wait + kHasRead), 32), "copies from");
  check_clean(races_in(with_mbarrier(1, kGet + wait + kSum + kHasRead), 32));
  check_clean(races_in(with_mbarrier(1, kGet + kMeet + kLoadOut + wait), 32));
}

TEST_CASE("races: sums of the copy engine are none towards each other") {
  check_clean(warp_races(kSum + kSum + kHasRead));
  check_clean(races_in(kFirst + kSum + kHasRead, 32, {}, 4));
  check_says(races_in(kFirst + kPut + kHasRead, 32, {}, 2), kNoOrder);
  // Towards all that is not one of them, red of the generic proxy too.
  const auto with_other = [](const std::string& other) {
    return races_in(kFirst + "mov.u32 %r7, %ctaid.x;\nsetp.eq.s32 %p1, %r7, 0;\n@%p1 bra other;\n" +
                        kSum + kHasWritten + "bra end;\nother:\n" + other + "end:\n",
                    32, {}, 2);
  };
  check_says(with_other(kLoadOut), kNoOrder);
  check_says(with_other(kStoreOut), kNoOrder);
  check_says(with_other(kAddOut), kNoOrder);
  check_says(with_other(kPut + kHasRead), kNoOrder);
  CHECK(says(with_other(kLoadOut)[0].text, "block "));
}

namespace {

// Block 0 does `first`, then its first lane tells of it; block 1 waits for that and does `then`.
std::vector<Race> handed_on(const std::string& first, const std::string& then,
                            const std::string& tell = "red.release.gpu.global.add.u32") {
  return races_in(
      with_mbarrier(1, "mov.u32 %r7, %ctaid.x;\nsetp.eq.s32 %p1, %r7, 0;\n@!%p1 bra other;\n" +
                           first + "@%p2 " + tell +
                           " [%rd1+2048], 1;\nbra end;\nother:\n@!%p2 bra met;\npoll:\n"
                           "ld.acquire.gpu.global.u32 %r8, [%rd1+2048];\nsetp.lt.u32 %p4, %r8, 1;\n"
                           "@%p4 bra poll;\nmet:\nbar.sync 0;\n" +
                           then + "end:\n"),
      32, {}, 2);
}

}  // namespace

TEST_CASE("races: between blocks what the copy engine has written is told of behind the wait") {
  for (const std::string& put : {kPut, kSum}) {
    CAPTURE(put);
    check_clean(handed_on(put + kHasWritten, kLoadOut));
    check_clean(handed_on(put + kHasWritten, kStoreOut));
    check_says(handed_on(put + kHasRead, kLoadOut), kNoOrder);
    check_says(handed_on(put + kHasWritten, kLoadOut, "red.relaxed.gpu.global.add.u32"), kNoOrder);
    check_says(handed_on(put + kHasRead, kFenceGlobal + kGet + wait_for(0, "again")), kNoOrder);
  }
  check_says(handed_on(kSum + kHasRead, kFenceGlobal + kPut + kHasRead), kNoOrder);
  check_clean(handed_on(kSum + kHasRead, kSum + kHasRead));
}

TEST_CASE("races: between blocks the copy engine takes what another has done behind a fence") {
  const std::string get = kGet + wait_for(0, "again");
  struct Pair {
    std::string first, then;
  };
  for (const Pair& pair :
       {Pair{kSum + kHasWritten, get}, Pair{kPut + kHasWritten, get},
        Pair{kSum + kHasWritten, kPut + kHasRead}, Pair{kPut + kHasWritten, kSum + kHasRead},
        Pair{kStoreOut + kMeet, get}, Pair{kAddOut + kMeet, kSum + kHasRead},
        Pair{kLoadOut + kMeet, kPut + kHasRead}, Pair{get, kSum + kHasRead}}) {
    const std::string &first = pair.first, &then = pair.then;
    CAPTURE(first);
    CAPTURE(then);
    check_says(handed_on(first, then), kNoFence);
    check_says(handed_on(first, kFenceShared + then), kNoFence);
    check_says(handed_on(kFenceGlobal + first, then), kNoFence);
    check_clean(handed_on(first, kFenceGlobal + then));
    check_clean(handed_on(first + kFenceGlobal, then));
    // Of lanes that have nothing to do with it.
    check_says(handed_on(first, "@!%p2 " + kFenceGlobal + then), kNoFence);
    check_clean(handed_on(first, "@!%p2 " + kFenceGlobal + kMeet + then));
  }
  // Read but not waited for.
  check_says(handed_on(kGet, kFenceGlobal + kSum + kHasRead), kNoOrder);
}

TEST_CASE("races: what the copy engine does in global memory need not be looked at") {
  RaceOptions shared_only;
  shared_only.global = false;
  CHECK(races_in(kFirst + kPut + kHasRead + kMeet + kLoadOut, 32, shared_only).empty());
  CHECK(
      races_in(with_mbarrier(1, kStoreOut + kGet + wait_for(0, "again")), 32, shared_only).empty());
  CHECK(races_in(kFirst + kPut + kMeet + kWrite + kHasRead, 32, shared_only).size() == 1);
}

}  // namespace mtl::ptx
