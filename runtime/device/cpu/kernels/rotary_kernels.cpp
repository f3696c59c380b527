// Rotary positions: each pair of the turned elements of a head is turned by an angle of its row.
// And the heads of latent attention, of which a part is turned.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

MTL_INLINE Part half_of(Full) {
  return {kLanes / 2};
}
MTL_INLINE Part half_of(Part part) {
  return {part.count / 2};
}

// A row's angles are read for every head of it and stay in the first-level cache.
template <class T>
void rope(const RopeRows& args) {
  const int64_t half = args.turned / 2;
  const float direction = args.backward ? -1.0f : 1.0f;
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t position =
        args.positions == nullptr ? (args.row0 + r) % args.seq : args.positions[r];
    const float* cosines = args.table + position * args.turned;
    const float* sines = cosines + half;
    T* first = static_cast<T*>(args.x) + r * args.stride;
    for (int64_t h = 0; h < args.heads; ++h, first += args.dim) {
      T* second = first + half;
      each(half, [&](int64_t i, auto lanes) MTL_LAMBDA {
        const F c = load(cosines + i, lanes), s = load(sines + i, lanes) * direction;
        const F a = load(first + i, lanes), b = load(second + i, lanes);
        store(first + i, a * c - b * s, lanes);
        store(second + i, b * c + a * s, lanes);
      });
    }
  }
}

// x turned by pairs of neighbours, each pair by an angle of `cosines` and `sines` (of which there
// are half as many): a row of pairs (a, b) becomes (a c - b s, b c + a s).
template <class Lanes>
MTL_INLINE F turn_neighbours(F x, const float* cosines, const float* sines, float direction,
                             Lanes lanes) {
  I twice, swapped;
  F signs;
  for (int i = 0; i < kLanes; ++i) {
    twice[i] = i / 2;
    swapped[i] = i ^ 1;
    signs[i] = i % 2 == 0 ? -direction : direction;
  }
  const F c = __builtin_shuffle(load(cosines, half_of(lanes)), twice);
  const F s = __builtin_shuffle(load(sines, half_of(lanes)), twice);
  return x * c + __builtin_shuffle(x, swapped) * (s * signs);
}

template <class T>
MTL_INLINE void copy_elements(const T* from, int64_t count, T* to) {
  __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

// A row's heads, from or to its qkv; `cosines` and `sines` are those of its position.
template <class T>
void latent_row(const LatentRows& args, int64_t r, const float* cosines, const float* sines) {
  const int64_t heads = args.heads, dim = args.dim, value_dim = args.value_dim;
  const int64_t kept = dim - args.rope_dim;  // of a head's elements: not turned
  T* queries = static_cast<T*>(args.queries) + r * heads * dim;
  T* pair = static_cast<T*>(args.pairs) + r * heads * (kept + value_dim);
  T* shared = static_cast<T*>(args.latents) + r * args.latent_stride;
  T* q = static_cast<T*>(args.qkv) + r * heads * (2 * dim + value_dim);
  T *k = q + heads * dim, *v = k + heads * dim;
  const float direction = args.backward ? -1.0f : 1.0f;
  const auto turn = [&](const T* from, T* to) MTL_LAMBDA {
    each(args.rope_dim, [&](int64_t i, auto lanes) MTL_LAMBDA {
      const F x = load(from + i, lanes);
      store(to + i, turn_neighbours(x, cosines + i / 2, sines + i / 2, direction, lanes), lanes);
    });
  };
  if (args.backward) {
    each(args.rope_dim, [&](int64_t i, auto lanes) MTL_LAMBDA {
      F sum = F{};
      for (int64_t h = 0; h < heads; ++h) sum += load(k + h * dim + kept + i, lanes);
      store(shared + i, turn_neighbours(sum, cosines + i / 2, sines + i / 2, direction, lanes),
            lanes);
    });
  } else {
    turn(shared, k + kept);
  }
  for (int64_t h = 0; h < heads; ++h) {
    if (args.backward) {
      copy_elements(q, kept, queries);
      turn(q + kept, queries + kept);
      copy_elements(k, kept, pair);
      copy_elements(v, value_dim, pair + kept);
    } else {
      copy_elements(queries, kept, q);
      turn(queries + kept, q + kept);
      copy_elements(pair, kept, k);
      if (h > 0) copy_elements(k + kept - h * dim, args.rope_dim, k + kept);
      copy_elements(pair + kept, value_dim, v);
    }
    queries += dim;
    pair += kept + value_dim;
    q += dim;
    k += dim;
    v += value_dim;
  }
}

template <class T>
void latent_heads(const LatentRows& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t position = args.positions == nullptr
                                 ? args.first_position + (args.row0 + r) % args.seq
                                 : args.positions[r];
    const float* cosines = args.table + position * args.rope_dim;
    latent_row<T>(args, r, cosines, cosines + args.rope_dim / 2);
  }
}

template <class T>
void add_typed(TypedKernels& table) {
  table.rope = rope<T>;
  table.latent_heads = latent_heads<T>;
}

}  // namespace

void add_rotary_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
