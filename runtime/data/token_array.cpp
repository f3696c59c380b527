// Compact tokens and the contiguous ranges (splits) of them. The fingerprint hashes the ids as
// little-endian i32 whatever the storage is, so the same tokens have the same fingerprint from a
// text today and from another format later.
#include "runtime/data/token_array.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <xxhash.h>

namespace mtl {

static_assert(std::endian::native == std::endian::little);

TokenArray::TokenArray(int64_t vocab_size) {
  if (vocab_size <= 1 << 8) {
    ids_ = std::vector<uint8_t>();
  } else if (vocab_size <= 1 << 16) {
    ids_ = std::vector<uint16_t>();
  } else {
    ids_ = std::vector<int32_t>();
  }
}

int64_t TokenArray::size() const {
  return std::visit([](const auto& ids) { return static_cast<int64_t>(ids.size()); }, ids_);
}

void TokenArray::reserve(int64_t tokens) {
  std::visit([&](auto& ids) { ids.reserve(tokens); }, ids_);
}

void TokenArray::append(std::span<const int32_t> new_ids) {
  std::visit(
      [&](auto& ids) {
        using Id = typename std::decay_t<decltype(ids)>::value_type;
        const size_t old_size = ids.size();
        ids.resize(old_size + new_ids.size());
        std::transform(new_ids.begin(), new_ids.end(), ids.begin() + old_size,
                       [](int32_t id) { return static_cast<Id>(id); });
      },
      ids_);
}

void TokenArray::read(int64_t first, std::span<int32_t> out) const {
  std::visit([&](const auto& ids) { std::copy_n(ids.begin() + first, out.size(), out.begin()); },
             ids_);
}

namespace {

class TokenRange : public TokenSource {
 public:
  TokenRange(std::shared_ptr<const TokenArray> tokens, int64_t first, int64_t size)
      : tokens_(std::move(tokens)), first_(first), size_(size) {}

  int64_t size() const override { return size_; }

  void read(int64_t first, std::span<int32_t> out) const override {
    tokens_->read(first_ + first, out);
  }

  uint64_t fingerprint() const override {
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                                XXH3_freeState);
    XXH3_64bits_reset(state.get());
    std::array<int32_t, 16384> block;
    for (int64_t done = 0; done < size_;) {
      const size_t count = std::min<int64_t>(block.size(), size_ - done);
      read(done, std::span(block).first(count));
      XXH3_64bits_update(state.get(), block.data(), count * sizeof(int32_t));
      done += static_cast<int64_t>(count);
    }
    return XXH3_64bits_digest(state.get());
  }

 private:
  std::shared_ptr<const TokenArray> tokens_;
  int64_t first_;
  int64_t size_;
};

}  // namespace

std::unique_ptr<TokenSource> make_token_range(std::shared_ptr<const TokenArray> tokens,
                                              int64_t first, int64_t size) {
  return std::make_unique<TokenRange>(std::move(tokens), first, size);
}

}  // namespace mtl
