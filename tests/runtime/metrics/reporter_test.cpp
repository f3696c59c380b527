// Reporter: metrics.jsonl, events.jsonl, status.json and the progress pipe.
#include "runtime/metrics/reporter.h"

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "runtime/metrics/format.h"
#include "runtime/metrics/record.h"
#include "runtime/metrics/run_files.h"
#include "support/temp_dir.h"

using namespace mtl;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<json> lines_of(const fs::path& path) {
  std::vector<json> lines;
  std::istringstream in(text_of(path));
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

// A progress pipe whose reading end the test holds.
struct Pipe {
  Pipe() { REQUIRE(pipe2(fd, O_CLOEXEC | O_NONBLOCK) == 0); }
  ~Pipe() {
    for (int end : fd) {
      if (end >= 0) close(end);
    }
  }
  std::vector<json> records() {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(fd[0], buffer, sizeof buffer)) > 0;) text.append(buffer, n);
    std::vector<json> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
    return all;
  }
  int fd[2] = {-1, -1};
};

struct WallClock {
  std::chrono::system_clock::time_point time{std::chrono::seconds(1795225330)};
  void advance(int ms) { time += std::chrono::milliseconds(ms); }
};

ReporterOptions options_for(const fs::path& dir, const Pipe& pipe, const WallClock& clock) {
  ReporterOptions options;
  options.run_dir = dir;
  options.progress_fd = pipe.fd[1];
  options.now = [&clock] { return clock.time; };
  return options;
}

StepReport step(int64_t number, int64_t steps = 100) {
  StepReport report;
  report.step = number;
  report.steps = steps;
  report.loss = 4.0 - static_cast<double>(number) / 100;
  report.lr = 1e-3;
  report.grad_norm = 0.5;
  report.tokens_per_s = 1000;
  report.step_time_s = 0.25;
  report.mfu = 0.3;
  report.mfu_of = 2e12;
  report.mfu_of_peak = true;
  report.memory_bytes = 1 << 20;
  report.eta_s = 12;
  return report;
}

}  // namespace

TEST_CASE("metrics.jsonl has the first step, those of log_every, and the last") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  ReporterOptions options = options_for(dir.path(), pipe, clock);
  options.log_every = 10;
  Reporter reporter(options);
  reporter.start({"hello"});
  for (int i = 1; i <= 25; ++i) reporter.step(step(i, 25));
  reporter.finish("done", {});

  std::vector<int64_t> steps;
  for (const json& line : lines_of(dir.path() / "metrics.jsonl")) steps.push_back(line["step"]);
  CHECK(steps == std::vector<int64_t>{1, 10, 20, 25});
  const json first = lines_of(dir.path() / "metrics.jsonl")[0];
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
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  reporter.start({});
  for (int i = 1; i <= 4; ++i) {
    StepReport report = step(i);
    report.step_skipped = i == 3;
    report.skipped = i >= 3 ? 1 : 0;
    report.loss_scale = 512;
    if (report.step_skipped) report.grad_norm = std::numeric_limits<double>::infinity();
    reporter.step(report);
  }
  clock.advance(2000);
  reporter.step(step(5));
  reporter.finish("done", {});
  const auto lines = lines_of(dir.path() / "metrics.jsonl");
  REQUIRE(lines.size() == 3);  // the first, the skipped one, the last
  CHECK_FALSE(lines[0].contains("skipped"));
  CHECK(lines[0]["loss_scale"] == 512);
  CHECK(lines[1]["step"] == 3);
  CHECK(lines[1]["skipped"] == 1);
  CHECK(lines[1]["grad_norm"].is_null());
  CHECK_FALSE(lines[2].contains("loss_scale"));
  const auto records = pipe.records();
  CHECK(records[2]["kind"] == "step");
  CHECK(records[3]["kind"] == "skip");
  CHECK(records[3]["logged"] == true);
}

TEST_CASE("status.json has the skipped steps and the loss scale") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  reporter.start({});
  StepReport report = step(1);
  report.skipped = 7;
  report.loss_scale = 2048;
  report.moe_aux_loss = 1.5;
  report.moe_z_loss = 0.25;
  report.moe_turns = 1.5;
  report.gpus = GpusReport{.power_w = 1380.5,
                           .memory_bytes = 80'000'000'000,
                           .clock_mhz = 1005,
                           .slowest_rank = 1,
                           .temperature_c = 0,
                           .slowed = {{"power limit", 2}}};
  reporter.step(report);
  reporter.finish("done", {});
  const json status = json::parse(text_of(dir.path() / "status.json"));
  CHECK(status["skipped"] == 7);
  CHECK(status["loss_scale"] == 2048);
  const StepReport back = step_from_json(Json::parse(pipe.records()[1].dump()));
  CHECK(back.moe_aux_loss == 1.5);
  CHECK(back.moe_z_loss == 0.25);
  CHECK(back.moe_turns == 1.5);
  REQUIRE(back.gpus);
  CHECK(back.gpus->power_w == 1380.5);
  CHECK(back.gpus->clock_mhz == 1005);
  // What the driver does not say is not there.
  CHECK(lines_of(dir.path() / "metrics.jsonl").at(0)["gpus"] ==
        json::parse(R"({"power_w":1380.5,"memory_bytes":80000000000,"clock_mhz":1005,
                        "slowest_rank":1,"slowed":{"power limit":2}})"));
}

TEST_CASE("a slow rank is an event, a warning and in status.json until it keeps up") {
  const test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  reporter.start({});
  StragglerReport slow = {.rank = 3,
                          .host = "m7",
                          .device = "GPU 1",
                          .phase = "reading data",
                          .factor = 1.5,
                          .job_speed = 0.75};
  reporter.straggler(20, slow,
                     {.code = "rank.straggler", .what = "rank 3 is slow", .help = "look"});
  const auto status = [&] { return json::parse(text_of(dir.path() / "status.json")); };
  REQUIRE(status().at("stragglers").size() == 1);
  CHECK(status()["stragglers"][0] == json{{"rank", 3},
                                          {"host", "m7"},
                                          {"device", "GPU 1"},
                                          {"phase", "reading data"},
                                          {"factor", 1.5},
                                          {"job_speed", 0.75}});
  StragglerReport other = slow;
  other.rank = 4;
  reporter.straggler(20, other, {.code = "rank.straggler", .what = "rank 4 is slow"}, false);
  CHECK(status().at("stragglers").size() == 2);
  other.recovered = true;
  reporter.straggler(80, other, {.code = "rank.straggler", .what = "rank 4 keeps up"}, false);
  slow.recovered = true;
  reporter.straggler(90, slow, {.code = "rank.straggler", .what = "rank 3 keeps up again"});
  CHECK_FALSE(status().contains("stragglers"));
  const std::vector<json> events = lines_of(dir.path() / "events.jsonl");
  REQUIRE(events.size() == 5);
  CHECK(events[1]["event"] == "straggler");
  CHECK(events[1]["step"] == 20);
  CHECK(events[1]["rank"] == 3);
  CHECK(events[1]["reason"] == "rank 3 is slow");
  CHECK(events[2]["rank"] == 4);
  CHECK(events[4]["event"] == "straggler_recovered");
  CHECK(events[4]["rank"] == 3);
  int shown = 0;
  for (const json& record : pipe.records()) {
    if (record["kind"] != "warning") continue;
    ++shown;
    if (shown == 1) CHECK(record["text"] == "[rank.straggler] rank 3 is slow; look");
  }
  CHECK(shown == 2);
}

TEST_CASE("a run that starts again says nothing of the ranks before, and keeps its checkpoint") {
  const test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  const auto status = [&] { return json::parse(text_of(dir.path() / "status.json")); };
  record_start(dir.path());
  CHECK(status().at("state") == "running");
  CHECK(status().at("step") == 0);
  {
    ReporterOptions options = options_for(dir.path(), pipe, clock);
    options.steps = 100;
    Reporter reporter(options);
    reporter.start({});
    CHECK(status().at("steps") == 100);
    reporter.step(step(1));
    reporter.eval(1, 3.5);
    reporter.checkpoint(1, dir.path() / "checkpoints/step-00000001");
    clock.advance(2000);
    reporter.step(step(2));
    StragglerReport slow;
    slow.rank = 3;
    reporter.straggler(2, slow, {.code = "rank.straggler", .what = "slow"});
  }
  record_failure(dir.path(), 137, "rank 3 was killed");
  CHECK(status().at("stragglers").size() == 1);  // it was when the run ended
  record_start(dir.path());
  const json again = status();
  CHECK(again.at("state") == "running");
  CHECK(again.at("step") == 1);
  CHECK(again.at("steps") == 100);
  CHECK(again.at("checkpoint_step") == 1);
  for (const char* key : {"stragglers", "loss", "valid_loss", "tokens_per_s", "eta_s", "reason",
                          "exit_code", "pid"}) {
    CAPTURE(key);
    CHECK_FALSE(again.contains(key));
  }
  ReporterOptions options = options_for(dir.path(), pipe, clock);
  options.steps = 100;
  options.resume_step = 1;
  options.checkpoint = dir.path() / "checkpoints/step-00000001";
  Reporter reporter(options);
  reporter.start({});
  CHECK(status().at("step") == 1);
  CHECK(status().at("checkpoint_step") == 1);
  CHECK(status().at("checkpoint") == options.checkpoint.string());
  CHECK_FALSE(status().contains("stragglers"));
  // A status that somebody has damaged is no obstacle.
  std::ofstream(dir.path() / "status.json") << "[1, 2";
  record_start(dir.path());
  CHECK(status().at("step") == 0);
}

TEST_CASE("the last step of an interrupted run is logged too") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  reporter.start({});
  for (int i = 1; i <= 13; ++i) reporter.step(step(i));
  reporter.finish("stopped", {});
  const auto lines = lines_of(dir.path() / "metrics.jsonl");
  CHECK(lines.size() == 3);
  CHECK(lines.back()["step"] == 13);
}

TEST_CASE("every step goes down the pipe, and says whether it is a logged one") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  reporter.start({"line one", "line two"});
  for (int i = 1; i <= 11; ++i) reporter.step(step(i));
  reporter.eval(11, 3.5);
  reporter.checkpoint(11, "runs/x/checkpoints/step-11");
  reporter.finish("done", {"bye"});
  const auto records = pipe.records();
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
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  ReporterOptions options = options_for(dir.path(), pipe, clock);
  options.log_every = 1'000'000;
  Reporter reporter(options);
  reporter.start({});
  for (int i = 1; i <= 5000; ++i) reporter.step(step(i, 10'000));
  const auto records = pipe.records();
  CHECK(records.size() > 100);
  CHECK(records.size() < 5000);
  reporter.step(step(5001, 10'000));
  CHECK(pipe.records().back()["step"] == 5001);
}

TEST_CASE("a reader that is gone is no error") {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  close(pipe.fd[0]);
  pipe.fd[0] = -1;
  reporter.start({});
  reporter.step(step(1));
  reporter.finish("done", {});
  CHECK(lines_of(dir.path() / "metrics.jsonl").size() == 1);
  std::signal(SIGPIPE, before);
}

TEST_CASE("numbers that are not finite are null in metrics.jsonl, which stays JSON") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  StepReport report = step(1);
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.grad_norm = std::numeric_limits<double>::infinity();
  reporter.step(report);
  const auto lines = lines_of(dir.path() / "metrics.jsonl");
  CHECK(lines[0]["loss"].is_null());
  CHECK(lines[0]["grad_norm"].is_null());
}

TEST_CASE("resuming drops the lines of later steps") {
  test::TempDir dir;
  const fs::path path = dir.path() / "metrics.jsonl";
  write(path,
        "{\"step\":1,\"loss\":4}\n{\"step\":20,\"loss\":3}\n{\"step\":20,\"valid_loss\":3.1}\n"
        "{\"step\":30,\"loss\":2}\n{\"step\":30,\"valid_loss\":2.1}\n{\"step\":3");
  Pipe pipe;
  WallClock clock;
  ReporterOptions options = options_for(dir.path(), pipe, clock);
  options.resume_step = 20;
  {
    Reporter reporter(options);
    reporter.start({});
    reporter.step(step(21));
    reporter.finish("stopped", {});
  }
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 4);
  CHECK(lines[1]["loss"] == 3);
  CHECK(lines[2]["valid_loss"] == 3.1);
  CHECK(lines[3]["step"] == 21);
  CHECK(lines_of(dir.path() / "events.jsonl")[0]["event"] == "resumed");
  CHECK(lines_of(dir.path() / "events.jsonl")[0]["step"] == 20);
  CHECK_FALSE(fs::exists(dir.path() / "metrics.jsonl.tmp"));
}

TEST_CASE("dropping steps keeps good lines byte for byte and removes broken ones") {
  test::TempDir dir;
  const fs::path path = dir.path() / "metrics.jsonl";
  const std::string good = "{\"step\": 5,  \"loss\":1.0 }\n{\"loss\":2,\"step\":7}\n";
  write(path, good);
  drop_steps_after(path, 7);
  CHECK(text_of(path) == good);
  write(path, "\n[1]\nnonsense\n{\"loss\":1}\n{\"step\":\"5\"}\n" + good + "{\"step\":8}\n\xff\n");
  drop_steps_after(path, 7);
  CHECK(text_of(path) == good);
  drop_steps_after(path, 0);
  CHECK(text_of(path).empty());
  drop_steps_after(dir.path() / "missing.jsonl", 0);
  CHECK_FALSE(fs::exists(dir.path() / "missing.jsonl"));
  // A last line without its line break is whole if it parses.
  write(path, "{\"step\":1}");
  drop_steps_after(path, 7);
  CHECK(text_of(path) == "{\"step\":1}\n");
}

TEST_CASE("a torn line never swallows the next one") {
  test::TempDir dir;
  const fs::path path = dir.path() / "events.jsonl";
  write(path, "{\"event\":\"started\"}\n{\"event\":\"chec");
  LineFile file(path);
  CHECK(file.append("{\"event\":\"resumed\"}") == 0);
  CHECK(file.append("{\"event\":\"done\"}") == 0);
  CHECK(text_of(path) ==
        "{\"event\":\"started\"}\n{\"event\":\"chec\n{\"event\":\"resumed\"}\n{\"event\":\"done\"}"
        "\n");
}

TEST_CASE("events tell the story of the run") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  reporter.start({});
  reporter.step(step(1));
  reporter.checkpoint(1, "checkpoints/step-00000001");
  reporter.finish("done", {});
  const auto events = lines_of(dir.path() / "events.jsonl");
  REQUIRE(events.size() == 3);
  CHECK(events[0]["event"] == "started");
  CHECK(events[1]["event"] == "checkpoint");
  CHECK(events[1]["step"] == 1);
  CHECK(events[1]["path"] == "checkpoints/step-00000001");
  CHECK(events[2]["event"] == "done");
  for (const json& event : events) CHECK(event["time"] == "2026-11-21T01:42:10Z");
}

TEST_CASE("a run that ends by an exception is recorded as failed") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  {
    Reporter reporter(options_for(dir.path(), pipe, clock));
    reporter.start({});
    reporter.step(step(3));
  }
  CHECK(lines_of(dir.path() / "events.jsonl").back()["event"] == "failed");
  CHECK(json::parse(text_of(dir.path() / "status.json"))["state"] == "failed");
  CHECK(pipe.records().back()["state"] == "failed");
}

TEST_CASE("status.json changes at most once per second, and at the end") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  Reporter reporter(options_for(dir.path(), pipe, clock));
  const auto status = [&] { return json::parse(text_of(dir.path() / "status.json")); };
  reporter.start({});
  CHECK(status()["state"] == "running");
  CHECK(status()["schema"] == "mtl.status/1");
  reporter.step(step(1));
  clock.advance(999);
  reporter.step(step(2));
  CHECK(status()["step"] == 0);
  clock.advance(1);
  reporter.step(step(3));
  CHECK(status()["step"] == 3);
  CHECK(status()["loss"] == doctest::Approx(3.97));
  reporter.step(step(4));
  CHECK(status()["step"] == 3);
  clock.advance(-3600'000);  // the clock is set back
  reporter.step(step(5));
  CHECK(status()["step"] == 5);
  reporter.eval(5, 2.5);
  reporter.step(step(6));
  reporter.finish("done", {});
  CHECK(status()["step"] == 6);
  CHECK(status()["state"] == "done");
  CHECK(status()["valid_loss"] == 2.5);
  CHECK_FALSE(fs::exists(dir.path() / "status.json.tmp"));
}

TEST_CASE("a full disk is said once and does not end the run") {
  test::TempDir dir;
  fs::create_symlink("/dev/full", dir.path() / "metrics.jsonl");
  Pipe pipe;
  WallClock clock;
  ReporterOptions options = options_for(dir.path(), pipe, clock);
  options.log_every = 1;
  Reporter reporter(options);
  reporter.start({});
  for (int i = 1; i <= 3; ++i) reporter.step(step(i));
  reporter.finish("done", {});
  int warnings = 0;
  for (const json& record : pipe.records()) {
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

TEST_CASE("the launcher records a failure that the worker could not") {
  test::TempDir dir;
  Pipe pipe;
  record_failure(dir.path(), 1, "rank 1 died");
  CHECK(json::parse(text_of(dir.path() / "status.json"))["state"] == "failed");
  fs::remove(dir.path() / "events.jsonl");
  write(dir.path() / "status.json",
        "{\"schema\":\"mtl.status/1\",\"state\":\"running\",\"step\":40}\n");
  record_failure(dir.path(), 137, "rank 3 was killed");
  const json status = json::parse(text_of(dir.path() / "status.json"));
  CHECK(status["state"] == "failed");
  CHECK(status["step"] == 40);
  CHECK(status["exit_code"] == 137);
  const auto events = lines_of(dir.path() / "events.jsonl");
  REQUIRE(events.size() == 1);
  CHECK(events[0]["reason"] == "rank 3 was killed");
}

TEST_CASE("generated.jsonl has what a model writes, and goes back with the run") {
  test::TempDir dir;
  Pipe pipe;
  WallClock clock;
  const auto report = [&](int64_t resume_step, bool generates) {
    ReporterOptions options = options_for(dir.path(), pipe, clock);
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
  const auto lines = lines_of(dir.path() / "generated.jsonl");
  REQUIRE(lines.size() == 6);
  CHECK(lines[0].dump() == R"({"prompt":"a","seconds":0.5,"step":10,"text":"b\n","time":)"
                           R"("2026-11-21T01:42:10Z","tokens":2})");
  CHECK(lines[3]["text"] == "\xef\xbf\xbd");
  CHECK(lines[3]["ended"] == "end of document");
  CHECK(lines[4]["step"] == 30);
  int shown = 0;
  for (const json& record : pipe.records()) shown += record["kind"] == "generated" ? 1 : 0;
  CHECK(shown == 8);
  report(10, false);  // without prompts what is there goes back too
  CHECK(lines_of(dir.path() / "generated.jsonl").size() == 2);
}
