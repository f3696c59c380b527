// The report of runs as a file: report.html of a run directory, or of several runs anywhere.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/report/run_record.h"

namespace mtl {

// Curves as fine as a page of less than a megabyte has room for.
std::vector<RunRecord> read_runs(const std::vector<std::filesystem::path>& dirs);

// Replaces `file`, or what it is a link to, as a whole. Throws Error "report.write"
// (Exit::environment).
void write_report(const std::vector<RunRecord>& runs, const std::filesystem::path& file);

// At the end of a run: report.html in its directory. Never throws, since a report is no reason to
// fail; returns what went wrong, "" = nothing.
std::string write_report_of(const std::filesystem::path& run_dir);

}  // namespace mtl
