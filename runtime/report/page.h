// The report of one run or several: one page of HTML with everything inside, that a browser shows
// without a network and without its script, and a mail carries.
#pragma once

#include <string>
#include <vector>

#include "runtime/report/run_record.h"

namespace mtl {

// `made`: the time that it says it is of.
std::string report_page(const std::vector<RunRecord>& runs, const std::string& made);

}  // namespace mtl
