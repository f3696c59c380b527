// The word that lowers the instruction set (isa.h, which kernels of each of them include too).
#pragma once

#include <optional>
#include <string>

#include "common/error.h"

namespace mtl {

// What is wrong with an MTL_CPU_ISA: device.cpu_isa (Exit::environment).
std::optional<Error> wrong_cpu_isa(const std::string& wish);

}  // namespace mtl
