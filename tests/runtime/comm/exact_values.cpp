#include "runtime/comm/exact_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/comm/harness.h"

namespace mtl::test {

namespace {

// The bf16 nearest to `x`, ties to even, by comparing the two neighbours.
uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t low = bits >> 16;
  const auto value = [](uint32_t high) { return std::bit_cast<float>(high << 16); };
  const double below = std::abs(static_cast<double>(x) - static_cast<double>(value(low)));
  const double above = std::abs(static_cast<double>(value(low + 1)) - static_cast<double>(x));
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<uint16_t>(up ? low + 1 : low);
}

float from_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

int32_t to_i32(double x) {
  return static_cast<int32_t>(x * 65536);
}

// Any of kPeriod values.
double made(uint64_t number) {
  uint64_t x = number * 0x94d049bb133111ebU;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  x ^= x >> 31;
  // Sign, exponent and mantissa put together by hand.
  const uint64_t exponent = 1023 - 12 + x % 25;
  return std::bit_cast<double>((x & (uint64_t{1} << 63)) | exponent << 52 | (x << 1 >> 12));
}

// All of them twice, so that they can be read from any on: making and rounding them for each tensor
// would be most of the time of these tests.
template <typename T, typename Round>
std::vector<T> twice(Round round) {
  std::vector<T> values;
  for (int64_t i = 0; i < 2 * kPeriod; ++i) {
    values.push_back(round(made(static_cast<uint64_t>(i % kPeriod))));
  }
  return values;
}
struct Values {
  std::vector<double> f64 = twice<double>([](double x) { return x; });
  std::vector<float> f32 = twice<float>([](double x) { return static_cast<float>(x); });
  std::vector<uint16_t> bf16 =
      twice<uint16_t>([](double x) { return to_bf16(static_cast<float>(x)); });
  std::vector<_Float16> f16 = twice<_Float16>([](double x) { return static_cast<_Float16>(x); });
  std::vector<int32_t> i32 = twice<int32_t>(to_i32);
  std::vector<uint8_t> u8 =
      twice<uint8_t>([](double x) { return static_cast<uint8_t>(to_i32(x) >> 8); });
};
const Values& values() {
  static const Values all;
  return all;
}

// With which of them an operation's values of a rank begin.
int64_t begin_of(uint64_t seed, int rank) {
  const uint64_t x = seed * 0x9e3779b97f4a7c15U + static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9U;
  return static_cast<int64_t>((x >> 32) * static_cast<uint64_t>(kPeriod) >> 32);
}
template <typename T>
T pick(const std::vector<T>& all, uint64_t seed, int rank, int64_t i) {
  return all[static_cast<size_t>(begin_of(seed, rank) + i % kPeriod)];
}

template <typename T>
T combine(T a, T b, Reduce op) {
  return op == Reduce::sum ? a + b : std::max(a, b);
}

template <typename T, typename Get>
T reduced(std::span<const int> ranks, Reduce op, const Get& get) {
  T result = get(ranks[0]);
  for (size_t k = 1; k < ranks.size(); ++k) result = combine(result, get(ranks[k]), op);
  return result;
}

// By whole words: a memcmp for each element is a tenth of the time of these tests.
template <typename T>
bool same(const Tensor& x, int64_t i, T value) {
  using Bits =
      std::conditional_t<sizeof(T) == 8, uint64_t,
                         std::conditional_t<sizeof(T) == 4, uint32_t,
                                            std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;
  return std::bit_cast<Bits>(x.as<T>()[i]) == std::bit_cast<Bits>(value);
}

}  // namespace

double value_of(uint64_t seed, int rank, int64_t i) {
  return pick(values().f64, seed, rank, i);
}

void fill(const Tensor& x, uint64_t seed, int rank) {
  const auto begin_with = [&](const auto& all) {
    std::copy_n(all.begin() + begin_of(seed, rank), std::min(x.numel(), kPeriod),
                static_cast<std::decay_t<decltype(all[0])>*>(x.data));
  };
  switch (x.dtype) {
    case DType::f32:
      begin_with(values().f32);
      break;
    case DType::f64:
      begin_with(values().f64);
      break;
    case DType::i32:
      begin_with(values().i32);
      break;
    case DType::bf16:
      begin_with(values().bf16);
      break;
    case DType::f16:
      begin_with(values().f16);
      break;
    case DType::u8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      begin_with(values().u8);
      break;
    case DType::u16:
      throw std::logic_error("nobody has sent u16 yet");
  }
  const auto period = static_cast<size_t>(kPeriod * bytes_of(x.dtype));
  const auto bytes = static_cast<size_t>(x.bytes());
  char* const data = x.as<char>();
  for (size_t done = period; done < bytes; done += period) {
    std::memcpy(data + done, data, std::min(period, bytes - done));
  }
}

bool is_reduced(const Tensor& x, int64_t i, uint64_t seed, std::span<const int> ranks, Reduce op) {
  const auto value = [&](const auto& all) {
    return [&all, seed, i](int rank) { return pick(all, seed, rank, i); };
  };
  switch (x.dtype) {
    case DType::f32:
      return same(x, i, reduced<float>(ranks, op, value(values().f32)));
    case DType::f64:
      return same(x, i, reduced<double>(ranks, op, value(values().f64)));
    case DType::i32:
      return same(x, i, reduced<int32_t>(ranks, op, value(values().i32)));
    case DType::bf16: {
      const auto of = value(values().bf16);
      return same(x, i,
                  to_bf16(reduced<float>(ranks, op, [&](int r) { return from_bf16(of(r)); })));
    }
    case DType::f16: {
      const auto of = value(values().f16);
      return same(x, i, static_cast<_Float16>(reduced<float>(ranks, op, [&](int r) {
                    return static_cast<float>(of(r));
                  })));
    }
    case DType::u8:
    case DType::u16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;
  }
  return false;
}

bool is_of(const Tensor& x, int64_t i, uint64_t seed, int rank) {
  return is_of(x, i, seed, rank, i);
}

bool is_of(const Tensor& x, int64_t i, uint64_t seed, int rank, int64_t source) {
  const auto is = [&](const auto& all) { return same(x, i, pick(all, seed, rank, source)); };
  switch (x.dtype) {
    case DType::f32:
      return is(values().f32);
    case DType::f64:
      return is(values().f64);
    case DType::i32:
      return is(values().i32);
    case DType::bf16:
      return is(values().bf16);
    case DType::f16:
      return is(values().f16);
    case DType::u8:
      return is(values().u8);
    case DType::u16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;
  }
  return false;
}

namespace {

// All of a small tensor; of a large one every 13th element, and all near the multiples of 1024,
// where blocks, chunks and parts begin and end.
int64_t next_to_check(int64_t i, int64_t numel) {
  ++i;
  const int64_t in_block = i % 1024;
  if (numel <= 20'000 || in_block < 4 || in_block >= 1020) return i;
  return std::min((i + 12) / 13 * 13, i - in_block + 1020);
}

// Elements that member `from` of a group sends member `to` in a round.
int64_t count_of(Kind kind, uint64_t seed, int from, int to, int round, int64_t most) {
  if (kind == Kind::all_to_all) return most;
  const auto choice = std::bit_cast<uint64_t>(value_of(seed, 100 * from + to, 7 + round)) >> 20;
  return choice % 3 == 0 ? 0 : static_cast<int64_t>(choice % static_cast<uint64_t>(most + 1));
}

// The first element that is wrong, or -1.
int64_t all_to_all_problem(Communicator& group, std::span<const int> ranks, Kind kind,
                           const Tensor& x, uint64_t seed) {
  const int n = group.size(), own = group.rank();
  const int rounds = kind == Kind::all_to_all_rounds ? 3 : 1;
  const int64_t half = x.numel() / 2, most = half / n / rounds;
  std::vector<int64_t> send, recv, source;
  std::vector<int64_t> before(static_cast<size_t>(n));  // of what each has sent, until then
  int64_t sent = 0, received = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int peer = 0; peer < n; ++peer) {
      send.push_back(count_of(kind, seed, own, peer, round, most));
      recv.push_back(count_of(kind, seed, peer, own, round, most));
      sent += send.back();
      received += recv.back();
      int64_t& next = before[static_cast<size_t>(peer)];
      for (int other = 0; other < n; ++other) {
        if (other == own) source.push_back(next);
        next += count_of(kind, seed, peer, other, round, most);
      }
    }
  }
  const Tensor from = x.slice(0, sent), to = x.slice(half, received);
  if (kind == Kind::all_to_all) {
    group.all_to_all(x.slice(0, half), x.slice(half, half));
  } else if (kind == Kind::all_to_all_v) {
    group.all_to_all_v(from, send, to, recv);
  } else {
    group.all_to_all_rounds(from, send, to, recv);
  }
  const auto mine = [&](int64_t i) { return is_of(x, i, seed, ranks[static_cast<size_t>(own)]); };
  for (int64_t i = 0; i < half; i = next_to_check(i, half)) {
    if (!mine(i)) return i;
  }
  int64_t place = half;
  for (size_t at = 0; at < recv.size(); ++at) {
    const int peer = ranks[at % static_cast<size_t>(n)];
    for (int64_t i = 0; i < recv[at]; i = next_to_check(i, recv[at])) {
      if (!is_of(x, place + i, seed, peer, source[at] + i)) return place + i;
    }
    place += recv[at];
  }
  for (; place < x.numel(); place = next_to_check(place, x.numel())) {
    if (!mine(place)) return place;
  }
  return -1;
}

}  // namespace

void run_and_check(Communicator& group, std::span<const int> ranks, Kind kind, const Tensor& x,
                   uint64_t seed) {
  const int n = group.size();
  const int own = group.rank();
  const auto wrong = [&](const char* what, int64_t i) {
    throw std::runtime_error(std::string(what) + " of " + std::to_string(x.numel()) + " " +
                             std::string(safetensors_name(x.dtype)) + " among " +
                             std::to_string(n) + ": wrong element " + std::to_string(i));
  };
  fill(x, seed, ranks[static_cast<size_t>(own)]);
  switch (kind) {
    case Kind::all_reduce_sum:
    case Kind::all_reduce_max: {
      const Reduce op = kind == Kind::all_reduce_sum ? Reduce::sum : Reduce::max;
      group.all_reduce(x, op);
      for (int64_t i = 0; i < x.numel(); i = next_to_check(i, x.numel())) {
        if (!is_reduced(x, i, seed, ranks, op)) wrong("all_reduce", i);
      }
      break;
    }
    case Kind::reduce_scatter:
    case Kind::reduce_scatter_apart: {
      const bool apart = kind == Kind::reduce_scatter_apart;
      const Tensor all = x.slice(0, apart ? x.numel() / (n + 1) * n : x.numel());
      const Tensor place = part_of(all, group);
      const Tensor mine = apart ? x.slice(all.numel(), place.numel()) : place;
      group.reduce_scatter(all, mine);
      std::memmove(place.data, mine.data, static_cast<size_t>(place.bytes()));
      const int64_t first = own * place.numel();
      for (int64_t i = first; i < first + place.numel(); i = next_to_check(i, all.numel())) {
        if (!is_reduced(all, i, seed, ranks, Reduce::sum)) wrong("reduce_scatter", i);
      }
      break;
    }
    case Kind::all_gather:
    case Kind::all_gather_apart: {
      const bool apart = kind == Kind::all_gather_apart;
      const Tensor all = x.slice(0, apart ? x.numel() / (n + 1) * n : x.numel());
      const Tensor place = part_of(all, group);
      const Tensor mine = apart ? x.slice(all.numel(), place.numel()) : place;
      if (apart && mine.bytes() > 0) {
        std::memcpy(mine.data, place.data, static_cast<size_t>(mine.bytes()));
        std::memset(place.data, 0x55, static_cast<size_t>(place.bytes()));
      }
      group.all_gather(mine, all);
      for (int64_t i = 0; i < all.numel(); i = next_to_check(i, all.numel())) {
        const int64_t from = i / place.numel();
        if (!is_of(all, i, seed, ranks[static_cast<size_t>(from)])) wrong("all_gather", i);
      }
      break;
    }
    case Kind::broadcast: {
      const int root = static_cast<int>(seed % static_cast<uint64_t>(n));
      group.broadcast(x, root);
      for (int64_t i = 0; i < x.numel(); i = next_to_check(i, x.numel())) {
        if (!is_of(x, i, seed, ranks[static_cast<size_t>(root)])) wrong("broadcast", i);
      }
      break;
    }
    case Kind::all_to_all:
    case Kind::all_to_all_v:
    case Kind::all_to_all_rounds: {
      const int64_t problem = all_to_all_problem(group, ranks, kind, x, seed);
      if (problem >= 0) wrong("all_to_all", problem);
      break;
    }
    case Kind::ring: {
      if (n == 1) break;
      // Everybody sends first: that must not block.
      group.send(x, (own + 1) % n);
      const int from = (own + n - 1) % n;
      group.recv(x, from);
      for (int64_t i = 0; i < x.numel(); i = next_to_check(i, x.numel())) {
        if (!is_of(x, i, seed, ranks[static_cast<size_t>(from)])) wrong("recv", i);
      }
      break;
    }
  }
  // Whoever changes its tensor right after the call must not disturb the others.
  std::memset(x.data, 0xee, static_cast<size_t>(x.bytes()));
}

}  // namespace mtl::test
