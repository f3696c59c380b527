#include "runtime/report/report.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/metrics/format.h"
#include "runtime/metrics/run_files.h"
#include "runtime/report/page.h"

namespace mtl {

namespace fs = std::filesystem;

std::vector<RunRecord> read_runs(const std::vector<fs::path>& dirs) {
  // A chart has a point for a pixel, and not more than 40,000 of all runs together.
  const size_t buckets =
      std::clamp(size_t{800} / std::max(dirs.size(), size_t{1}), size_t{40}, size_t{200});
  std::vector<RunRecord> runs;
  for (const fs::path& dir : dirs) runs.push_back(read_run(dir, buckets));
  return runs;
}

void write_report(const std::vector<RunRecord>& runs, const fs::path& file) {
  try {
    write_file_atomic(file, report_page(runs, utc_now()));
  } catch (const Error& error) {
    Diagnostic why = error.diagnostics().front();
    why.code = "report.write";
    throw Error(error.exit(), why);
  }
}

std::string write_report_of(const fs::path& run_dir) {
  try {
    write_report(read_runs({run_dir}), run_dir / "report.html");
  } catch (const Error& error) {
    return error.diagnostics().front().what;
  } catch (const std::exception& error) {
    return fmt::format("cannot write {}: {}", (run_dir / "report.html").string(), error.what());
  }
  return "";
}

}  // namespace mtl
