// The normalizers of tokenizer.json: what happens to a text before it is cut into pieces.
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace mtl::tokenizer {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is valid UTF-8, and what it becomes too.
  virtual void apply(std::string& text) const = 0;
};
// Null if `json` is null. Throws Error data.tokenizer; `place` is where it stands.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json* json, const std::string& place);

}  // namespace mtl::tokenizer
