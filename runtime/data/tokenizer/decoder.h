// The decoders of tokenizer.json: how the texts of tokens become a text again.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mtl::tokenizer {

struct TokenText {
  std::string text;
  bool added = false;  // an added token: in the text as it is
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<TokenText>& tokens) const = 0;
};
// Null if `json` is null: tokens with spaces between them. Throws Error data.tokenizer.
std::unique_ptr<Decoder> make_decoder(const nlohmann::json* json, const std::string& place);

}  // namespace mtl::tokenizer
