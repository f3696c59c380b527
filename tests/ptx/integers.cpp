// Integers and their bits.
#include "ptx/lanes.h"

namespace mtl::ptx {

namespace {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;
// Twice as many bits, of the same sign.
template <typename T>
using Twice = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, Int128, Uint128>>>;
template <typename T>
using Unsigned = std::make_unsigned_t<T>;

}  // namespace

Handler find_integer(const Opcode& opcode) {
  const std::string_view root = opcode[0], type = opcode.back();
  if (root == "add" && opcode.size() == 2) {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, T>([](T a, T b) {
        return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
      });
    });
  }
  if (root == "sub" && opcode.size() == 2) {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, T>([](T a, T b) {
        return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
      });
    });
  }
  if ((root == "mul" || root == "mad") && opcode.size() == 3) {
    const bool adds = root == "mad";
    return by_integer(type, [&](auto* t) -> Handler {
      using T = MTL_PTX_TYPE(t);
      using All = uint64_t;  // whose lower bits are those of the product
      if (opcode[1] == "lo" && adds) {
        return of<T, T, T, T>([](T a, T b, T c) {
          return static_cast<T>(static_cast<All>(a) * static_cast<All>(b) + static_cast<All>(c));
        });
      }
      if (opcode[1] == "lo") {
        return of<T, T, T>(
            [](T a, T b) { return static_cast<T>(static_cast<All>(a) * static_cast<All>(b)); });
      }
      if (opcode[1] == "hi" && !adds) {
        return of<T, T, T>([](T a, T b) {
          return static_cast<T>(static_cast<Twice<T>>(a) * static_cast<Twice<T>>(b) >>
                                8 * sizeof(T));
        });
      }
      if constexpr (sizeof(T) < 8) {
        using R = Twice<T>;
        if (opcode[1] == "wide" && !adds) {
          return of<R, T, T>([](T a, T b) { return static_cast<R>(static_cast<R>(a) * b); });
        }
        if (opcode[1] == "wide") {
          return of<R, T, T, R>([](T a, T b, R c) {
            return static_cast<R>(static_cast<All>(a) * static_cast<All>(b) + static_cast<All>(c));
          });
        }
      }
      return nullptr;
    });
  }
  if ((root == "div" || root == "rem") && opcode.size() == 2) {
    const bool divides = root == "div";
    return by_integer(type, [&](auto* t) -> Handler {
      using T = MTL_PTX_TYPE(t);
      // By 0: all ones, as GPUs do (and nobody should).
      if (divides) {
        return of<T, T, T>([](T a, T b) {
          if (b == 0) return static_cast<T>(-1);
          if constexpr (std::is_signed_v<T>) {
            if (b == -1) return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
          }
          return static_cast<T>(a / b);
        });
      }
      return of<T, T, T>([](T a, T b) {
        if (b == 0) return a;
        if constexpr (std::is_signed_v<T>) {
          if (b == -1) return T{0};
        }
        return static_cast<T>(a % b);
      });
    });
  }
  if (root == "neg" && opcode.size() == 2) {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T>(
          [](T a) { return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)); });
    });
  }
  if (root == "abs" && opcode.size() == 2) {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T>([](T a) {
        return a < 0 ? static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)) : a;
      });
    });
  }
  if ((root == "min" || root == "max") && opcode.size() == 2) {
    return by_integer(type, [&](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return root == "min" ? of<T, T, T>([](T a, T b) { return std::min(a, b); })
                           : of<T, T, T>([](T a, T b) { return std::max(a, b); });
    });
  }
  return nullptr;
}

Handler find_bits(const Opcode& opcode) {
  const std::string_view root = opcode[0], type = opcode.back();
  if (opcode.size() != 2 || type == "pred") return nullptr;
  if (root == "and" || root == "or" || root == "xor") {
    return by_integer(type, [&](auto* t) {
      using T = MTL_PTX_TYPE(t);
      if (root == "and") return of<T, T, T>([](T a, T b) { return static_cast<T>(a & b); });
      if (root == "or") return of<T, T, T>([](T a, T b) { return static_cast<T>(a | b); });
      return of<T, T, T>([](T a, T b) { return static_cast<T>(a ^ b); });
    });
  }
  if (root == "not") {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T>([](T a) { return static_cast<T>(~a); });
    });
  }
  // Shifts by more than there is leave nothing, or the sign.
  if (root == "shl") {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, uint32_t>([](T a, uint32_t b) {
        return b >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << b);
      });
    });
  }
  if (root == "shr") {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, uint32_t>([](T a, uint32_t b) {
        if (b >= 8 * sizeof(T)) return static_cast<T>(a < 0 ? -1 : 0);
        return static_cast<T>(a >> b);
      });
    });
  }
  if (root == "popc" || root == "clz") {
    return by_integer(type, [&](auto* t) {
      using T = MTL_PTX_TYPE(t);
      using U = Unsigned<T>;
      return root == "popc"
                 ? of<uint32_t, U>([](U a) { return static_cast<uint32_t>(std::popcount(a)); })
                 : of<uint32_t, U>([](U a) { return static_cast<uint32_t>(std::countl_zero(a)); });
    });
  }
  if (root == "bfi") {  // a into b, from bit c on, d bits
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, T, uint32_t, uint32_t>([](T a, T b, uint32_t from, uint32_t count) {
        constexpr uint32_t kBits = 8 * sizeof(T);
        from &= 255;
        count &= 255;
        if (count == 0 || from >= kBits) return b;
        const T mask = static_cast<T>((count >= kBits ? ~T{0} : (T{1} << count) - 1) << from);
        return static_cast<T>((b & ~mask) | ((a << from) & mask));
      });
    });
  }
  if (root == "bfe") {
    return by_integer(type, [](auto* t) -> Handler {
      using T = MTL_PTX_TYPE(t);
      if constexpr (std::is_signed_v<T>) return nullptr;
      return of<T, T, uint32_t, uint32_t>([](T a, uint32_t from, uint32_t count) {
        constexpr uint32_t kBits = 8 * sizeof(T);
        from &= 255;
        count &= 255;
        if (from >= kBits || count == 0) return T{0};
        const T rest = static_cast<T>(a >> from);
        return count >= kBits ? rest : static_cast<T>(rest & ((T{1} << count) - 1));
      });
    });
  }
  if (root == "prmt") {
    return of<uint32_t, uint32_t, uint32_t, uint32_t>([](uint32_t a, uint32_t b, uint32_t c) {
      const uint64_t both = uint64_t{b} << 32 | a;
      uint32_t result = 0;
      for (int i = 0; i < 4; ++i) {
        const uint32_t selector = c >> 4 * i & 15;
        auto byte = static_cast<uint8_t>(both >> 8 * (selector & 7));
        if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;  // its sign
        result |= uint32_t{byte} << 8 * i;
      }
      return result;
    });
  }
  return nullptr;
}

}  // namespace mtl::ptx
