// The elements of a CheckpointTensor where they are: in host memory, or elsewhere (a GPU's) and
// copied through a piece of host memory of bounded size.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl {

inline constexpr int64_t kElementPieceBytes = int64_t{64} << 20;

// Reading, best in ascending order.
class ElementReader {
 public:
  explicit ElementReader(const CheckpointTensor& tensor, int64_t piece_bytes = kElementPieceBytes)
      : tensor_(tensor),
        element_(bytes_of(tensor.dtype)),
        most_(std::max<int64_t>(1, piece_bytes / element_)) {}

  // visit(bytes), once or several times in order, of `count` elements from `at` on, which count
  // from where the tensor's data begins.
  template <typename Visit>
  void read(int64_t at, int64_t count, Visit visit) {
    if (!tensor_.fetch) {
      const char* const data = static_cast<const char*>(tensor_.data) + at * element_;
      return visit(std::string_view(data, static_cast<size_t>(count * element_)));
    }
    while (count > 0) {
      if (at < begin_ || at >= end_) fetch(at, count);
      const int64_t part = std::min(count, end_ - at);
      visit(std::string_view(buffer_.data() + (at - begin_) * element_,
                             static_cast<size_t>(part * element_)));
      at += part;
      count -= part;
    }
  }

 private:
  void fetch(int64_t at, int64_t count) {
    // More than asked for, as far as there is any: the next call will want it.
    const int64_t length = std::min(most_, std::max(count, tensor_.count - at));
    buffer_.resize(static_cast<size_t>(length * element_));
    tensor_.fetch(at, length, buffer_.data());
    begin_ = at;
    end_ = at + length;
  }

  const CheckpointTensor& tensor_;
  const int64_t element_, most_;
  std::vector<char> buffer_;
  int64_t begin_ = 0, end_ = 0;  // of what the buffer holds
};

// Writing: what follows on each other is stored together.
class ElementWriter {
 public:
  explicit ElementWriter(const CheckpointTensor& tensor, int64_t piece_bytes = kElementPieceBytes)
      : tensor_(tensor),
        element_(bytes_of(tensor.dtype)),
        most_(static_cast<size_t>(std::max(element_, piece_bytes / element_ * element_))) {}

  void write(int64_t at, std::string_view bytes) {
    if (!tensor_.store) {
      std::memcpy(static_cast<char*>(tensor_.data) + at * element_, bytes.data(), bytes.size());
      return;
    }
    while (!bytes.empty()) {
      const auto held = static_cast<int64_t>(buffer_.size()) / element_;
      if (at != begin_ + held || buffer_.size() == most_) {
        flush();
        begin_ = at;
      }
      const size_t part = std::min(bytes.size(), most_ - buffer_.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(part));
      bytes.remove_prefix(part);
      at += static_cast<int64_t>(part) / element_;
    }
  }
  // To be called when all is written.
  void flush() {
    if (buffer_.empty()) return;
    tensor_.store(begin_, static_cast<int64_t>(buffer_.size()) / element_, buffer_.data());
    buffer_.clear();
  }

 private:
  const CheckpointTensor& tensor_;
  const int64_t element_;
  const size_t most_;  // bytes
  std::vector<char> buffer_;
  int64_t begin_ = 0;
};

}  // namespace mtl
