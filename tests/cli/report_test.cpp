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

TEST_CASE("report replaces its page, and none of a run's other files") {
  const Shell shell;
  const std::string run = "runs/a/20260101-000000-aaaa";
  const std::string metrics = "{\"step\":1,\"loss\":2.5}\n";
  shell.write(run + "/resolved.yaml", "lr:\n  max: 0.1  # train.yaml\n");
  shell.write(run + "/metrics.jsonl", metrics);
  fs::create_symlink(run + "/metrics.jsonl", shell.dir() / "link.html");
  for (const std::string& out :
       {run + "/metrics.jsonl", "runs/../" + run + "/metrics.jsonl", std::string("link.html")}) {
    CAPTURE(out);
    const Outcome outcome = shell.mtl({"report", "a", "-o", out});
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, "would replace " + out));
    CHECK(file_text(shell.dir() / run / "metrics.jsonl") == metrics);
  }
  for (int times = 0; times < 2; ++times) {
    CHECK(shell.mtl({"report", "a", "-o", run + "/report.html"}).code == 0);
    CHECK(shell.mtl({"report", "a", "-o", "page"}).code == 0);
  }
}

TEST_CASE("what is no run is told what to give in its place") {
  const Shell shell;
  shell.write("runs/shakespeare/20260101-000000-aaaa/resolved.yaml", "");
  shell.write("runs/shakespeare/20260101-000000-aaaa/checkpoints/step-00000005/COMMITTED", "");
  shell.write("runs/other/20250101-000000-aaaa/resolved.yaml", "");
  shell.write("step/manifest.json", "{}");
  const std::string run = "runs/shakespeare/20260101-000000-aaaa";
  const auto refusal = [&](const std::string& name) {
    const Outcome outcome = shell.mtl({"report", name});
    CHECK(outcome.code == 6);
    return outcome.err;
  };
  CHECK(has(refusal("runs"), "it holds runs: give one, such as runs/shakespeare (the newest)"));
  CHECK(has(refusal("shakespear"), "did you mean runs/shakespeare?"));
  CHECK(has(refusal("runs/shakespear"), "did you mean runs/shakespeare?"));
  for (const std::string end : {"", "/"}) {
    CHECK(has(refusal(run + "/checkpoints" + end), "one of the checkpoints in it, or " + run));
  }
  CHECK(has(refusal(run + "/checkpoints/step-00000001"), "mtl ckpt ls " + run));
  CHECK(has(refusal("nowhere"), "mtl ps --all"));
  CHECK(has(refusal("step"), "'step' is a checkpoint, and a report is of a run"));
  const Outcome turned = shell.mtl({"generate", "ROMEO:", "runs/shakespeare"});
  CHECK(turned.code == 2);
  CHECK(has(turned.err, "RUN stands before PROMPT"));
  CHECK(has(shell.mtl({"generate", "runs/shakespeare", "-x"}).err,
            "a PROMPT that begins with a dash stands behind --"));
  CHECK(has(shell.mtl({"ckpt", "import", run, "-o", "new"}).err, "is mtl's own already"));
}

TEST_CASE("an imported model at runs/NAME does not hide the runs that have trained it on") {
  const Shell shell;
  shell.write("runs/llama/checkpoints/step-00000000/COMMITTED", "");
  CHECK(shell.mtl({"report", "runs/llama"}).out == "runs/llama/report.html\n");
  shell.write("runs/llama/20260101-000000-aaaa/resolved.yaml", "");
  const std::string trained = "runs/llama/20260101-000000-aaaa/report.html\n";
  CHECK(shell.mtl({"report", "runs/llama"}).out == trained);
  CHECK(shell.mtl({"report", "llama"}).out == trained);
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
