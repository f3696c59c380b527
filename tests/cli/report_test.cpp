// mtl report, run as a person does; what is on the page is looked at in tests/runtime/report.
#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE("report writes a page into the run's folder and prints its path") {
  const Shell shell;
  shell.write("runs/a/20260101-000000-aaaa/resolved.yaml", "lr:\n  max: 0.1  # train.yaml\n");
  shell.write("runs/a/20260101-000000-aaaa/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"st");
  shell.write("runs/b/20260101-000000-bbbb/resolved.yaml", "lr:\n  max: 0.2  # train.yaml\n");
  const Outcome one = shell.mtl({"report", "a"});
  CHECK(one.code == 0);
  CHECK(one.err.empty());
  CHECK(one.out == "runs/a/20260101-000000-aaaa/report.html\n");
  CHECK(has(file_text(shell.dir() / "runs/a/20260101-000000-aaaa/report.html"), "2.5000"));

  const Outcome both = shell.mtl({"report", "-o", "both.html", "a", "runs/b"});
  CHECK(both.code == 0);
  CHECK(both.out == "both.html\n");
  CHECK(has(file_text(shell.dir() / "both.html"), "2 runs compared"));
  const Outcome numbers = shell.mtl({"report", "--json", "a", "b"});
  CHECK(numbers.code == 0);
  const json document = json::parse(numbers.out);
  CHECK(document["schema"] == "mtl.report/1");
  CHECK(document["runs"][0]["loss"] == 2.5);
  CHECK(document["different_settings"]["lr.max"] == json::array({"0.1", "0.2"}));
  CHECK_FALSE(fs::exists(shell.dir() / "runs/b/20260101-000000-bbbb/report.html"));
}

TEST_CASE("report wants a run, and a file where there are several") {
  const Shell shell;
  CHECK(shell.mtl({"report"}).code == 2);
  const Outcome several = shell.mtl({"report", "a", "b"});
  CHECK(several.code == 2);
  CHECK(has(several.err, "-o FILE"));
  const Outcome missing = shell.mtl({"report", "nowhere"});
  CHECK(missing.code == 6);
  CHECK(has(missing.err, "error[run.missing]"));
  shell.write("runs/a/20260101-000000-aaaa/resolved.yaml", "");
  const Outcome unwritable = shell.mtl({"report", "-o", "no/such/folder.html", "a"});
  CHECK(unwritable.code == 4);
  CHECK(has(unwritable.err, "error[report.write]"));
}
