#include "runtime/data/documents.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mtl {

namespace {

class RangeOfRow : public TokenSource {
 public:
  RangeOfRow(std::shared_ptr<const TokenSource> row, int64_t first, int64_t size)
      : row_(std::move(row)), first_(first), size_(size) {}
  int64_t size() const override { return size_; }
  void read(int64_t first, std::span<int32_t> out) const override {
    row_->read(first_ + first, out);
  }
  uint64_t fingerprint() const override { return row_->fingerprint(); }

 private:
  std::shared_ptr<const TokenSource> row_;
  int64_t first_, size_;
};

class OneDocument : public Documents {
 public:
  explicit OneDocument(std::shared_ptr<const TokenSource> row) : row_(std::move(row)) {}
  int64_t count() const override { return 1; }
  int64_t tokens() const override { return row_->size(); }
  int64_t length(int64_t) const override { return row_->size(); }
  void read(int64_t, int64_t first, std::span<int32_t> out) const override {
    row_->read(first, out);
  }

 private:
  std::shared_ptr<const TokenSource> row_;
};

class IndexedDocuments : public Documents {
 public:
  IndexedDocuments(std::shared_ptr<const IndexedDataset> dataset,
                   std::shared_ptr<const IndexedDataset> loss, int64_t begin, int64_t end,
                   int64_t vocab)
      : dataset_(std::move(dataset)),
        loss_(std::move(loss)),
        begin_(begin),
        count_(end - begin),
        vocab_(vocab) {
    for (int64_t i = begin; i < end; ++i) tokens_ += dataset_->length(i);
  }
  int64_t count() const override { return count_; }
  int64_t tokens() const override { return tokens_; }
  int64_t length(int64_t document) const override { return dataset_->length(begin_ + document); }
  void read(int64_t document, int64_t first, std::span<int32_t> out) const override {
    dataset_->read(begin_ + document, first, out);
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] < vocab_) continue;
      throw Error(
          Exit::data,
          {.code = "data.token_range",
           .what =
               fmt::format("{}.bin: token {} of sequence {} is {}, outside the vocabulary of {}",
                           dataset_->prefix().string(), first + static_cast<int64_t>(i),
                           begin_ + document, out[i], vocab_),
           .help = "the corpus was made with another tokenizer: give that one, or its data.vocab"});
    }
    if (!loss_) return;
    std::vector<int32_t> learn(out.size());
    loss_->read(begin_ + document, first, learn);
    for (size_t i = 0; i < out.size(); ++i) {
      if (learn[i] == 0) out[i] = not_learned(out[i]);
    }
  }

 private:
  std::shared_ptr<const IndexedDataset> dataset_, loss_;
  int64_t begin_, count_, vocab_;
  int64_t tokens_ = 0;
};

class DocumentRow : public TokenSource {
 public:
  explicit DocumentRow(std::shared_ptr<const Documents> documents)
      : documents_(std::move(documents)) {
    for (int64_t i = 0; i < documents_->count(); ++i) {
      if (i % kEvery == 0) begins_.push_back(size_);
      size_ += documents_->length(i);
    }
  }
  int64_t size() const override { return size_; }
  void read(int64_t first, std::span<int32_t> out) const override {
    const auto mark = std::upper_bound(begins_.begin(), begins_.end(), first) - begins_.begin() - 1;
    int64_t document = mark * kEvery, begin = begins_[static_cast<size_t>(mark)];
    while (!out.empty()) {
      const int64_t length = documents_->length(document);
      if (first < begin + length) {
        const auto count =
            std::min<size_t>(out.size(), static_cast<size_t>(begin + length - first));
        documents_->read(document, first - begin, out.first(count));
        out = out.subspan(count);
        first += static_cast<int64_t>(count);
      }
      begin += length;
      ++document;
    }
  }
  uint64_t fingerprint() const override { return 0; }

 private:
  static constexpr int64_t kEvery = 512;
  std::shared_ptr<const Documents> documents_;
  std::vector<int64_t> begins_;  // of every kEvery-th document
  int64_t size_ = 0;
};

}  // namespace

std::shared_ptr<const TokenSource> token_range(std::shared_ptr<const TokenSource> row,
                                               int64_t first, int64_t size) {
  return std::make_shared<RangeOfRow>(std::move(row), first, size);
}

std::unique_ptr<Documents> one_document(std::shared_ptr<const TokenSource> row) {
  return std::make_unique<OneDocument>(std::move(row));
}

std::unique_ptr<Documents> indexed_documents(std::shared_ptr<const IndexedDataset> dataset,
                                             std::shared_ptr<const IndexedDataset> loss,
                                             int64_t begin, int64_t end, int64_t vocab) {
  return std::make_unique<IndexedDocuments>(std::move(dataset), std::move(loss), begin, end, vocab);
}

std::unique_ptr<TokenSource> document_row(std::shared_ptr<const Documents> documents) {
  return std::make_unique<DocumentRow>(std::move(documents));
}

}  // namespace mtl
