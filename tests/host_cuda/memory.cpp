#include "host_cuda/memory.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace mtl::host_cuda {

namespace {

constexpr size_t kAlignment = 256;  // cudaMalloc's

struct Pieces {
  std::mutex mutex;
  std::map<const char*, Piece> by_end;  // an address is in the first one that ends behind it
  std::atomic<uint64_t> freed = 0;
};
Pieces& pieces() {
  static Pieces& all = *new Pieces;  // threads may ask until the process has ended
  return all;
}

void* add(Gpu* gpu, size_t bytes) {
  // One byte, at least, that is nobody's: ends differ.
  const size_t size = (bytes / kAlignment + 1) * kAlignment;
  auto* const begin = static_cast<char*>(std::aligned_alloc(kAlignment, size));
  if (begin == nullptr) return nullptr;
  std::memset(begin, 0xff, size);
  pieces().by_end[begin + bytes] = {begin, bytes, gpu};
  return begin;
}

}  // namespace

void* allocate(Gpu& gpu, size_t bytes) {
  const std::scoped_lock lock(pieces().mutex);
  if (bytes > memory_bytes() - gpu.used) return nullptr;
  void* const memory = add(&gpu, bytes);
  if (memory != nullptr) gpu.used += bytes;
  return memory;
}

void* allocate_pinned(size_t bytes) {
  const std::scoped_lock lock(pieces().mutex);
  return add(nullptr, bytes);
}

bool free_piece(void* begin, bool pinned) {
  const Piece piece = piece_at(begin, 0);
  if (piece.begin != begin || (piece.gpu == nullptr) != pinned) return false;
  if (piece.gpu != nullptr) piece.gpu->finish();
  const std::scoped_lock lock(pieces().mutex);
  if (piece.gpu != nullptr) piece.gpu->used -= piece.bytes;
  pieces().by_end.erase(piece.begin + piece.bytes);
  ++pieces().freed;
  std::free(begin);
  return true;
}

Piece piece_at(const void* address, size_t bytes) {
  const std::scoped_lock lock(pieces().mutex);
  const auto* const first = static_cast<const char*>(address);
  const auto found = pieces().by_end.lower_bound(first + bytes);
  if (found == pieces().by_end.end() || first < found->second.begin) return {};
  return found->second;
}

bool knows(const void* address, size_t bytes) {
  struct Known {
    uint64_t freed = 0;
    std::array<Piece, 8> at;
    size_t last = 0, oldest = 0;
  };
  static thread_local Known known;
  static const std::atomic<uint64_t>& freed = pieces().freed;
  const auto* const begin = static_cast<const char*>(address);
  const auto holds = [&](const Piece& piece) {
    return begin >= piece.begin && begin + bytes <= piece.begin + piece.bytes;
  };
  if (const uint64_t now = freed.load(); known.freed != now) known = {.freed = now, .at = {}};
  if (holds(known.at[known.last])) return true;
  for (size_t i = 0; i < known.at.size(); ++i) {
    if (!holds(known.at[i])) continue;
    known.last = i;
    return true;
  }
  const Piece found = piece_at(address, bytes);
  if (found.begin == nullptr) return false;
  known.last = known.oldest;
  known.at[known.oldest] = found;
  known.oldest = (known.oldest + 1) % known.at.size();
  return true;
}

size_t free_bytes(const Gpu& gpu) {
  const std::scoped_lock lock(pieces().mutex);
  return memory_bytes() - gpu.used;
}

}  // namespace mtl::host_cuda
