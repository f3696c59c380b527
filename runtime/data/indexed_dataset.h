// Megatron-LM's indexed dataset: PREFIX.bin has the token ids of all sequences one after the other,
// little-endian, without a header; PREFIX.idx says where they begin:
//   0      9 bytes   "MMIDIDX\0\0"
//   9      u64       version, 1
//   17     u8        type of a token: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
//   18     u64       S, sequences
//   26     u64       D, documents + 1
//   34     i32[S]    tokens of each sequence
//          i64[S]    byte of the .bin at which each begins
//          i64[D]    sequence at which each document begins; the first is 0, the last S
//          i8[S]     modality of each sequence; only in multimodal corpora, and nothing says so
// (megatron/core/datasets/indexed_dataset.py). Such files come from strangers: nothing in them is
// trusted. A corpus that passes the constructor is laid out as Megatron's writer does it: sequences
// one after the other without a gap, all of the .bin used, every document inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace mtl {

enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };
int64_t bytes_of(TokenType type);
// Megatron's choice for GPT: u16 for vocabularies below 65,500, else i32.
TokenType token_type_for(int64_t vocab_size);

// Ids as bytes of the type, ids.size() * bytes_of(type) of them; false if one does not fit.
bool store_tokens(TokenType type, std::span<const int32_t> ids, std::byte* to);

// PREFIX of "PREFIX", "PREFIX.bin" or "PREFIX.idx".
std::filesystem::path indexed_prefix(const std::filesystem::path& path);
// Whether PREFIX.idx exists.
bool is_indexed_dataset(const std::filesystem::path& path);

// Mapped, read only; safe to read from several threads. A file that becomes shorter under a mapping
// has zeros or SIGBUS where its end was: each read() therefore looks at the sizes of both files
// again and throws data.index for one that has changed. (A file that is replaced by renaming
// another one over it does no harm: the mapping is of the old one.)
class IndexedDataset {
 public:
  // Throws Error (Exit::data): data.missing, data.unreadable, data.index (names the file, the
  // offset and what is wrong there).
  explicit IndexedDataset(const std::filesystem::path& prefix);
  ~IndexedDataset();
  IndexedDataset(const IndexedDataset&) = delete;
  IndexedDataset& operator=(const IndexedDataset&) = delete;

  const std::filesystem::path& prefix() const;
  TokenType type() const;
  int64_t sequences() const;
  int64_t documents() const;
  int64_t tokens() const;
  int32_t length(int64_t sequence) const;          // tokens
  int64_t document_begin(int64_t document) const;  // its first sequence; documents() -> sequences()
  // Tokens [first, first + out.size()) of a sequence; the range lies inside it. Throws Error
  // data.token for an id that is negative or beyond i32.
  void read(int64_t sequence, int64_t first, std::span<int32_t> out) const;
  bool has_modalities() const;
  // Bytes [first, first + count) of the .bin, at most until the file changes: call
  // check_unchanged() after the use. Both throw data.index.
  std::span<const std::byte> bytes(int64_t first, int64_t count) const;
  void check_unchanged() const;

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

// Writes PREFIX.bin and PREFIX.idx under temporary names (PREFIX.bin.part and others beside it) and
// gives them their own at the end: a corpus is there whole or not at all. Memory does not grow with
// the corpus. One that was there before stays until finish(), which replaces it.
class IndexedDatasetWriter {
 public:
  // How far a writer has come.
  struct Position {
    int64_t sequences = 0, documents = 0, tokens = 0;
    int64_t open_tokens = 0;     // of them, of a sequence that is not ended
    int64_t open_sequences = 0;  // of a document that is not ended
  };

  // Throws Error (Exit::environment) data.write, also from the other members; data.busy, if another
  // process is writing the same.
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type);
  // Goes on where an earlier writer, which kept its files, was at a sync(); what it wrote after
  // that is dropped. Throws Error (Exit::data) data.resume if its files are not there, or shorter.
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type,
                       const Position& position);
  ~IndexedDatasetWriter();  // what was not finished is removed, unless keep_parts(true)
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  // Throws Error (Exit::data) data.token for an id that the type does not hold.
  void add_sequence(std::span<const int32_t> ids);
  void end_document();
  // The same in pieces, of tokens as they are in the .bin (store_tokens()). Throws data.token where
  // a sequence becomes longer than the format can say.
  void add_tokens(std::span<const std::byte> tokens);
  void end_sequence();
  // All sequences and documents of another corpus of the same type, behind the others. Throws Error
  // (Exit::data) data.merge for another type, and for one with modalities.
  void append(const IndexedDataset& other);
  Position position() const;
  // Everything so far is on the disk afterwards.
  Position sync();
  // Whether the temporary files stay behind if this writer does not finish; they do not.
  void keep_parts(bool keep);
  void finish();

  // After a crash inside finish(): gives the files their names if that was all that was missing.
  // True if PREFIX is finished then.
  static bool complete_finish(const std::filesystem::path& prefix);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mtl
