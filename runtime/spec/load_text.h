// A train.yaml that lies in no file: a recipe inside the program.
#pragma once

#include <string>

#include "runtime/spec/train_spec.h"

namespace mtl {

// As load_spec() of a file with this text and no other layer; `name` is what messages call it.
ResolvedSpec load_spec_text(const std::string& text, const std::string& name,
                            Diagnostics& diagnostics);

}  // namespace mtl
