#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include "ptx/floats.h"
#include "ptx/snippet.h"

using namespace mtl::ptx;

namespace {

uint64_t bits(float x) {
  return std::bit_cast<uint32_t>(x);
}
uint64_t bits(double x) {
  return std::bit_cast<uint64_t>(x);
}

// Runs `statement` with a, b and c in registers 1, 2 and 3 of every file, and returns register 4 of
// the file that its first operand is of (predicates as 0 or 1).
uint64_t computed(const std::string& statement, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  std::string body = "ld.param.u64 %rd60, [in];\nld.param.u64 %rd61, [out];\n";
  for (int i = 1; i <= 3; ++i) {
    const std::string n = std::to_string(i);
    body += "ld.global.u64 %rd" + n + ", [%rd60+" + std::to_string(8 * (i - 1)) + "];\n";
    body += "cvt.u32.u64 %r" + n + ", %rd" + n + ";\ncvt.u16.u64 %rs" + n + ", %rd" + n + ";\n";
    body += "mov.b32 %f" + n + ", %r" + n + ";\nmov.b64 %fd" + n + ", %rd" + n + ";\n";
    body += "setp.ne.s64 %p" + n + ", %rd" + n + ", 0;\n";
  }
  body += statement + ";\n";
  const auto writes = [&](const std::string& name) {
    return statement.find(name + "4") != std::string::npos;
  };
  if (writes("%p")) body += "selp.u32 %r4, 1, 0, %p4;\n";
  if (writes("%rs")) body += "cvt.u32.u16 %r4, %rs4;\n";
  if (writes("%f")) body += "mov.b32 %r4, %f4;\n";
  if (writes("%fd")) body += "mov.b64 %rd4, %fd4;\n";
  if (!writes("%rd") && !writes("%fd")) body += "cvt.u64.u32 %rd4, %r4;\n";
  body += "st.global.u64 [%rd61], %rd4;";
  const uint64_t in[3] = {a, b, c};
  uint64_t out = 0;
  run_snippet(snippet(body), &out, in);
  return out;
}

}  // namespace

TEST_CASE("ptx arithmetic: integers") {
  CHECK(computed("add.s32 %r4, %r1, %r2", 0xffffffff, 2) == 1);
  CHECK(computed("add.s64 %rd4, %rd1, -5", 3) == static_cast<uint64_t>(-2));
  CHECK(computed("add.s16 %rs4, %rs1, -1", 0) == 0xffff);
  CHECK(computed("sub.s32 %r4, %r1, %r2", 1, 2) == 0xffffffff);
  CHECK(computed("mul.lo.s32 %r4, %r1, %r2", 0x10001, 0x10001) == 0x20001);
  CHECK(computed("mul.lo.s16 %rs4, %rs1, %rs2", 300, 300) == (90000 & 0xffff));
  CHECK(computed("mul.hi.u32 %r4, %r1, %r2", 0xffffffff, 0xffffffff) == 0xfffffffe);
  CHECK(computed("mul.hi.s32 %r4, %r1, %r2", 0xffffffff, 2) == 0xffffffff);
  CHECK(computed("mul.hi.u16 %rs4, %rs1, %rs2", 0xffff, 0xffff) == 0xfffe);
  CHECK(computed("mul.wide.s32 %rd4, %r1, %r2", 0xffffffff, 3) == static_cast<uint64_t>(-3));
  CHECK(computed("mul.wide.u32 %rd4, %r1, 8", 0xffffffff) == 0x7fffffff8);
  CHECK(computed("mul.wide.u16 %r4, %rs1, %rs2", 0xffff, 0xffff) == 0xfffe0001);
  CHECK(computed("mul.lo.s64 %rd4, %rd1, %rd2", 0x100000001, 0x100000001) == 0x200000001);
  CHECK(computed("mad.lo.s32 %r4, %r1, %r2, %r3", 3, 4, 0xffffffff) == 11);
  CHECK(computed("mad.lo.s64 %rd4, %rd1, %rd2, %rd3", uint64_t{1} << 40, 4, 5) ==
        (uint64_t{1} << 42) + 5);
  CHECK(computed("div.s32 %r4, %r1, %r2", static_cast<uint32_t>(-7), 2) ==
        static_cast<uint32_t>(-3));
  CHECK(computed("div.u32 %r4, %r1, %r2", static_cast<uint32_t>(-7), 2) == 0x7ffffffc);
  CHECK(computed("rem.s64 %rd4, %rd1, %rd2", static_cast<uint64_t>(-7), 4) ==
        static_cast<uint64_t>(-3));
  CHECK(computed("rem.u32 %r4, %r1, %r2", 7, 4) == 3);
  CHECK(computed("neg.s32 %r4, %r1", 5) == static_cast<uint32_t>(-5));
  CHECK(computed("neg.s16 %rs4, %rs1", 5) == static_cast<uint16_t>(-5));
  CHECK(computed("min.s32 %r4, %r1, %r2", 0xffffffff, 2) == 0xffffffff);
  CHECK(computed("max.u32 %r4, %r1, %r2", 0xffffffff, 2) == 0xffffffff);
  CHECK(computed("max.s64 %rd4, %rd1, %rd2", static_cast<uint64_t>(-9), 2) == 2);
}

TEST_CASE("ptx arithmetic: bits") {
  CHECK(computed("and.b32 %r4, %r1, -16", 0x1234) == 0x1230);
  CHECK(computed("or.b64 %rd4, %rd1, %rd2", 1, uint64_t{1} << 63) == ((uint64_t{1} << 63) | 1));
  CHECK(computed("not.b32 %r4, %r1", 0) == 0xffffffff);
  CHECK(computed("shl.b32 %r4, %r1, %r2", 1, 31) == 0x80000000);
  CHECK(computed("shl.b32 %r4, %r1, %r2", 1, 32) == 0);
  CHECK(computed("shl.b16 %rs4, %rs1, 12", 0xff) == 0xf000);
  CHECK(computed("shr.s32 %r4, %r1, %r2", 0x80000000, 31) == 0xffffffff);
  CHECK(computed("shr.s32 %r4, %r1, %r2", 0x80000000, 99) == 0xffffffff);
  CHECK(computed("shr.u64 %rd4, %rd1, %r2", uint64_t{1} << 63, 63) == 1);
  CHECK(computed("shr.s16 %rs4, %rs1, 4", 0x8000) == 0xf800);
  CHECK(computed("popc.b32 %r4, %r1", 0xf0f) == 8);
  // The lower bits of a into b from bit 14 on.
  CHECK(computed("bfi.b32 %r4, %r1, %r2, 14, 18", 1, 0x3fff) == (1 << 14 | 0x3fff));
  CHECK(computed("bfi.b32 %r4, %r1, %r2, 4, 8", 0xabc, 0xffffffff) == 0xfffffbcf);
  CHECK(computed("bfe.u32 %r4, %r1, 4, 8", 0xabcd) == 0xbc);
  CHECK(computed("prmt.b32 %r4, %r1, %r2, 0x5410", 0x22221111, 0x44443333) == 0x33331111);
  CHECK(computed("prmt.b32 %r4, %r1, %r2, 0x7632", 0x22221111, 0x44443333) == 0x44442222);
  CHECK(computed("prmt.b32 %r4, %r1, %r2, 0x0809", 0x80ff, 0) == 0xffffff00 + 0xff);
}

TEST_CASE("ptx arithmetic: floats") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(computed("add.rn.f32 %f4, %f1, %f2", bits(1.5f), bits(2.25f)) == bits(3.75f));
  CHECK(computed("mul.f32 %f4, %f1, %f2", bits(1.5f), bits(-2.0f)) == bits(-3.0f));
  // One rounding: the product alone would lose the last bit.
  const float near = 1 + std::numeric_limits<float>::epsilon();
  CHECK(computed("fma.rn.f32 %f4, %f1, %f2, %f3", bits(near), bits(near), bits(-1.0f)) ==
        bits(std::fma(near, near, -1.0f)));
  CHECK(computed("fma.rm.f32 %f4, %f1, %f2, %f3", bits(1.0f), bits(1e-9f), bits(1.0f)) ==
        bits(1.0f));
  CHECK(computed("fma.rm.f32 %f4, %f1, %f2, %f3", bits(-1.0f), bits(1e-9f), bits(1.0f)) ==
        bits(std::nextafter(1.0f, 0.0f)));
  CHECK(computed("div.rn.f32 %f4, %f1, %f2", bits(1.0f), bits(3.0f)) == bits(1.0f / 3.0f));
  CHECK(computed("sqrt.rn.f32 %f4, %f1", bits(2.0f)) == bits(std::sqrt(2.0f)));
  CHECK(computed("rcp.rn.f32 %f4, %f1", bits(3.0f)) == bits(1.0f / 3.0f));
  CHECK(computed("ex2.approx.ftz.f32 %f4, %f1", bits(3.0f)) == bits(8.0f));
  CHECK(computed("ex2.approx.ftz.f32 %f4, %f1", bits(-130.0f)) == bits(0.0f));
  CHECK(computed("ex2.approx.f32 %f4, %f1", bits(-130.0f)) == bits(std::exp2(-130.0f)));
  CHECK(computed("ex2.approx.ftz.f32 %f4, %f1", bits(-inf)) == bits(0.0f));
  // What is no number gives way.
  CHECK(computed("max.f32 %f4, %f1, %f2", bits(nan), bits(-2.0f)) == bits(-2.0f));
  CHECK(computed("min.f32 %f4, %f1, %f2", bits(3.0f), bits(-2.0f)) == bits(-2.0f));
  CHECK(computed("abs.f32 %f4, %f1", bits(-2.0f)) == bits(2.0f));
  CHECK(computed("neg.f32 %f4, %f1", bits(2.0f)) == bits(-2.0f));
  CHECK(computed("fma.rn.f64 %fd4, %fd1, %fd2, %fd3", bits(3.0), bits(5.0), bits(0.5)) ==
        bits(15.5));
  CHECK(computed("add.rn.f64 %fd4, %fd1, 0d3FF0000000000000", bits(2.0)) == bits(3.0));
  CHECK(computed("mul.f32 %f4, %f1, 0f3F000000", bits(3.0f)) == bits(1.5f));
}

TEST_CASE("ptx arithmetic: comparisons and predicates") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(computed("setp.lt.s32 %p4, %r1, %r2", 0xffffffff, 0) == 1);
  CHECK(computed("setp.lt.u32 %p4, %r1, %r2", 0xffffffff, 0) == 0);
  CHECK(computed("setp.gt.s16 %p4, %rs1, -1", 0) == 1);
  CHECK(computed("setp.le.s64 %p4, %rd1, %rd2", static_cast<uint64_t>(-1), 0) == 1);
  CHECK(computed("setp.eq.f32 %p4, %f1, %f2", bits(nan), bits(nan)) == 0);
  CHECK(computed("setp.neu.f32 %p4, %f1, %f2", bits(nan), bits(1.0f)) == 1);
  CHECK(computed("setp.leu.f32 %p4, %f1, %f2", bits(nan), bits(1.0f)) == 1);
  CHECK(computed("setp.gtu.f32 %p4, %f1, %f2", bits(1.0f), bits(1.0f)) == 0);
  CHECK(computed("setp.nan.f32 %p4, %f1, %f1", bits(nan)) == 1);
  CHECK(computed("setp.lt.and.s32 %p4, %r1, %r2, %p3", 1, 2, 0) == 0);
  CHECK(computed("setp.lt.or.s32 %p4, %r1, %r2, %p3", 3, 2, 1) == 1);
  CHECK(computed("and.pred %p4, %p1, %p2", 1, 0) == 0);
  CHECK(computed("or.pred %p4, %p1, %p2", 1, 0) == 1);
  CHECK(computed("xor.pred %p4, %p1, %p2", 1, 1) == 0);
  CHECK(computed("not.pred %p4, %p1", 0) == 1);
  CHECK(computed("selp.b32 %r4, %r1, %r2, %p3", 7, 8, 1) == 7);
  CHECK(computed("selp.f32 %f4, %f1, %f2, %p3", 7, 8, 0) == 8);
}

TEST_CASE("ptx arithmetic: moves and conversions") {
  CHECK(computed("mov.b32 %r4, {%rs1, %rs2}", 0x1111, 0x2222) == 0x22221111);
  CHECK(computed("mov.b32 {%rs5, %rs4}, %r1", 0x22221111) == 0x2222);
  CHECK(computed("mov.b64 %rd4, {%r1, %r2}", 1, 2) == 0x200000001);
  CHECK(computed("mov.b64 {%r5, %r4}, %rd1", 0x200000001) == 2);
  CHECK(computed("cvt.s64.s32 %rd4, %r1", 0xffffffff) == ~uint64_t{0});
  CHECK(computed("cvt.u64.u32 %rd4, %r1", 0xffffffff) == 0xffffffff);
  CHECK(computed("cvt.s64.s32 %rd4, %rd1", 0x180000001) == 0xffffffff80000001);
  CHECK(computed("cvt.u64.u16 %rd4, %rd1", 0x180000001) == 1);
  CHECK(computed("cvt.u16.u32 %rs4, %r1", 0x12345678) == 0x5678);
  CHECK(computed("cvt.rn.f32.s32 %f4, %r1", static_cast<uint32_t>(-3)) == bits(-3.0f));
  CHECK(computed("cvt.rn.f32.s32 %f4, %r1", 16777217) == bits(16777216.0f));
  CHECK(computed("cvt.f64.f32 %fd4, %f1", bits(1.5f)) == bits(1.5));
  CHECK(computed("cvt.rn.f32.f64 %f4, %fd1", bits(1.0 + 1e-12)) == bits(1.0f));
  CHECK(computed("cvt.rzi.s32.f32 %r4, %f1", bits(-2.7f)) == static_cast<uint32_t>(-2));
  CHECK(computed("cvt.rni.s32.f32 %r4, %f1", bits(2.5f)) == 2);
  CHECK(computed("cvt.rzi.s32.f32 %r4, %f1", bits(1e20f)) == 0x7fffffff);
  CHECK(computed("cvt.sat.f32.f32 %f4, %f1", bits(-0.5f)) == bits(0.0f));
  CHECK(computed("cvt.sat.f32.f32 %f4, %f1", bits(1.5f)) == bits(1.0f));
  // The first operand goes to the upper half; to nearest even.
  CHECK(computed("cvt.rn.bf16x2.f32 %r4, %f1, %f2", 0x3f808000, 0x3f818000) == 0x3f803f82);
  CHECK(computed("cvt.rn.f16x2.f32 %r4, %f1, %f2", bits(1.0f), bits(-65520.0f)) == 0x3c00fc00);
  CHECK(computed("cvt.rn.satfinite.e4m3x2.f32 %rs4, %f1, %f2", bits(1.0f), bits(-1000.0f)) ==
        0x38fe);
  CHECK(computed("cvt.rn.satfinite.e5m2x2.f32 %rs4, %f1, %f2", bits(0.0f), bits(1e9f)) == 0x007b);
}

TEST_CASE("ptx floats: every FP8 number is its own, and halfway goes to even") {
  // By the definition: sign, exponent, mantissa.
  const auto value = [](int code, int mantissa_bits, int bias) {
    const int exponent = (code & 0x7f) >> mantissa_bits,
              mantissa = code & ((1 << mantissa_bits) - 1);
    const float size = exponent == 0
                           ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                           : std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)),
                                        exponent - bias - mantissa_bits);
    return (code & 0x80) != 0 ? -size : size;
  };
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    if ((code & 0x7f) != 0x7f) CHECK(float_to_fp8<3>(value(code, 3, 7)) == code);
    if ((code & 0x7f) < 0x7c) CHECK(float_to_fp8<2>(value(code, 2, 15)) == code);
    if ((code & 0x7f) < 0x7e) {
      const float middle = (value(code, 3, 7) + value(code + 1, 3, 7)) / 2;
      CHECK(float_to_fp8<3>(middle) == code + (code & 1));
    }
  }
}
