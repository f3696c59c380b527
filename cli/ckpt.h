// The members of `mtl ckpt`.
#pragma once

#include "cli/commands.h"

namespace mtl {

int command_ckpt_export(const Arguments& args);
int command_ckpt_import(const Arguments& args);

}  // namespace mtl
