// The variables that choose what ranks compute on and how they exchange.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/error.h"

namespace mtl {

// What is wrong with MTL_DEVICE, MTL_CPU_ISA and MTL_COMM (`variable` gives their values, "" where
// one is not set). Each rank would refuse it too, but only when it runs.
std::vector<Error> wrong_engine_words(
    const std::function<std::string(const std::string& name)>& variable);

}  // namespace mtl
