// What this processor can do, found once at start. The vector loops in kernels/ are compiled once
// per Isa; the best one that the processor and the operating system support is used.
#pragma once

namespace mtl {

enum class Isa { base, avx2, avx512 };  // base: x86-64 (SSE2)

// The instruction set in use. MTL_CPU_ISA=base|avx2|avx512 lowers it (for tests, and to compare
// machines); it never raises it above what the processor has. Any other value is an mtl::Error.
Isa cpu_isa();
const char* name_of(Isa isa);

// Matrix tiles with bf16 (Intel AMX). Asks the kernel for the permission to use them, once per
// process. False when cpu_isa() is below avx512.
bool has_amx_bf16();

}  // namespace mtl
