#include "runtime/report/report.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "common/error.h"
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
  // What a link names is replaced, and not the link; a device or a pipe is never replaced.
  std::error_code error;
  const fs::path named = fs::weakly_canonical(file, error);
  const fs::path& target = error ? file : named;
  std::string wrong;
  if (fs::exists(target, error) && !fs::is_regular_file(target, error)) {
    wrong = "it is no file";
  } else if (const int failure = replace_file(target, report_page(runs, utc_now()))) {
    wrong = std::strerror(failure);
  }
  if (wrong.empty()) return;
  throw Error(Exit::environment,
              {.code = "report.write",
               .what = fmt::format("cannot write {}: {}", file.string(), wrong),
               .help = "free space, or write another file: mtl report -o FILE RUN"});
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
