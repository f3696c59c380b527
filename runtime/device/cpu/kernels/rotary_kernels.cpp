// Rotary positions: each pair of the turned elements of a head is turned by an angle of its row.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/device/cpu/kernels/vector.h"

namespace mtl::kernels::MTL_ISA {
namespace {

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

template <class T>
void add_typed(TypedKernels& table) {
  table.rope = rope<T>;
}

}  // namespace

void add_rotary_kernels(VectorKernels& table) {
  add_typed<float>(table.f32);
  add_typed<uint16_t>(table.bf16);
  add_typed<_Float16>(table.f16);
}

}  // namespace mtl::kernels::MTL_ISA
