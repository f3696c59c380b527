#include "runtime/device/cpu/isa.h"

#include <cpuid.h>
#include <cstdlib>
#include <string>
#include <unistd.h>

#include <sys/syscall.h>

#include "common/error.h"
#include "runtime/device/cpu/isa_word.h"

namespace mtl {
namespace {

// __builtin_cpu_supports also checks that the operating system saves the wide registers.
Isa detect() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma")) {
    return Isa::avx512;
  }
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c) return Isa::avx2;
  return Isa::base;
}

Isa choose() {
  const Isa best = detect();
  const char* wish = std::getenv("MTL_CPU_ISA");
  if (wish == nullptr || *wish == '\0') return best;
  if (const std::optional<Error> wrong = wrong_cpu_isa(wish)) throw *wrong;
  for (const Isa isa : {Isa::base, Isa::avx2}) {
    if (std::string(wish) == name_of(isa)) return isa < best ? isa : best;
  }
  return best;
}

bool request_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // CPUID.(7,0).EDX
  if ((edx & kBf16) == 0 || (edx & kTile) == 0) return false;
  // Linux hands out the 8 KiB of tile state only to processes that ask (since 5.16); threads
  // started later inherit the permission.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

Isa cpu_isa() {
  static const Isa isa = choose();
  return isa;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::base:
      return "base";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "";
}

std::optional<Error> wrong_cpu_isa(const std::string& wish) {
  if (wish.empty()) return std::nullopt;
  for (const Isa isa : {Isa::base, Isa::avx2, Isa::avx512}) {
    if (wish == name_of(isa)) return std::nullopt;
  }
  Diagnostic diagnostic;
  diagnostic.code = "device.cpu_isa";
  diagnostic.what = "MTL_CPU_ISA is '" + wish + "', which is no instruction set";
  diagnostic.help = "use base, avx2 or avx512, or unset it to use the best that this machine has";
  return Error(Exit::environment, diagnostic);
}

bool has_amx_bf16() {
  static const bool amx = cpu_isa() == Isa::avx512 && request_amx();
  return amx;
}

}  // namespace mtl
