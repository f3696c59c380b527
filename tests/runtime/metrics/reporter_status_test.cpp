// What Reporter and the launcher write into status.json.
#include <filesystem>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/metrics/record.h"
#include "runtime/metrics/reporter_run.h"
#include "runtime/metrics/run_files.h"

using namespace mtl;
using namespace mtl::test;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_CASE("status.json has the skipped steps and the loss scale") {
  ReporterRun run;
  Reporter reporter(run.options());
  reporter.start({});
  StepReport report = step(1);
  report.skipped = 7;
  report.loss_scale = 2048;
  report.moe_aux_loss = 1.5;
  report.moe_z_loss = 0.25;
  report.moe_turns = 1.5;
  report.learned_share = 0.25;
  report.gpus = GpusReport{.power_w = 1380.5,
                           .memory_bytes = 80'000'000'000,
                           .clock_mhz = 1005,
                           .slowest_rank = 1,
                           .temperature_c = 0,
                           .slowed = {{"power limit", 2}}};
  reporter.step(report);
  reporter.finish("done", {});
  const json status = run.status();
  CHECK(status["skipped"] == 7);
  CHECK(status["loss_scale"] == 2048);
  const StepReport back = step_from_json(Json::parse(run.records()[1].dump()));
  CHECK(back.moe_aux_loss == 1.5);
  CHECK(back.moe_z_loss == 0.25);
  CHECK(back.moe_turns == 1.5);
  CHECK(back.learned_share == 0.25);
  REQUIRE(back.gpus);
  CHECK(back.gpus->power_w == 1380.5);
  CHECK(back.gpus->clock_mhz == 1005);
  // What the driver does not say is not there.
  CHECK(run.metrics().at(0)["gpus"] ==
        json::parse(R"({"power_w":1380.5,"memory_bytes":80000000000,"clock_mhz":1005,
                        "slowest_rank":1,"slowed":{"power limit":2}})"));
}

TEST_CASE("status.json changes at most once per second, and at the end") {
  ReporterRun run;
  Reporter reporter(run.options());
  reporter.start({});
  CHECK(run.status()["state"] == "running");
  CHECK(run.status()["schema"] == "mtl.status/1");
  reporter.step(step(1));
  run.pass(999);
  reporter.step(step(2));
  CHECK(run.status()["step"] == 0);
  run.pass(1);
  reporter.step(step(3));
  CHECK(run.status()["step"] == 3);
  CHECK(run.status()["loss"] == doctest::Approx(3.97));
  reporter.step(step(4));
  CHECK(run.status()["step"] == 3);
  run.pass(-3600'000);  // the clock is set back
  reporter.step(step(5));
  CHECK(run.status()["step"] == 5);
  reporter.eval(5, 2.5);
  reporter.step(step(6));
  reporter.finish("done", {});
  CHECK(run.status()["step"] == 6);
  CHECK(run.status()["state"] == "done");
  CHECK(run.status()["valid_loss"] == 2.5);
  CHECK_FALSE(fs::exists(run.dir / "status.json.tmp"));
}

TEST_CASE("a slow rank is an event, a warning and in status.json until it keeps up") {
  ReporterRun run;
  Reporter reporter(run.options());
  reporter.start({});
  StragglerReport slow = {.rank = 3,
                          .host = "m7",
                          .device = "GPU 1",
                          .phase = "reading data",
                          .factor = 1.5,
                          .job_speed = 0.75};
  reporter.straggler(20, slow,
                     {.code = "rank.straggler", .what = "rank 3 is slow", .help = "look"});
  REQUIRE(run.status().at("stragglers").size() == 1);
  CHECK(run.status()["stragglers"][0] == json{{"rank", 3},
                                              {"host", "m7"},
                                              {"device", "GPU 1"},
                                              {"phase", "reading data"},
                                              {"factor", 1.5},
                                              {"job_speed", 0.75}});
  StragglerReport other = slow;
  other.rank = 4;
  reporter.straggler(20, other, {.code = "rank.straggler", .what = "rank 4 is slow"}, false);
  CHECK(run.status().at("stragglers").size() == 2);
  other.recovered = true;
  reporter.straggler(80, other, {.code = "rank.straggler", .what = "rank 4 keeps up"}, false);
  slow.recovered = true;
  reporter.straggler(90, slow, {.code = "rank.straggler", .what = "rank 3 keeps up again"});
  CHECK_FALSE(run.status().contains("stragglers"));
  const std::vector<json> events = run.events();
  REQUIRE(events.size() == 5);
  CHECK(events[1]["event"] == "straggler");
  CHECK(events[1]["step"] == 20);
  CHECK(events[1]["rank"] == 3);
  CHECK(events[1]["reason"] == "rank 3 is slow");
  CHECK(events[2]["rank"] == 4);
  CHECK(events[4]["event"] == "straggler_recovered");
  CHECK(events[4]["rank"] == 3);
  int shown = 0;
  for (const json& record : run.records()) {
    if (record["kind"] != "warning") continue;
    ++shown;
    if (shown == 1) CHECK(record["text"] == "[rank.straggler] rank 3 is slow; look");
  }
  CHECK(shown == 2);
}

TEST_CASE("a run that starts again says nothing of the ranks before, and keeps its checkpoint") {
  ReporterRun run;
  record_start(run.dir.path());
  CHECK(run.status().at("state") == "running");
  CHECK(run.status().at("step") == 0);
  {
    ReporterOptions options = run.options();
    options.steps = 100;
    Reporter reporter(options);
    reporter.start({});
    CHECK(run.status().at("steps") == 100);
    reporter.step(step(1));
    reporter.eval(1, 3.5);
    reporter.checkpoint(1, run.dir / "checkpoints/step-00000001");
    run.pass(2000);
    reporter.step(step(2));
    StragglerReport slow;
    slow.rank = 3;
    reporter.straggler(2, slow, {.code = "rank.straggler", .what = "slow"});
  }
  record_failure(run.dir.path(), 137, "rank 3 was killed");
  CHECK(run.status().at("stragglers").size() == 1);  // it was when the run ended
  record_start(run.dir.path());
  const json again = run.status();
  CHECK(again.at("state") == "running");
  CHECK(again.at("step") == 1);
  CHECK(again.at("steps") == 100);
  CHECK(again.at("checkpoint_step") == 1);
  for (const char* key : {"stragglers", "loss", "valid_loss", "tokens_per_s", "eta_s", "reason",
                          "exit_code", "pid"}) {
    CAPTURE(key);
    CHECK_FALSE(again.contains(key));
  }
  ReporterOptions options = run.options();
  options.steps = 100;
  options.resume_step = 1;
  options.checkpoint = run.dir / "checkpoints/step-00000001";
  Reporter reporter(options);
  reporter.start({});
  CHECK(run.status().at("step") == 1);
  CHECK(run.status().at("checkpoint_step") == 1);
  CHECK(run.status().at("checkpoint") == options.checkpoint.string());
  CHECK_FALSE(run.status().contains("stragglers"));
  // A status that somebody has damaged is no obstacle.
  run.dir.file("status.json", "[1, 2");
  record_start(run.dir.path());
  CHECK(run.status().at("step") == 0);
}

TEST_CASE(
    "the launcher records a stop of ranks that are running, whatever status.json has become") {
  ReporterRun run;
  for (const char* text : {"{\"state\":5}\n", "{\"state\":null}\n", "{\"state\":[\"running\"]}\n",
                           "{\"state\":\"done\"}\n", "[]\n", "running\n", ""}) {
    CAPTURE(text);
    run.dir.file("status.json", text);
    record_stop(run.dir.path());
    CHECK(file_text(run.dir / "status.json") == text);
  }
  run.dir.file("status.json", "{\"state\":\"running\",\"step\":\"x\"}\n");
  record_stop(run.dir.path());
  CHECK(run.status()["state"] == "stopped");
  CHECK(run.status()["step"] == "x");
  CHECK(run.events().size() == 1);
}

TEST_CASE("the launcher records a failure that the worker could not") {
  ReporterRun run;
  record_failure(run.dir.path(), 1, "rank 1 died");
  CHECK(run.status()["state"] == "failed");
  fs::remove(run.dir / "events.jsonl");
  run.dir.file("status.json", "{\"schema\":\"mtl.status/1\",\"state\":\"running\",\"step\":40}\n");
  record_failure(run.dir.path(), 137, "rank 3 was killed");
  const json status = run.status();
  CHECK(status["state"] == "failed");
  CHECK(status["step"] == 40);
  CHECK(status["exit_code"] == 137);
  const auto events = run.events();
  REQUIRE(events.size() == 1);
  CHECK(events[0]["reason"] == "rank 3 was killed");
}
