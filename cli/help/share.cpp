// mtl __share DIR: what is installed in share/ and made from what mtl knows of itself. The build
// runs it (packaging/manual.cmake).
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/help/completion.h"
#include "cli/help/manual.h"
#include "common/error.h"
#include "common/files.h"

namespace mtl {

namespace {

// Today, or the day that a reproducible build names.
std::string day_of_build() {
  const char* epoch = std::getenv("SOURCE_DATE_EPOCH");
  const std::time_t seconds = epoch != nullptr ? std::atoll(epoch) : std::time(nullptr);
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(seconds));
}

void write_below(const std::filesystem::path& folder, const std::string& name,
                 std::string_view text) {
  make_directories((folder / name).parent_path());
  write_file_atomic(folder / name, text);
}

}  // namespace

int command_share(const Arguments& args) {
  if (args.size() != 1 || args[0].starts_with('-')) {
    throw Error(Exit::usage, {.code = "usage.missing",
                              .what = "mtl __share wants a directory",
                              .help = "it is for the build: packaging/manual.cmake"});
  }
  for (const ManPage& page : manual_pages(day_of_build())) {
    write_below(args[0], "man/" + page.file(), page.text());
  }
  for (const CompletionScript& script : completion_scripts()) {
    write_below(args[0], script.installed_as, script.text);
  }
  return 0;
}

}  // namespace mtl
