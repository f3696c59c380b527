// Who holds a file's lock.
#include "common/file_lock.h"

#include <doctest/doctest.h>

#include "support/temp_dir.h"

using namespace mtl;

TEST_CASE("a lock is held as long as its descriptor lives, and looking takes it from nobody") {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "lock";
  CHECK_FALSE(is_locked(path).has_value());
  std::optional<Fd> lock = take_lock(path);
  REQUIRE(lock.has_value());
  CHECK(is_locked(path) == true);
  CHECK_FALSE(take_lock(path).has_value());
  lock.reset();
  CHECK(is_locked(path) == false);
  CHECK(take_lock(path).has_value());
}
