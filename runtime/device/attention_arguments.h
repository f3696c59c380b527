// What every device asks of the arguments of attention, before it touches memory.
#pragma once

#include "runtime/device/op_arguments.h"

namespace mtl {

// Throws Error "device.attention" where the arguments do not fit each other.
void check_attention(const Attention& args);
void check_attention(const AttentionBackward& args);
void check_attention(const AttentionSinksBackward& args);

}  // namespace mtl
