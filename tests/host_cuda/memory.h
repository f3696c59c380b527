// Memory of the GPUs and pinned memory of the host: what CUDA knows of addresses.
#pragma once

#include <cstddef>

#include "host_cuda/gpu.h"

namespace mtl::host_cuda {

struct Piece {
  char* begin = nullptr;
  size_t bytes = 0;
  Gpu* gpu = nullptr;  // null: pinned memory of the host
};

// Full of NaN. Null: there is no room for it.
void* allocate(Gpu& gpu, size_t bytes);
void* allocate_pinned(size_t bytes);
// False: nothing of that kind begins there. On a GPU it waits for all that this does.
bool free_piece(void* begin, bool pinned);
// The piece that `bytes` from `address` on belong to; with no `begin`, memory that CUDA does not
// know.
Piece piece_at(const void* address, size_t bytes);
// Whether CUDA knows all of [address, + bytes). Cheap: what has been asked last is remembered.
bool knows(const void* address, size_t bytes);
size_t free_bytes(const Gpu& gpu);

}  // namespace mtl::host_cuda
