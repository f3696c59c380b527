// Folders that go away by themselves, also those of processes that could not clean up.
#include "launcher/system/scratch_folder.h"

#include <chrono>
#include <string>

#include <doctest/doctest.h>

#include "support/temp_dir.h"
#include "support/variable.h"

using namespace mtl;
namespace fs = std::filesystem;

namespace {

// TMPDIR of one test.
class OwnTemp {
 public:
  // As a process leaves it that was killed an hour ago.
  fs::path old_folder(const std::string& name) const {
    const fs::path path = dir_ / name;
    fs::create_directory(path);
    make_old(path);
    return path;
  }
  static void make_old(const fs::path& path) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }

 private:
  test::TempDir dir_;
  test::Variable variable_{"TMPDIR", dir_.path().string()};
};

}  // namespace

TEST_CASE("scratch folder: it goes away with its owner") {
  const OwnTemp temp;
  fs::path path;
  {
    const ScratchFolder folder("mtl-errors");
    path = folder.path();
    CHECK(fs::is_directory(path));
    CHECK(path.filename().string().starts_with("mtl-errors-"));
  }
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("scratch folder: what a killed process has left goes with the next one") {
  const OwnTemp temp;
  const fs::path left = temp.old_folder("mtl-errors-abcdef");
  const fs::path other = temp.old_folder("mtl-logs-abcdef");
  const fs::path similar = temp.old_folder("mtl-errors-of-mine");
  const fs::path young = temp.old_folder("mtl-errors-young1");
  fs::create_directory(young / "0");  // and so its time is now
  const ScratchFolder folder("mtl-errors");
  CHECK_FALSE(fs::exists(left));
  CHECK(fs::exists(other));
  CHECK(fs::exists(similar));
  CHECK(fs::exists(young));
}

TEST_CASE("scratch folder: one in use stays, however old it is") {
  const OwnTemp temp;
  const ScratchFolder first("mtl-errors");
  OwnTemp::make_old(first.path());
  const ScratchFolder second("mtl-errors");
  CHECK(fs::exists(first.path()));
  CHECK(first.path() != second.path());
}
