// The members of `mtl data`.
#pragma once

#include "cli/commands.h"

namespace mtl {

int command_data_train_tokenizer(const Arguments& args);

}  // namespace mtl
