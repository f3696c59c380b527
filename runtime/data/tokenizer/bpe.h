// Byte pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words with Subword
// Units", 2016) of one piece of text: its characters or bytes, and then again and again the merge
// of lowest rank, the leftmost first.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mtl::tokenizer {

// The ids of so many tokens are below this: ids far beyond their number would only make the model's
// embedding huge.
constexpr int64_t most_ids(int64_t tokens) {
  return 4 * tokens + (1 << 16);
}

// Two neighbouring ids as one number, in the order of the left and then the right one.
constexpr uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// What one thread needs to encode: pieces that it met, with their ids, and room to work.
class BpeScratch {
 public:
  BpeScratch() : entries_(kEntries) {}

 private:
  friend class Bpe;
  static constexpr size_t kEntries = size_t{1} << 15, kKey = 38, kIds = 6;
  struct Entry {
    uint8_t size = 0;  // of the piece; 0 = none yet
    uint8_t count = 0;
    char key[kKey] = {};
    int32_t ids[kIds] = {};
  };
  static_assert(sizeof(Entry) == 64);
  std::vector<Entry> entries_;
  std::vector<int32_t> symbols_;
  std::vector<uint64_t> ranks_;  // of each neighbouring pair: (rank, id)
  std::vector<int32_t> next_, previous_;
  std::vector<uint64_t> heap_;  // (rank, position)
};

class Bpe {
 public:
  // `model` is tokenizer.json's. `byte_level`: pieces are bytes, and the vocabulary spells them in
  // the byte alphabet. Throws Error data.tokenizer.
  Bpe(const nlohmann::json& model, bool byte_level, const std::string& place);

  // Appends the ids of one piece of text. Throws Error data.token for a character that neither the
  // vocabulary nor its unknown token spells.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;

  // Ids are below this.
  int64_t id_limit() const { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> id_of(std::string_view token) const;
  // As the vocabulary spells it; null for an id between others that has no token.
  const std::string* token(int32_t id) const;

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    uint64_t merge = ~uint64_t{0};  // rank << 32 | id
  };
  static constexpr uint64_t kNone = ~uint64_t{0};

  void read_vocab(const nlohmann::json& vocab, const std::string& place);
  void read_merges(const nlohmann::json& merges, const std::string& place);
  void add_merge(int32_t left, int32_t right, uint64_t merge);
  uint64_t merge_of(int32_t left, int32_t right) const;

  void encode_anew(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void spell(std::string_view piece, std::vector<int32_t>& symbols) const;
  void merge_few(BpeScratch& scratch) const;
  void merge_many(BpeScratch& scratch) const;

  std::vector<std::string> tokens_;  // by id
  std::vector<bool> known_;          // by id
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<std::string, int32_t> ids_of_bytes_;  // where whole pieces are looked up
  std::vector<Slot> slots_;                                // open addressing; a power of two
  int shift_ = 0;
  std::array<int32_t, 256> byte_ids_{};      // -1 = the vocabulary has none
  std::array<int32_t, 256> fallback_ids_{};  // of "<0x41>"
  bool byte_level_;
  bool every_byte_ = false;  // the pieces are bytes, and each has an id
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  std::optional<int32_t> unknown_;
  std::string prefix_, suffix_;
};

}  // namespace mtl::tokenizer
