// A command line of Megatron-LM's pretrain_gpt.py as a train.yaml, and the reference page of its
// flags.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/error.h"

namespace mtl {

struct MegatronSettings {
  // Keys of train.yaml in the order of the schema, with their values as YAML.
  std::vector<std::pair<std::string, std::string>> settings;
  // What was not taken over and a person has to look at: sentences.
  std::vector<std::string> open;
};

// `words` is the command; what stands before a word that ends in .py belongs to a launcher. Code
// config.import for flags that make another model or training than there is here, and for values
// that cannot be; nothing that the command does not say is an error.
MegatronSettings settings_of_megatron(const std::vector<std::string>& words,
                                      Diagnostics& diagnostics);

// The file: `from` is named in its first line, and what is open stands there as comments.
std::string megatron_train_yaml(const MegatronSettings& settings, const std::string& from);

std::string megatron_reference_markdown();

}  // namespace mtl
