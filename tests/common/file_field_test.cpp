#include "common/file_field.h"

#include <doctest/doctest.h>

#include "support/temp_dir.h"

using namespace mtl;

TEST_CASE("a field of a file is what stands behind its key, without what stands around it") {
  const test::TempDir dir;
  const std::string proc = dir.file("proc",
                                    "processor\t: 0\n"
                                    "model name\t: A CPU: the 2nd \t\n"
                                    "model name\t: another\n"
                                    "flags\t\t:\n"
                                    "model\n"
                                    "0::/user.slice\n");
  CHECK(file_field(proc, "model name", ':') == "A CPU: the 2nd");
  CHECK(file_field(proc, "processor", ':') == "0");
  CHECK(file_field(proc, "flags", ':').empty());
  CHECK(file_field(proc, "model", ':') == "A CPU: the 2nd");
  CHECK(file_field(proc, "0::", ':') == ":/user.slice");
  CHECK(file_field(proc, "no such", ':').empty());
  const std::string os = dir.file("os", "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12\"");
  CHECK(file_field(os, "PRETTY_NAME", '=') == "Debian GNU/Linux 12");
  CHECK(file_field(dir / "gone", "NAME", '=').empty());
}
