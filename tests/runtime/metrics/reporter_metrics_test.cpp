// What Reporter writes into metrics.jsonl and generated.jsonl, and what it takes back.
#include <filesystem>
#include <limits>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/metrics/reporter_run.h"

using namespace mtl;
using namespace mtl::test;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_CASE("metrics.jsonl has the first step, those of log_every, and the last") {
  ReporterRun run;
  ReporterOptions options = run.options();
  options.log_every = 10;
  Reporter reporter(options);
  reporter.start({"hello"});
  for (int i = 1; i <= 25; ++i) reporter.step(step(i, 25));
  reporter.finish("done", {});

  std::vector<int64_t> steps;
  for (const json& line : run.metrics()) steps.push_back(line["step"]);
  CHECK(steps == std::vector<int64_t>{1, 10, 20, 25});
  const json first = run.metrics()[0];
  for (const char* key :
       {"loss", "lr", "grad_norm", "tokens_per_s", "step_time_s", "mfu", "memory_bytes"}) {
    CAPTURE(key);
    CHECK(first[key].is_number());
  }
  CHECK(first["loss"] == doctest::Approx(3.99));
  CHECK(first["time"] == "2026-11-21T01:42:10Z");
  CHECK(first["mfu_of"] == "peak");
  CHECK(first["mfu_of_flops"] == 2e12);
  CHECK(first.size() == 11);
}

TEST_CASE("skipped steps are logged with their count, and the loss scale where there is one") {
  ReporterRun run;
  Reporter reporter(run.options());
  reporter.start({});
  for (int i = 1; i <= 4; ++i) {
    StepReport report = step(i);
    report.step_skipped = i == 3;
    report.skipped = i >= 3 ? 1 : 0;
    report.loss_scale = 512;
    if (report.step_skipped) report.grad_norm = std::numeric_limits<double>::infinity();
    reporter.step(report);
  }
  run.pass(2000);
  reporter.step(step(5));
  reporter.finish("done", {});
  const auto lines = run.metrics();
  REQUIRE(lines.size() == 3);  // the first, the skipped one, the last
  CHECK_FALSE(lines[0].contains("skipped"));
  CHECK(lines[0]["loss_scale"] == 512);
  CHECK(lines[1]["step"] == 3);
  CHECK(lines[1]["skipped"] == 1);
  CHECK(lines[1]["grad_norm"].is_null());
  CHECK_FALSE(lines[2].contains("loss_scale"));
  const auto records = run.records();
  CHECK(records[2]["kind"] == "step");
  CHECK(records[3]["kind"] == "skip");
  CHECK(records[3]["logged"] == true);
}

TEST_CASE("the last step of an interrupted run is logged too") {
  ReporterRun run;
  Reporter reporter(run.options());
  reporter.start({});
  for (int i = 1; i <= 13; ++i) reporter.step(step(i));
  reporter.finish("stopped", {});
  const auto lines = run.metrics();
  CHECK(lines.size() == 3);
  CHECK(lines.back()["step"] == 13);
}

TEST_CASE("numbers that are not finite are null in metrics.jsonl, which stays JSON") {
  ReporterRun run;
  Reporter reporter(run.options());
  StepReport report = step(1);
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.grad_norm = std::numeric_limits<double>::infinity();
  reporter.step(report);
  const auto lines = run.metrics();
  CHECK(lines[0]["loss"].is_null());
  CHECK(lines[0]["grad_norm"].is_null());
}

TEST_CASE("resuming drops the lines of later steps") {
  ReporterRun run;
  run.dir.file(
      "metrics.jsonl",
      "{\"step\":1,\"loss\":4}\n{\"step\":20,\"loss\":3}\n{\"step\":20,\"valid_loss\":3.1}\n"
      "{\"step\":30,\"loss\":2}\n{\"step\":30,\"valid_loss\":2.1}\n{\"step\":3");
  ReporterOptions options = run.options();
  options.resume_step = 20;
  {
    Reporter reporter(options);
    reporter.start({});
    reporter.step(step(21));
    reporter.finish("stopped", {});
  }
  const auto lines = run.metrics();
  REQUIRE(lines.size() == 4);
  CHECK(lines[1]["loss"] == 3);
  CHECK(lines[2]["valid_loss"] == 3.1);
  CHECK(lines[3]["step"] == 21);
  CHECK(run.events()[0]["event"] == "resumed");
  CHECK(run.events()[0]["step"] == 20);
  CHECK_FALSE(fs::exists(run.dir / "metrics.jsonl.tmp"));
}

TEST_CASE("generated.jsonl has what a model writes, and goes back with the run") {
  ReporterRun run;
  const auto report = [&](int64_t resume_step, bool generates) {
    ReporterOptions options = run.options();
    options.resume_step = resume_step;
    options.generates = generates;
    Reporter reporter(options);
    reporter.start({});
    for (int64_t at = resume_step + 10; generates && at <= 30; at += 10) {
      reporter.generated(
          {.step = at,
           .seconds = 0.5,
           .texts = {{.prompt = "a", .text = "b\n", .tokens = 2, .ended = ""},
                     {.prompt = "c", .text = "\xff", .tokens = 1, .ended = "end of document"}}});
    }
    reporter.finish("stopped", {});
  };
  report(0, true);
  report(20, true);
  const auto lines = json_lines(file_text(run.dir / "generated.jsonl"));
  REQUIRE(lines.size() == 6);
  CHECK(lines[0].dump() == R"({"prompt":"a","seconds":0.5,"step":10,"text":"b\n","time":)"
                           R"("2026-11-21T01:42:10Z","tokens":2})");
  CHECK(lines[3]["text"] == "\xef\xbf\xbd");
  CHECK(lines[3]["ended"] == "end of document");
  CHECK(lines[4]["step"] == 30);
  int shown = 0;
  for (const json& record : run.records()) shown += record["kind"] == "generated" ? 1 : 0;
  CHECK(shown == 8);
  report(10, false);  // without prompts what is there goes back too
  CHECK(json_lines(file_text(run.dir / "generated.jsonl")).size() == 2);
}
