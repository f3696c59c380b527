// The merges: a queue of pairs by their counts, and for each pair the words that have it. A count
// in the queue may be out of date; it is put right when its pair comes up (as Hugging Face's
// trainer does, whose result this is, with its order of ties).
#include "runtime/data/tokenizer/train_bpe.h"

#include <queue>
#include <unordered_map>

#include "common/error.h"
#include "common/utf8.h"
#include "runtime/data/tokenizer/bpe.h"
#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/tokenizer/hf_file.h"

namespace mtl {

namespace {

using nlohmann::json;

struct Candidate {
  int64_t count;
  uint64_t pair;
  size_t words;  // which list of words
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class BpeTrainer {
 public:
  explicit BpeTrainer(const TokenizerTraining& training) : training_(training) {
    for (const std::string& token : training.special) id_of(token);
    // The alphabet in the order of its characters.
    std::map<char32_t, unsigned char> alphabet;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto b = static_cast<unsigned char>(byte);
      alphabet.emplace(tokenizer::character_of(b), b);
    }
    for (const auto& [character, byte] : alphabet) {
      std::string token;
      append_utf8(token, character);
      byte_ids_[byte] = id_of(token);
    }
  }

  void train(const WordCounts& words) {
    add_words(words);
    while (static_cast<int64_t>(tokens_.size()) < training_.vocab && !queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = pair_counts_.at(top.pair);
      if (top.count != count) {
        top.count = count;
        queue_.push(top);
        continue;
      }
      if (count < 1 || count < training_.min_count) break;
      merge(top);
    }
  }

  json vocab() const {
    json vocab = json::object();
    for (size_t id = 0; id < tokens_.size(); ++id) vocab[tokens_[id]] = id;
    return vocab;
  }

  json merges() const {
    // A pair that came up twice counts where it came up last.
    std::unordered_map<uint64_t, size_t> last;
    for (size_t i = 0; i < merges_.size(); ++i) last[merges_[i]] = i;
    json list = json::array();
    for (size_t i = 0; i < merges_.size(); ++i) {
      if (last.at(merges_[i]) != i) continue;
      list.push_back(tokens_[merges_[i] >> 32] + ' ' + tokens_[merges_[i] & 0xFFFFFFFF]);
    }
    return list;
  }

 private:
  int32_t id_of(const std::string& token) {
    const auto [found, is_new] = ids_.emplace(token, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    return found->second;
  }

  void add_words(const WordCounts& words) {
    for (const auto& [word, count] : words) {
      std::vector<int32_t>& symbols = words_.emplace_back();
      symbols.reserve(word.size());
      for (const char byte : word) symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      counts_.push_back(static_cast<int64_t>(count));
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        add(tokenizer::pair_key(symbols[i], symbols[i + 1]), counts_.size() - 1);
      }
    }
    queue_changed();
  }

  // One more occurrence of a pair in a word.
  void add(uint64_t pair, size_t word) {
    pair_counts_[pair] += counts_[word];
    std::vector<uint32_t>& list = changed_[pair];
    if (list.empty() || list.back() != word) list.push_back(static_cast<uint32_t>(word));
  }

  void queue_changed() {
    for (auto& [pair, list] : changed_) {
      const int64_t count = pair_counts_.at(pair);
      if (count <= 0) continue;
      lists_.push_back(std::move(list));
      queue_.push({count, pair, lists_.size() - 1});
    }
    changed_.clear();
  }

  void merge(const Candidate& top) {
    const auto left = static_cast<int32_t>(top.pair >> 32);
    const auto right = static_cast<int32_t>(top.pair & 0xFFFFFFFF);
    const int32_t merged =
        id_of(tokens_[static_cast<size_t>(left)] + tokens_[static_cast<size_t>(right)]);
    merges_.push_back(top.pair);
    for (const uint32_t word : std::exchange(lists_[top.words], {})) {
      std::vector<int32_t>& symbols = words_[word];
      size_t to = 0;  // symbols before it are done
      for (size_t from = 0; from < symbols.size();) {
        if (symbols[from] != left || from + 1 >= symbols.size() || symbols[from + 1] != right) {
          symbols[to++] = symbols[from++];
          continue;
        }
        if (to > 0) {
          pair_counts_[tokenizer::pair_key(symbols[to - 1], left)] -= counts_[word];
          add(tokenizer::pair_key(symbols[to - 1], merged), word);
        }
        from += 2;
        symbols[to++] = merged;
        if (from < symbols.size()) {
          pair_counts_[tokenizer::pair_key(right, symbols[from])] -= counts_[word];
          add(tokenizer::pair_key(merged, symbols[from]), word);
        }
      }
      symbols.resize(to);
    }
    queue_changed();
  }

  const TokenizerTraining& training_;
  int32_t byte_ids_[256] = {};
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::vector<int32_t>> words_;  // as symbols
  std::vector<int64_t> counts_;              // of each word
  std::unordered_map<uint64_t, int64_t> pair_counts_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> changed_;
  std::vector<std::vector<uint32_t>> lists_;  // the words that have a pair
  std::priority_queue<Candidate> queue_;
  std::vector<uint64_t> merges_;
};

}  // namespace

// In train_words.cpp.
json pre_tokenizer_of(const std::string& pattern);

json train_tokenizer(const WordCounts& words, const TokenizerTraining& training) {
  BpeTrainer trainer(training);
  trainer.train(words);
  json added = json::array();
  for (size_t i = 0; i < training.special.size(); ++i) {
    added.push_back(tokenizer::hf_added_token(training.special[i], i, true));
  }
  json file = tokenizer::hf_bpe_file(trainer.vocab(), pre_tokenizer_of(training.pattern),
                                     tokenizer::hf_byte_level(true));
  file["added_tokens"] = std::move(added);
  file["model"]["merges"] = trainer.merges();
  return file;
}

}  // namespace mtl
