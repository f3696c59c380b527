// Files of lines that a run which was killed has left, and one that is going on appends to.
#include "runtime/metrics/run_files.h"

#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "runtime/metrics/reporter_run.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

TEST_CASE("dropping steps keeps good lines byte for byte and removes broken ones") {
  TempDir dir;
  const char* const name = "metrics.jsonl";
  const fs::path path = dir / name;
  const std::string good = "{\"step\": 5,  \"loss\":1.0 }\n{\"loss\":2,\"step\":7}\n";
  dir.file(name, good);
  drop_steps_after(path, 7);
  CHECK(file_text(path) == good);
  dir.file(name,
           "\n[1]\nnonsense\n{\"loss\":1}\n{\"step\":\"5\"}\n" + good + "{\"step\":8}\n\xff\n");
  drop_steps_after(path, 7);
  CHECK(file_text(path) == good);
  drop_steps_after(path, 0);
  CHECK(file_text(path).empty());
  drop_steps_after(dir / "missing.jsonl", 0);
  CHECK_FALSE(fs::exists(dir / "missing.jsonl"));
  // A last line without its line break is whole if it parses.
  dir.file(name, "{\"step\":1}");
  drop_steps_after(path, 7);
  CHECK(file_text(path) == "{\"step\":1}\n");
}

TEST_CASE("a torn line never swallows the next one") {
  TempDir dir;
  const fs::path path = dir.file("events.jsonl", "{\"event\":\"started\"}\n{\"event\":\"chec");
  LineFile file(path);
  CHECK(file.append("{\"event\":\"resumed\"}") == 0);
  CHECK(file.append("{\"event\":\"done\"}") == 0);
  CHECK(file_text(path) ==
        "{\"event\":\"started\"}\n{\"event\":\"chec\n{\"event\":\"resumed\"}\n{\"event\":\"done\"}"
        "\n");
}
