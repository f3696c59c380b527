// The normalizers of tokenizer.json: what happens to a text before it is cut into pieces.
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/data.h"

namespace mtl::tokenizer {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is valid UTF-8, and what it becomes too. `part`: what lies at its ends. True: its first
  // character is gone, and what begins the text now stood behind it (which for Hugging Face's
  // library does not begin a text).
  virtual bool apply(std::string& text, TextPart part = {}) const = 0;
};
// Null if `json` is null. Throws Error data.tokenizer; `place` is where it stands.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json* json, const std::string& place);

}  // namespace mtl::tokenizer
