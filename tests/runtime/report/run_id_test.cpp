// The names of runs, by which the newest of several is found.
#include <chrono>
#include <string>

#include <doctest/doctest.h>

#include "runtime/run_directory.h"

using namespace mtl;

TEST_CASE("runs are sorted as they began, within one second too") {
  using namespace std::chrono_literals;
  const std::chrono::system_clock::time_point second(1'800'000'000s);
  std::string before;
  for (const auto after : {0us, 1'200us, 2'400us, 40'000us, 41'200us, 500'000us, 997'700us,
                           999'999us, 1'000'000us, 1'001'200us}) {
    const std::string id = run_id(second + after);
    CAPTURE(before);
    CAPTURE(id);
    CHECK(id.size() == std::string("20270115-080000-2222").size());
    CHECK(id > before);
    before = id;
  }
  CHECK(run_id(second).starts_with("20270115-080000-22"));
  CHECK(run_id(second + 999'999us).starts_with("20270115-080000-zz"));
}
