// --tokenizer and its kin, as data.tokenizer.* in train.yaml.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/command_line.h"
#include "runtime/data/load_tokenizer.h"

namespace mtl {

struct TokenizerFlags {
  std::string tokenizer;  // a file, a folder or a type
  std::optional<std::string> type;
  TokenizerOptions options;
};
void declare_tokenizer_flags(CommandLine& line, TokenizerFlags& flags);
bool any_given(const TokenizerFlags& flags);
std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerFlags& flags);

}  // namespace mtl
