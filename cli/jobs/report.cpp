// mtl report: what a run, or several, did: a page to read, or numbers.
#include "runtime/report/report.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/jobs/run_of_job.h"
#include "common/error.h"
#include "common/shell_word.h"
#include "runtime/find_run.h"
#include "runtime/report/compare.h"

namespace mtl {

namespace {

// A run's own files are all that there is of it, but for the page, which is made again.
void refuse_file_of(const std::vector<std::filesystem::path>& runs,
                    const std::filesystem::path& file) {
  std::error_code unknown;
  const std::filesystem::path place = std::filesystem::weakly_canonical(file, unknown);
  if (unknown || !std::filesystem::exists(place, unknown) || place.extension() == ".html") return;
  for (const std::filesystem::path& run : runs) {
    const std::filesystem::path folder = std::filesystem::canonical(run, unknown);
    if (unknown || place.lexically_relative(folder).string().starts_with("..")) continue;
    throw Error(Exit::usage, {.code = "usage.value",
                              .what = fmt::format("the report would replace {}, a file of the run "
                                                  "{}",
                                                  file.string(), run.string()),
                              .help = "name another file with -o, such as report.html"});
  }
}

}  // namespace

int command_report(const Arguments& args) {
  std::string file;
  bool json = false;
  std::vector<std::string> names;
  CommandLine line({"report [options] RUN...", "report -o FILE RUN RUN..."},
                   "Writes what a run did as one HTML file that needs nothing else: how it ended, "
                   "its curves, events, plan and settings. Several runs are laid over each other, "
                   "with the settings in which they differ. A run may be going on, or have failed. "
                   "Prints the path of the file.");
  line.example("mtl report runs/mine", "the newest run of that name: its report.html");
  line.example("mtl report -o compared.html runs/a runs/b", "two runs beside each other");
  line.option("output,o", "FILE", file, "where the page is written", "RUN/report.html");
  line.flag("json", json, "one JSON document on stdout instead, schema mtl.report/1");
  line.rest("RUN", names, "run directories, names of runs (their newest), or IDs of mtl ps");
  if (!line.parse(args)) return 0;
  if (names.empty()) {
    throw Error(Exit::usage, {.code = "usage.missing",
                              .what = "mtl report needs a run",
                              .help = "mtl report runs/NAME; mtl ps --all names those that there "
                                      "are"});
  }
  if (names.size() > 1 && file.empty() && !json) {
    throw Error(Exit::usage, {.code = "usage.missing",
                              .what = "a report of several runs belongs to none of them",
                              .help = "say where it is written: mtl report -o FILE RUN RUN..."});
  }
  std::vector<std::filesystem::path> dirs;
  for (const std::string& name : names) {
    dirs.push_back(find_run(run_of_job(name)));
    if (!std::filesystem::exists(dirs.back() / "manifest.json")) continue;
    throw Error(Exit::data,
                {.code = "run.missing",
                 .what = fmt::format("'{}' is a checkpoint, and a report is of a run", name),
                 .help = "give the run that has it, or see: mtl ckpt show " + shell_word(name)});
  }
  const std::vector<RunRecord> runs = read_runs(dirs);
  if (json) {
    fmt::print("{}\n",
               report_json(runs).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  const std::filesystem::path path =
      file.empty() ? dirs.front() / "report.html" : std::filesystem::path(file);
  refuse_file_of(dirs, path);
  write_report(runs, path);
  fmt::print("{}\n", path.string());
  return 0;
}

}  // namespace mtl
