// A corpus, or a part of one, as documents: what Megatron's order shuffles and packs. Row by row,
// or as one row of tokens.
#pragma once

#include <memory>

#include "runtime/data/data.h"
#include "runtime/data/indexed_dataset.h"

namespace mtl {

// A token that is not to be learned, as it is read: ~id, so that whoever moves tokens moves this
// with them. put_sample() (blend.h) makes inputs and targets of both kinds.
inline constexpr int32_t not_learned(int32_t id) {
  return ~id;
}
inline constexpr bool is_learned(int32_t token) {
  return token >= 0;
}
inline constexpr int32_t id_of(int32_t token) {
  return token >= 0 ? token : ~token;
}

// Safe to read from several threads.
class Documents {
 public:
  virtual ~Documents() = default;
  virtual int64_t count() const = 0;
  virtual int64_t tokens() const = 0;
  virtual int64_t length(int64_t document) const = 0;
  // Tokens [first, first + out.size()) of a document; the range lies inside it. Throws Error
  // (Exit::data) data.token, data.token_range, data.unreadable.
  virtual void read(int64_t document, int64_t first, std::span<int32_t> out) const = 0;
};

// Tokens [first, first + size) of a row.
std::shared_ptr<const TokenSource> token_range(std::shared_ptr<const TokenSource> row,
                                               int64_t first, int64_t size);
// A row of tokens as one document.
std::unique_ptr<Documents> one_document(std::shared_ptr<const TokenSource> row);
// Sequences [begin, end) of an indexed dataset. Ids from `vocab` on are refused when they are read.
// `loss`: open_loss() of it; tokens with a 0 there are not_learned(). nullptr: all are learned.
std::unique_ptr<Documents> indexed_documents(std::shared_ptr<const IndexedDataset> dataset,
                                             std::shared_ptr<const IndexedDataset> loss,
                                             int64_t begin, int64_t end, int64_t vocab);
// All documents one behind the other. Keeps 8 bytes for every 512 documents.
std::unique_ptr<TokenSource> document_row(std::shared_ptr<const Documents> documents);

}  // namespace mtl
