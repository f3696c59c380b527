// Text in, batches out: tokenizers, the token source, and the sampler. The order of samples depends
// only on (seed, sample index): never on the layout.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/error.h"

namespace mtl {

// Where a piece of a text lies that is encoded in pieces. What a tokenizer does at the ends of a
// text (a space before it, white space taken away) it does at those of the text only.
struct TextPart {
  bool begins = true;  // the text begins with the piece
  bool ends = true;
  bool behind_token = false;  // and where it begins, a special token stands before it
};

// A token that is written into a text as it stands.
struct SpecialToken {
  int32_t id = 0;
  bool lstrip = false, rstrip = false;  // it takes the white space before and behind it
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocab_size() const = 0;
  // The tokens of a text, and nothing before or behind it (no BOS). Special tokens that are written
  // in the text ("<|endoftext|>") are text. Where the vocabulary is one of Unicode, what is not
  // UTF-8 is U+FFFD, as in Python's decode("utf-8", errors="replace"). Throws Error "data.token"
  // (Exit::data) for text that the vocabulary cannot spell. Safe to call from several threads.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Of a piece that ends, if the text goes on, behind a newline or before a space, with neither on
  // its other side: the ids of the pieces are, one behind the other, those of the text (but an
  // added token takes no white space from across a cut, and a token with words on both sides is
  // cut).
  virtual std::vector<int32_t> encode_part(std::string_view text, TextPart) const {
    return encode(text);
  }
  // The same as encode, but special tokens that are written in the text are those tokens.
  virtual std::vector<int32_t> encode_with_special(std::string_view text) const {
    return encode(text);
  }
  // The added token of that name; nothing where it is text.
  virtual std::optional<SpecialToken> special(std::string_view) const { return std::nullopt; }
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual nlohmann::json to_json()
      const = 0;  // complete: stored with the run and with each checkpoint
  // The token that ends a document, if the tokenizer has one.
  virtual std::optional<int32_t> eod() const { return std::nullopt; }
};
// The 256 bytes.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
// The distinct Unicode characters of `text`, sorted by code point (nanoGPT's char-level
// vocabulary). Throws "data.utf8" with the byte offset.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text);
// Of a corpus of which only the ids are known: text is numbers with spaces between them.
std::unique_ptr<Tokenizer> make_id_tokenizer(int64_t vocab);
// Throws "data.tokenizer" for what to_json() of this or an earlier version did not write.
std::unique_ptr<Tokenizer> tokenizer_from_json(const nlohmann::json& json);

// A corpus as one long row of token ids. Text files now, .bin/.idx later.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t size() const = 0;  // tokens
  // Copies tokens [first, first + out.size()); the range lies inside the corpus. Of documents of
  // which not all is to be learned: as Documents::read().
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  virtual uint64_t fingerprint() const = 0;  // XXH3 of the tokens as i32; reads all of them
};

struct Corpus {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<TokenSource> train;
  std::unique_ptr<TokenSource> valid;  // may be empty (size 0) if the split says so
};

struct TextCorpusOptions {
  std::string path;
  std::string tokenizer = "bytes";  // bytes | chars
  // Instead: one that is there already; the corpus then has none of its own.
  const Tokenizer* given = nullptr;
  // Weights of contiguous ranges: train first, then valid, then (if given) one left for tests.
  std::vector<double> split = {90, 10};
  int64_t seq_len = 0;  // each non-empty split needs at least seq_len + 1 tokens
};
// Reads, tokenizes and splits a text. Adds data.missing, data.unreadable, data.empty,
// data.too_short, data.split, data.tokenizer, data.utf8 to `diagnostics` (with `place`, the line of
// data.train), and returns an empty Corpus then.
Corpus load_text_corpus(const TextCorpusOptions& options, const Place& place,
                        Diagnostics& diagnostics);

enum class SampleOrder {
  random,      // windows at uniformly random offsets, with replacement (nanoGPT)
  sequential,  // consecutive windows of seq_len, starting over at the end
};

// Sample `index` (0, 1, 2, ... over the whole run: global batch s is indices [s*G, (s+1)*G)) is the
// window of seq_len + 1 tokens at offset(index). Throws data.too_short if there is no such window.
class Sampler {
 public:
  Sampler(int64_t corpus_tokens, int64_t seq_len, SampleOrder order, uint64_t seed);
  int64_t offset(int64_t index) const;
  // Windows that do not repeat: of a sequential sampler those of one pass; a random one never ends.
  int64_t size() const;
  // inputs and targets [count, seq_len], row-major, of samples first .. first+count-1.
  void fill(const TokenSource& source, int64_t first, int64_t count, std::span<int32_t> inputs,
            std::span<int32_t> targets) const;

 private:
  int64_t corpus_tokens_;
  int64_t seq_len_;
  SampleOrder order_;
  uint64_t seed_;
};

}  // namespace mtl
