// Reporter: what goes down the progress pipe, events.jsonl, and what goes wrong.
#include <csignal>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "runtime/metrics/reporter_run.h"

using namespace mtl;
using namespace mtl::test;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_CASE("every step goes down the pipe, and says whether it is a logged one") {
  ReporterRun run;
  Reporter reporter(run.options());
  reporter.start({"line one", "line two"});
  for (int i = 1; i <= 11; ++i) reporter.step(step(i));
  reporter.eval(11, 3.5);
  reporter.checkpoint(11, "runs/x/checkpoints/step-11");
  reporter.finish("done", {"bye"});
  const auto records = run.records();
  REQUIRE(records.size() == 15);
  CHECK(records[0]["kind"] == "start");
  CHECK(records[0]["lines"] == json::array({"line one", "line two"}));
  CHECK(records[1]["logged"] == true);
  CHECK(records[2]["logged"] == false);
  CHECK(records[10]["logged"] == true);
  CHECK(records[10]["eta_s"] == 12.0);
  CHECK(records[12]["kind"] == "eval");
  CHECK(records[12]["valid_loss"] == 3.5);
  CHECK(records[13]["kind"] == "checkpoint");
  CHECK(records[14]["state"] == "done");
}

TEST_CASE("a full pipe drops steps that only redraw, and never stops the run") {
  ReporterRun run;
  ReporterOptions options = run.options();
  options.log_every = 1'000'000;
  Reporter reporter(options);
  reporter.start({});
  for (int i = 1; i <= 5000; ++i) reporter.step(step(i, 10'000));
  const auto records = run.records();
  CHECK(records.size() > 100);
  CHECK(records.size() < 5000);
  reporter.step(step(5001, 10'000));
  CHECK(run.records().back()["step"] == 5001);
}

TEST_CASE("a reader that is gone is no error") {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  ReporterRun run;
  Reporter reporter(run.options());
  run.close_reader();
  reporter.start({});
  reporter.step(step(1));
  reporter.finish("done", {});
  CHECK(run.metrics().size() == 1);
  std::signal(SIGPIPE, before);
}

TEST_CASE("events tell the story of the run") {
  ReporterRun run;
  Reporter reporter(run.options());
  reporter.start({});
  reporter.step(step(1));
  reporter.checkpoint(1, "checkpoints/step-00000001");
  reporter.finish("done", {});
  const auto events = run.events();
  REQUIRE(events.size() == 3);
  CHECK(events[0]["event"] == "started");
  CHECK(events[1]["event"] == "checkpoint");
  CHECK(events[1]["step"] == 1);
  CHECK(events[1]["path"] == "checkpoints/step-00000001");
  CHECK(events[2]["event"] == "done");
  for (const json& event : events) CHECK(event["time"] == "2026-11-21T01:42:10Z");
}

TEST_CASE("a run that ends by an exception is recorded as failed") {
  ReporterRun run;
  {
    Reporter reporter(run.options());
    reporter.start({});
    reporter.step(step(3));
  }
  CHECK(run.events().back()["event"] == "failed");
  CHECK(run.status()["state"] == "failed");
  CHECK(run.records().back()["state"] == "failed");
}

TEST_CASE("a full disk is said once and does not end the run") {
  ReporterRun run;
  fs::create_symlink("/dev/full", run.dir / "metrics.jsonl");
  ReporterOptions options = run.options();
  options.log_every = 1;
  Reporter reporter(options);
  reporter.start({});
  for (int i = 1; i <= 3; ++i) reporter.step(step(i));
  reporter.finish("done", {});
  int warnings = 0;
  for (const json& record : run.records()) {
    if (record["kind"] != "warning") continue;
    ++warnings;
    CHECK(record["text"].get<std::string>().find("metrics.jsonl") != std::string::npos);
  }
  CHECK(warnings == 1);
}

TEST_CASE("a run directory that is not there is an error") {
  ReporterOptions options;
  options.run_dir = "/nonexistent/run";
  CHECK_THROWS_AS(Reporter{options}, Error);
}
