#include "runtime/data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl::tokenizer {

namespace {

// Up to here looking at all pairs for each merge is faster than a heap.
constexpr size_t kFew = 64;

}  // namespace

Bpe::Bpe(const nlohmann::json& model, bool byte_level, const std::string& place)
    : byte_level_(byte_level) {
  if (const auto* dropout = optional_member(model, "dropout")) {
    if (!dropout->is_number() || dropout->get<double>() != 0) {
      refuse(place + ".dropout",
             fmt::format("is {}: with it a text has other ids each time, and a corpus could not be "
                         "made again",
                         dropout->dump()),
             "set it to null");
    }
  }
  byte_fallback_ = bool_member(model, "byte_fallback", place, false);
  fuse_unknown_ = bool_member(model, "fuse_unk", place, false);
  ignore_merges_ = bool_member(model, "ignore_merges", place, false);
  prefix_ = string_member(model, "continuing_subword_prefix", place, "");
  suffix_ = string_member(model, "end_of_word_suffix", place, "");
  read_vocab(member(model, "vocab", place), place + ".vocab");
  read_merges(list_member(model, "merges", place), place + ".merges");
  const std::string unknown = string_member(model, "unk_token", place, "");
  if (!unknown.empty()) {
    unknown_ = id_of(unknown);
    if (!unknown_) {
      refuse(place + ".unk_token", fmt::format("{} is not in the vocabulary", shown(unknown)));
    }
  }
  every_byte_ = byte_level && prefix_.empty() && suffix_.empty();
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    byte_ids_[byte] = id_of(to_byte_characters({&one, 1})).value_or(-1);
    fallback_ids_[byte] = id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1);
    every_byte_ = every_byte_ && byte_ids_[byte] >= 0;
  }
  if (ignore_merges_) {
    for (const auto& [token, id] : ids_) {
      if (!byte_level) {
        ids_of_bytes_.emplace(token, id);
      } else if (auto bytes = from_byte_characters(token)) {
        ids_of_bytes_.emplace(std::move(*bytes), id);
      }
    }
  }
}

void Bpe::read_vocab(const nlohmann::json& vocab, const std::string& place) {
  if (!vocab.is_object()) refuse(place, "has to be an object of tokens and their ids");
  if (vocab.empty()) refuse(place, "is empty");
  const auto count = static_cast<int64_t>(vocab.size());
  const int64_t limit = most_ids(count);
  int64_t largest = 0;
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id < 0 || id >= limit) {
      refuse(place, fmt::format("the id of {} is {}: it has to be a whole number below {}, for a "
                                "vocabulary of {}",
                                shown(token), shown(id.dump()), limit, count));
    }
    largest = std::max(largest, id.get<int64_t>());
  }
  tokens_.resize(static_cast<size_t>(largest) + 1);
  known_.resize(tokens_.size());
  for (const auto& [token, id] : vocab.items()) {
    const auto at = id.get<size_t>();
    if (known_[at]) {
      refuse(place,
             fmt::format("{} and {} have the same id {}", shown(tokens_[at]), shown(token), at));
    }
    known_[at] = true;
    tokens_[at] = token;
  }
  ids_.reserve(vocab.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (known_[id]) ids_.emplace(tokens_[id], static_cast<int32_t>(id));
  }
}

void Bpe::read_merges(const nlohmann::json& merges, const std::string& place) {
  const size_t slots = std::bit_ceil(2 * merges.size() + 2);
  slots_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
  uint64_t rank = 0;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto here = [&] { return fmt::format("{}[{}]", place, i); };
    std::string_view left, right;
    if (merges[i].is_string()) {
      const std::string_view line = merges[i].get_ref<const std::string&>();
      if (line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        refuse(here(), fmt::format("{} is not two tokens with a space between them", shown(line)));
      }
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (merges[i].is_array() && merges[i].size() == 2 && merges[i][0].is_string() &&
               merges[i][1].is_string()) {
      left = merges[i][0].get_ref<const std::string&>();
      right = merges[i][1].get_ref<const std::string&>();
    } else {
      refuse(here(), "has to be \"a b\" or [\"a\", \"b\"]");
    }
    const auto id = [&](std::string_view token) {
      const auto found = id_of(token);
      if (!found)
        refuse(here(), fmt::format("the token {} is not in the vocabulary", shown(token)));
      return *found;
    };
    const int32_t left_id = id(left), right_id = id(right);
    if (right.size() < prefix_.size()) {
      refuse(here(),
             fmt::format("{} does not begin with the prefix {}", shown(right), shown(prefix_)));
    }
    const std::string merged = fmt::format("{}{}", left, right.substr(prefix_.size()));
    add_merge(left_id, right_id, rank++ << 32 | static_cast<uint32_t>(id(merged)));
  }
}

void Bpe::add_merge(int32_t left, int32_t right, uint64_t merge) {
  const uint64_t key = pair_key(left, right);
  for (size_t at = (key * 0x9E3779B97F4A7C15u) >> shift_;; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].merge != kNone && slots_[at].pair != key) continue;
    slots_[at] = {key, merge};  // of the same pair the last one counts
    return;
  }
}

uint64_t Bpe::merge_of(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  for (size_t at = (key * 0x9E3779B97F4A7C15u) >> shift_;; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == key) return slots_[at].merge;
    if (slots_[at].merge == kNone) return kNone;
  }
}

std::optional<int32_t> Bpe::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Bpe::token(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size() || !known_[static_cast<size_t>(id)]) {
    return nullptr;
  }
  return &tokens_[static_cast<size_t>(id)];
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.size() > BpeScratch::kKey) return encode_anew(piece, scratch, ids);
  if (piece.empty()) return;
  const uint64_t hash = XXH3_64bits(piece.data(), piece.size());
  BpeScratch::Entry& entry = scratch.entries_[hash & (BpeScratch::kEntries - 1)];
  if (entry.size == piece.size() && std::memcmp(entry.key, piece.data(), piece.size()) == 0) {
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
    return;
  }
  const size_t before = ids.size();
  encode_anew(piece, scratch, ids);
  const size_t count = ids.size() - before;
  if (count > BpeScratch::kIds) return;
  entry.size = static_cast<uint8_t>(piece.size());
  entry.count = static_cast<uint8_t>(count);
  std::memcpy(entry.key, piece.data(), piece.size());
  std::copy(ids.begin() + static_cast<ptrdiff_t>(before), ids.end(), entry.ids);
}

void Bpe::encode_anew(std::string_view piece, BpeScratch& scratch,
                      std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    // (a string only for pieces that the cache does not know)
    const auto whole = ids_of_bytes_.find(std::string(piece));
    if (whole != ids_of_bytes_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  std::vector<int32_t>& symbols = scratch.symbols_;
  symbols.clear();
  if (every_byte_) {
    symbols.resize(piece.size());
    for (size_t i = 0; i < piece.size(); ++i) {
      symbols[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
    }
  } else {
    spell(byte_level_ ? to_byte_characters(piece) : std::string(piece), symbols);
  }
  if (symbols.size() <= kFew) {
    merge_few(scratch);
  } else {
    merge_many(scratch);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

// The ids of the characters; of those that are not in the vocabulary the ids of their bytes, or the
// unknown token.
void Bpe::spell(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  std::string one;
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    at += read_character(piece.data() + at).bytes;
    one = begin == 0 ? "" : prefix_;
    one.append(piece, begin, at - begin);
    if (at == piece.size()) one += suffix_;
    if (const auto id = id_of(one)) {
      symbols.push_back(*id);
      after_unknown = false;
      continue;
    }
    if (byte_fallback_ && std::all_of(one.begin(), one.end(), [&](char byte) {
          return fallback_ids_[static_cast<unsigned char>(byte)] >= 0;
        })) {
      for (const char byte : one) {
        symbols.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
      }
      continue;
    }
    if (!unknown_) {
      const std::string character(piece.substr(begin, at - begin));
      throw Error(
          Exit::data,
          Diagnostic{.code = "data.token",
                     .what = fmt::format(
                         "{} is not in the vocabulary, which has no token for what is "
                         "unknown",
                         byte_level_ ? fmt::format("the byte that is spelled {}", shown(character))
                                     : "the character " + shown(character)),
                     .help = "use a tokenizer whose vocabulary has every byte"});
    }
    if (!after_unknown || !fuse_unknown_) symbols.push_back(*unknown_);
    after_unknown = true;
  }
}

void Bpe::merge_few(BpeScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols_;
  size_t count = symbols.size();
  if (count < 2) return;
  uint64_t ranks[kFew];
  int32_t* const ids = symbols.data();
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = merge_of(ids[i], ids[i + 1]);
  for (;;) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      // The rank, then the id of the merged token, which is the same for the same pair.
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNone) break;
    ids[best] = static_cast<int32_t>(ranks[best] & 0xFFFFFFFF);
    --count;
    std::memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
    if (count < 2) break;
    if (best + 1 < count) {
      std::memmove(ranks + best, ranks + best + 1, (count - 1 - best) * sizeof *ranks);
      ranks[best] = merge_of(ids[best], ids[best + 1]);
    }
    if (best > 0) ranks[best - 1] = merge_of(ids[best - 1], ids[best]);
  }
  symbols.resize(count);
}

void Bpe::merge_many(BpeScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols_;
  std::vector<int32_t>& next = scratch.next_;
  std::vector<int32_t>& previous = scratch.previous_;
  std::vector<uint64_t>& heap = scratch.heap_;
  const auto count = static_cast<int32_t>(symbols.size());
  next.resize(symbols.size());
  previous.resize(symbols.size());
  heap.clear();
  const auto at = [](auto& row, int32_t i) -> auto& {
    return row[static_cast<size_t>(i)];
  };
  const auto merge_at = [&](int32_t i) {
    return at(next, i) < count ? merge_of(at(symbols, i), at(symbols, at(next, i))) : kNone;
  };
  const auto entry = [&](uint64_t merge, int32_t i) {
    return (merge & ~uint64_t{0xFFFFFFFF}) | static_cast<uint32_t>(i);
  };
  for (int32_t i = 0; i < count; ++i) {
    at(next, i) = i + 1;
    at(previous, i) = i - 1;
    if (const uint64_t merge = merge_at(i); merge != kNone) heap.push_back(entry(merge, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<int32_t>(top & 0xFFFFFFFF);
    if (at(symbols, i) < 0) continue;  // merged into the one before it
    const uint64_t merge = merge_at(i);
    if (merge == kNone || merge >> 32 != top >> 32) continue;  // another pair by now
    const int32_t gone = at(next, i);
    at(symbols, i) = static_cast<int32_t>(merge & 0xFFFFFFFF);
    at(symbols, gone) = -1;
    at(next, i) = at(next, gone);
    if (at(next, i) < count) at(previous, at(next, i)) = i;
    const auto push = [&](int32_t where) {
      if (const uint64_t found = merge_at(where); found != kNone) {
        heap.push_back(entry(found, where));
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
      }
    };
    push(i);
    if (at(previous, i) >= 0) push(at(previous, i));
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), -1), symbols.end());
}

}  // namespace mtl::tokenizer
