// The table of mtl ps and mtl top.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/jobs.h"

namespace mtl {

// "1:02:03", "2-03:04:05"; "-" for less than nothing.
std::string clock_text(double seconds);
// Headed columns, and under them the ranks that the others wait for. `wide`: also tokens per second
// and the time that is left. Where `columns` (0 = no matter) are too few for all, those go that say
// least.
std::string jobs_table(const std::vector<JobView>& jobs, int columns, bool utf8, bool wide);
// Schema mtl.ps/1.
std::string jobs_json(const std::vector<JobView>& jobs);

}  // namespace mtl
