#include "ptx/counts.h"

#include <array>
#include <string>

#include <doctest/doctest.h>

#include "ptx/machine.h"
#include "ptx/snippet.h"

namespace mtl::ptx {

namespace {

constexpr Mask kWholeWarp = ~Mask{0};

template <typename Address, typename Place>
std::array<Address, kLanes> each(Place place) {
  std::array<Address, kLanes> addresses = {};
  for (unsigned lane = 0; lane < kLanes; ++lane)
    addresses[lane] = static_cast<Address>(place(lane));
  return addresses;
}
template <typename Place>
Cost shared_cost(unsigned bytes, Place place, Mask lanes = kWholeWarp) {
  return wavefronts(lanes, each<uint32_t>(place).data(), bytes);
}
template <typename Place>
Cost global_cost(unsigned bytes, Place place, Mask lanes = kWholeWarp) {
  return sectors(lanes, each<uint64_t>(place).data(), bytes);
}
void check(const Cost& cost, uint64_t asked, uint64_t least) {
  CHECK(cost.asked == asked);
  CHECK(cost.least == least);
}

bool contains(const std::string& text, std::string_view what) {
  return text.find(what) != text.npos;
}

}  // namespace

TEST_CASE("counts: wavefronts of shared memory") {
  const auto stride = [](unsigned words) {
    return [words](unsigned lane) { return 4 * words * lane; };
  };
  check(shared_cost(4, stride(1)), 1, 1);
  check(shared_cost(4, stride(2)), 2, 1);
  check(shared_cost(4, stride(32)), 32, 1);
  check(shared_cost(4, stride(33)), 1, 1);
  check(shared_cost(4, stride(0)), 1, 1);  // all the same word
  check(shared_cost(4, stride(32), 0xff), 8, 1);
  // Two halves are one word.
  check(shared_cost(2, [](unsigned lane) { return 2 * lane; }), 1, 1);
  check(shared_cost(1, stride(32)), 32, 1);
  // 8 bytes: each half warp.
  check(shared_cost(8, stride(2)), 2, 2);
  check(shared_cost(8, stride(4)), 4, 2);
  check(shared_cost(8, stride(2), 0xffff), 1, 1);
  // 16 bytes: each quarter.
  check(shared_cost(16, stride(4)), 4, 4);
  check(shared_cost(16, stride(8)), 8, 4);
  check(shared_cost(16, stride(32)), 32, 4);
  check(shared_cost(16, stride(0)), 4, 4);
  check(shared_cost(16, stride(4), 0), 0, 0);
  // ldmatrix of four 8 x 8: rows of 128 bytes, as they lie and swizzled.
  check(shared_cost(16, [](unsigned lane) { return lane % 8 * 128 + lane / 8 * 16; }), 32, 4);
  check(shared_cost(16,
                    [](unsigned lane) { return lane % 8 * 128 + ((lane / 8) ^ (lane % 8)) * 16; }),
        4, 4);
}

TEST_CASE("counts: sectors of global memory") {
  check(global_cost(4, [](unsigned lane) { return 4096 + 4 * lane; }), 4, 4);
  check(global_cost(4, [](unsigned lane) { return 4096 + 8 * lane; }), 8, 4);
  check(global_cost(4, [](unsigned lane) { return 4096 + 1024 * lane; }), 32, 4);
  check(global_cost(4, [](unsigned) { return 4096; }), 1, 1);
  check(global_cost(2, [](unsigned lane) { return 4096 + 2 * lane; }), 2, 2);
  check(global_cost(2, [](unsigned lane) { return 4096 + 32 * lane; }), 32, 2);
  check(global_cost(16, [](unsigned lane) { return 4096 + 16 * lane; }), 16, 16);
  check(global_cost(16, [](unsigned lane) { return 4096 + 64 * lane; }), 32, 16);
  // Rows that begin 8 bytes off, of 128 and of 64 bytes.
  check(global_cost(4, [](unsigned lane) { return 4104 + 4 * lane; }), 5, 4);
  check(global_cost(4, [](unsigned lane) { return 4104 + lane / 16 * 1000 + lane % 16 * 4; }), 6,
        4);
  // Backwards, and fewer lanes.
  check(global_cost(
            4, [](unsigned lane) { return 8192 - 4 * lane; }, 0x3),
        2, 1);
  check(global_cost(
            4, [](unsigned lane) { return 4096 + 4 * lane; }, 0),
        0, 0);
}

TEST_CASE("counts: what an instruction keeps busy") {
  CHECK(work_of("fma.rn.f32") == Work::f32);
  CHECK(work_of("fma.rn.f64") == Work::f64);
  CHECK(work_of("mad.lo.s32") == Work::integer);
  CHECK(work_of("setp.lt.f32") == Work::f32);
  CHECK(work_of("cvt.rn.bf16x2.f32") == Work::conversion);
  CHECK(work_of("ex2.approx.ftz.f32") == Work::special);
  CHECK(work_of("div.rn.f32") == Work::special);
  CHECK(work_of("div.s32") == Work::integer);
  CHECK(work_of("ld.shared.v4.u32") == Work::shared);
  CHECK(work_of("stmatrix.sync.aligned.m8n8.x4.shared.b16") == Work::shared);
  CHECK(work_of("ld.param.u64") == Work::other);
  CHECK(work_of("red.release.gpu.global.add.u32") == Work::global);
  CHECK(work_of("cp.async.cg.shared.global") == Work::global);
  CHECK(work_of("cp.async.wait_group") == Work::control);
  CHECK(work_of("cp.async.bulk.global.shared::cta.bulk_group") == Work::global);
  CHECK(work_of("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32") == Work::global);
  CHECK(work_of("cp.async.bulk.wait_group.read") == Work::control);
  CHECK(work_of("fence.proxy.async.global") == Work::control);
  CHECK(work_of("wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16") == Work::tensor);
  CHECK(work_of("wgmma.wait_group.sync.aligned") == Work::control);
  CHECK(work_of("shfl.sync.bfly.b32") == Work::exchange);
  CHECK(work_of("mbarrier.try_wait.parity.shared::cta.b64") == Work::control);
  CHECK(work_of("mov.b64") == Work::other);
}

TEST_CASE("counts: names without what all of them have") {
  CHECK(short_name("_ZN3mtl4cuda12store_slopesIvEEvNS0_10SlopeChunkEiPf") == "store_slopes<void>");
  CHECK(short_name("kernel") == "kernel");
  CHECK(short_name("_ZN3mtl4cuda12_GLOBAL__N_14rowsINS0_4Bf16ELi64ELb1EEEvPT_") ==
        "rows<Bf16, 64, true>");
}

TEST_CASE("counts: what the copy engine reads and writes of global memory") {
  alignas(128) std::array<unsigned char, 8192> out = {}, in = {};
  const std::string text = snippet(
      "ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\nmov.u32 %r1, %tid.x;\n"
      "mov.u32 %r3, buffer;\nmov.u32 %r4, barrier;\nsetp.eq.s32 %p1, %r1, 0;\n@!%p1 bra end;\n"
      "mbarrier.init.shared::cta.b64 [%r4], 1;\nfence.mbarrier_init.release.cluster;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2+48], 1024, "
      "[%r4];\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;\n@!%p2 bra again;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%rd1+16], [%r3], 2048;\n"
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1+4096], [%r3], 64;\n"
      "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nend:\n",
      ".shared .align 128 .b8 buffer[2048];\n.shared .align 8 .b8 barrier[8];\n");
  Counts counts;
  SnippetRun how;
  how.watchers = {&counts};
  run_snippet(text, out.data(), in.data(), how);
  REQUIRE(counts.kernels().size() == 1);
  std::vector<const Counts::Line*> found;
  for (const Counts::Line& line : counts.kernels().begin()->second.lines) {
    if (line.global.asked > 0) found.push_back(&line);
  }
  REQUIRE(found.size() == 3);
  check(found[0]->global, 33, 32);
  check(found[1]->global, 65, 64);
  check(found[2]->global, 2, 2);
  CHECK(found[0]->global_bytes == 1024);
  CHECK(found[1]->global_bytes == 2048);
  CHECK(found[2]->global_bytes == 64);
  CHECK(found[2]->shared.asked == 0);
}

TEST_CASE("counts: a kernel's report") {
  alignas(128) std::array<unsigned char, 8192> out = {}, in = {};
  // Each lane its word of every second, in memory and in shared memory; half of them once more.
  const std::string text = snippet(
      "ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];\nmov.u32 %r1, %tid.x;\n"
      "mul.wide.u32 %rd3, %r1, 8;\nadd.s64 %rd2, %rd2, %rd3;\n.loc 1 20 3\n"
      "ld.global.u32 %r2, [%rd2];\nmov.u32 %r3, buffer;\nshl.b32 %r4, %r1, 3;\n"
      "add.s32 %r3, %r3, %r4;\n"
      ".loc 2 7 1, function_name $L__info_string0, inlined_at 1 30 5\n"
      "st.shared.u32 [%r3], %r2;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 ld.shared.u32 %r5, [%r3];\n",
      ".shared .align 128 .b8 buffer[1024];\n");
  const Module module(text + ".file 1 \"/somewhere/rows.cu\"\n.file 2 \"/somewhere/gpu.h\"\n");
  Launch launch;
  launch.kernel = &module.kernel("kernel");
  launch.grid.x = 3;
  launch.block.x = 32;
  launch.parameters.resize(16);
  const void* const pointers[2] = {out.data(), in.data()};
  std::memcpy(launch.parameters.data(), pointers, 16);
  Counts first, both;
  launch.watchers = {&first};
  run(launch);
  run(launch);
  both.add(first);
  both.add(first);

  REQUIRE(both.kernels().size() == 1);
  const Counts::OfKernel& counted = both.kernels().begin()->second;
  CHECK(counted.launches == 4);
  CHECK(counted.blocks == 12);
  Cost shared, global;
  uint64_t shared_times = 0, shared_lanes = 0;
  for (size_t i = 0; i < counted.lines.size(); ++i) {
    shared += counted.lines[i].shared;
    global += counted.lines[i].global;
    if (work_of(launch.kernel->instructions[i].opcode) != Work::shared) continue;
    shared_times += counted.lines[i].times;
    shared_lanes += counted.lines[i].lanes;
  }
  CHECK(shared_times == 24);
  CHECK(shared_lanes == 12 * (32 + 16));
  check(shared, 12 * (2 + 1), 12 * 2);
  check(global, 12 * 8, 12 * 4);

  const std::string report = both.report(10, {&module});
  INFO(report);
  CHECK(contains(report, "wavefronts of shared memory lost, 12 in all, by 1 lines"));
  CHECK(contains(report, "sectors of global memory lost, 48 in all, by 1 lines"));
  CHECK(contains(report, "gpu.h:7 in rows.cu:30"));
  CHECK(contains(report, "rows.cu:20"));
  CHECK(contains(report, "st.shared.u32 [%r3], %r2"));
  CHECK(contains(report, "kernel"));
}

}  // namespace mtl::ptx
