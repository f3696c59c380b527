// What the emulator's own files say to each other about the block that runs: threads may wait for
// more than gpu_on_host.cpp knows of.
#pragma once

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "support/gpu_on_host.h"

namespace mtl::gpu_on_host {

// sums[i] += left[k] * right[k][i] for each k, in order: four sums at a time.
using EightFloats = float[8];
inline void add_products(EightFloats& sums, const float* left, const EightFloats* right,
                         size_t depth) {
  typedef float Four __attribute__((vector_size(16)));
  Four first, second, one, two;
  std::memcpy(&first, sums, sizeof first);
  std::memcpy(&second, sums + 4, sizeof second);
  for (size_t k = 0; k < depth; ++k) {
    std::memcpy(&one, right[k], sizeof one);
    std::memcpy(&two, right[k] + 4, sizeof two);
    first += left[k] * one;
    second += left[k] * two;
  }
  std::memcpy(sums, &first, sizeof first);
  std::memcpy(sums + 4, &second, sizeof second);
}

// --- gpu_on_host.cpp

// The thread that runs, counted through its block, and how many that has.
unsigned this_thread();
unsigned block_threads();
size_t dynamic_shared_bytes();
bool copies_are_early();
// One of `count` things that may come next: the first, the last or any, as the Schedule is.
size_t choose(size_t count);

// The thread that runs stops until somebody wakes it; what it waits for, for a message.
void stop(const char* what, unsigned which);
void wake(std::vector<unsigned> threads);

// All lanes of a warp are here, and with the same.
template <typename T>
void together(const T& mine) {
  static_assert(std::has_unique_object_representations_v<T>);
  const unsigned char* all = exchange(0xffffffffu, &mine, sizeof mine);
  if (std::memcmp(all, &mine, sizeof mine) != 0) {
    throw std::runtime_error("lanes of a warp that ask for different things");
  }
}

// --- warpgroup_on_host.cpp: a copy arrives; false: none is under way

void forget_barriers();
bool let_a_copy_arrive();

// --- products_on_host.cpp: products are carried out; false: none that a thread waits for can be

void forget_products();
bool carry_out_products();
void end_products();  // of the thread that runs, which ends

}  // namespace mtl::gpu_on_host
