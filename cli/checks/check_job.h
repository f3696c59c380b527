// The job of a check: `mtl selftest` on every rank that mtl launch with the same flags would start.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/job.h"

namespace mtl {

// `arguments` of mtl selftest. Prints warnings; throws Error with all that is wrong in the
// settings.
JobOptions check_job(const LaunchGiven& given, const std::vector<std::string>& arguments);

}  // namespace mtl
