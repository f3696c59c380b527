// XXH3 (64 bits) of bytes that arrive in pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <string_view>
#include <xxhash.h>

namespace mtl {

class Xxh3 {
 public:
  Xxh3() : state_(XXH3_createState(), XXH3_freeState) {
    if (!state_) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
  }
  void update(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

  static uint64_t of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

}  // namespace mtl
