// The members of `mtl data`.
#pragma once

#include <filesystem>
#include <string>

#include "cli/commands.h"

namespace mtl {

// Of the corpus that -o names. Throws Error usage.value for a folder.
std::filesystem::path output_prefix(const std::string& output);

int command_data_tokenize(const Arguments& args);
int command_data_preview(const Arguments& args);
int command_data_stats(const Arguments& args);
int command_data_verify(const Arguments& args);
int command_data_merge(const Arguments& args);
int command_data_train_tokenizer(const Arguments& args);

}  // namespace mtl
