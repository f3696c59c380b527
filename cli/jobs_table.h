// The table of mtl ps and mtl top.
#pragma once

#include <string>
#include <vector>

#include "launcher/jobs.h"

namespace mtl {

// "1:02:03", "2-03:04:05"; "-" for less than nothing.
std::string clock_text(double seconds);
// Headed columns. `wide`: also tokens per second and the time that is left.
std::string jobs_table(const std::vector<JobView>& jobs, int columns, bool utf8, bool wide);
// Schema mtl.ps/1.
std::string jobs_json(const std::vector<JobView>& jobs);

}  // namespace mtl
