// The tokenizer of a corpus of which nobody knows the text: ids are written as numbers. A model of
// such a corpus is prompted with numbers and answers with numbers.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/text.h"
#include "runtime/data/data.h"

namespace mtl {

namespace {

class IdTokenizer : public Tokenizer {
 public:
  explicit IdTokenizer(int64_t vocab) : vocab_(vocab) {}
  int64_t vocab_size() const override { return vocab_; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (size_t at = text.find_first_not_of(" \t\r\n"); at < text.size();
         at = text.find_first_not_of(" \t\r\n", at)) {
      const size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
      const std::string_view word = text.substr(at, end - at);
      const auto id = to_number<int>(word);
      if (!id || *id < 0 || *id >= vocab_) {
        throw Error(Exit::data,
                    {.code = "data.token",
                     .what = fmt::format("'{}' at byte offset {} is no id below {}",
                                         word.substr(0, 40), at, vocab_),
                     .help = "this corpus has ids and no text: write numbers with spaces between "
                             "them"});
      }
      ids.push_back(*id);
      at = end;
    }
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    return fmt::format("{}{}", fmt::join(ids, " "), ids.empty() ? "" : " ");
  }
  nlohmann::json to_json() const override {
    return {{"format", "mtl.tokenizer"}, {"version", 1}, {"type", "ids"}, {"vocab", vocab_}};
  }

 private:
  int64_t vocab_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_id_tokenizer(int64_t vocab) {
  return std::make_unique<IdTokenizer>(vocab);
}

}  // namespace mtl
