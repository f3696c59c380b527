// The smallest case that still fails like one that failed.
#pragma once

#include "sweep/check_case.h"

namespace mtl::sweep {

// By leaving out settings and making numbers smaller.
Case shrink(const Case& drawn, const Failure& failure, const std::filesystem::path& folder,
            What what);

}  // namespace mtl::sweep
