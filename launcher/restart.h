// When a failed job is started again.
#pragma once

namespace mtl {

// Whether starting the same thing once more can help. Ours: wrong usage, configuration, data, a
// machine that lacks something, or too little memory fail again in the same way. Of other programs
// nothing is known, as with torchrun, but that one which cannot be executed will not be.
bool may_restart(int exit_code, bool is_ours);

}  // namespace mtl
