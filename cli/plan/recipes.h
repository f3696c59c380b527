// The members of mtl recipes.
#pragma once

#include "cli/commands.h"

namespace mtl {

int command_recipes_ls(const Arguments& args);
int command_recipes_show(const Arguments& args);
int command_recipes_cp(const Arguments& args);

}  // namespace mtl
