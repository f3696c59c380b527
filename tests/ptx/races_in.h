// The races of a small kernel, for tests.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "ptx/races.h"
#include "ptx/snippet.h"

namespace mtl::ptx {

inline constexpr const char* kBuffer = ".shared .align 128 .b8 buffer[4096];\n";

// %r1: the thread, %r2: its word of the buffer, %r3: the buffer, %r4: the word of the thread whose
// number differs in bit `other`, %rd1: out, %rd2: in.
inline std::string body_of(const std::string& body, unsigned other = 32) {
  return "mov.u32 %r1, %tid.x;\nmov.u32 %r3, buffer;\nshl.b32 %r5, %r1, 2;\n"
         "add.s32 %r2, %r3, %r5;\nxor.b32 %r5, %r5, " +
         std::to_string(4 * other) +
         ";\nadd.s32 %r4, %r3, %r5;\n"
         "ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\n" +
         body;
}

inline std::vector<Race> races_in(const std::string& body, unsigned threads,
                                  RaceOptions options = {}, unsigned blocks = 1,
                                  unsigned other = 32) {
  alignas(256) static std::array<unsigned char, 4096> out, in;  // a test flips the bit of 128
  out = {};
  in = {};
  options.stop = false;
  Races races(options);
  SnippetRun how;
  how.block.x = threads;
  how.grid.x = how.resident = blocks;
  how.watchers = {&races};
  run_snippet(snippet(body_of(body, other), kBuffer), out.data(), in.data(), how);
  return races.found();
}

// The text of the only one.
inline std::string only(const std::vector<Race>& races) {
  REQUIRE(races.size() == 1);
  return races[0].text;
}
inline bool says(const std::string& text, std::string_view what) {
  return text.find(what) != text.npos;
}

// An mbarrier behind the buffer's first KiB, for `arrivals`; %r10 its address, %p2: the first lane.
inline std::string with_mbarrier(unsigned arrivals, const std::string& body, bool meets = true) {
  return "add.s32 %r10, %r3, 2048;\nsetp.eq.s32 %p2, %r1, 0;\n"
         "@%p2 mbarrier.init.shared::cta.b64 [%r10], " +
         std::to_string(arrivals) +
         ";\n@%p2 fence.mbarrier_init.release.cluster;\n@%p2 fence.proxy.async.shared::cta;\n" +
         (meets ? "bar.sync 0;\n" : "") + body;
}
inline std::string wait_for(int parity, const std::string& label) {
  return label + ":\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], " +
         std::to_string(parity) + ";\n@!%p3 bra " + label + ";\n";
}
// 128 bytes to where the first warp's words are, by the first lane.
inline const std::string kBulkCopy =
    "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 128;\n"
    "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2], 128, "
    "[%r10];\n";

}  // namespace mtl::ptx
