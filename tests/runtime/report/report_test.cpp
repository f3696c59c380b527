// Reports of run directories: whole, damaged, empty, several.
#include "runtime/report/report.h"

#include <ctime>
#include <fstream>
#include <unistd.h>

#include <sys/stat.h>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/file_lock.h"
#include "runtime/metrics/format.h"
#include "runtime/metrics/reporter.h"
#include "runtime/report/compare.h"
#include "runtime/report/page.h"
#include "support/temp_dir.h"
#include "support/text.h"

using namespace mtl;

namespace {

namespace fs = std::filesystem;

// A run directory <name>/<id> in which a test leaves what it likes.
struct RunFolder {
  explicit RunFolder(const std::string& name, const std::string& id = "20261121-014210-k7f3")
      : dir(scratch.path() / name / id) {
    fs::create_directories(dir);
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(dir / file, std::ios::binary) << text;
  }
  std::string read(const std::string& file) const { return test::file_text(dir / file); }
  test::TempDir scratch;
  fs::path dir;
};

std::string step_line(int64_t step, double loss) {
  return nlohmann::json{{"step", step},        {"time", "2026-11-21T01:42:40Z"},
                        {"loss", loss},        {"lr", 1e-3},
                        {"grad_norm", 0.5},    {"tokens_per_s", 2000},
                        {"step_time_s", 0.5},  {"mfu", 0.25},
                        {"memory_bytes", 4096}}
             .dump() +
         "\n";
}

const char* const kSettings =
    "train:\n  steps: 100  # train.yaml\n  seed: 1234  # built-in\nlr:\n  max: 0.001  # "
    "train.yaml\n";
const char* const kPlan =
    R"({"steps":100,"batch":{"seq_len":16,"phases":[
        {"first_step":0,"first_sample":0,"global_batch":4,"micro_batches":1},
        {"first_step":10,"first_sample":40,"global_batch":8,"micro_batches":2}]},
        "stages":[{"memory_per_rank":{"total_bytes":4096,"weights":1024,"activations":3072}}]})";

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a run's record tells its story") {
  const RunFolder run("mine");
  run.write("resolved.yaml", kSettings);
  run.write("plan.json", kPlan);
  run.write("metrics.jsonl", step_line(1, 4) + step_line(10, 3) +
                                 "{\"step\":10,\"valid_loss\":3.1}\n" + step_line(20, 2) +
                                 "{\"step\":20,\"valid_loss\":3.3}\n{\"step\":30,\"lo");
  run.write("events.jsonl",
            "{\"time\":\"2026-11-21T01:42:10Z\",\"event\":\"started\",\"step\":0,\"lines\":"
            "[\"model    tiny\"]}\n"
            "{\"time\":\"2026-11-21T01:42:20Z\",\"event\":\"checkpoint\",\"step\":5}\n"
            "{\"time\":\"2026-11-21T01:42:25Z\",\"event\":\"checkpoint\",\"step\":10}\n"
            "{\"time\":\"2026-11-21T01:42:30Z\",\"event\":\"failed\",\"step\":12}\n"
            "{\"time\":\"2026-11-21T01:42:31Z\",\"event\":\"failed\",\"reason\":\"rank 1 died\"}\n"
            "nonsense\n"
            "{\"time\":\"2026-11-21T02:00:00Z\",\"event\":\"resumed\",\"step\":10}\n"
            "{\"time\":\"2026-11-21T02:00:40Z\",\"event\":\"done\",\"step\":20}\n");
  run.write("status.json",
            R"({"state":"done","step":20,"steps":100,"time":"2026-11-21T02:00:40Z"})");
  const RunRecord record = read_run(run.dir);
  CHECK(record.name == "mine");
  CHECK(record.id == "20261121-014210-k7f3");
  CHECK(record.state == "done");
  CHECK(record.step == 20);
  CHECK(record.steps == 100);
  CHECK(record.tokens == (40 + 10 * 8) * 16);
  CHECK(record.seconds == 20 + 40);
  CHECK(record.tokens_per_s == doctest::Approx(2000));
  CHECK(record.starts == 2);
  CHECK(record.failures == 1);
  CHECK(record.checkpoints == 2);
  CHECK(record.damaged_lines == 2);
  REQUIRE(record.curve("valid_loss") != nullptr);
  CHECK(record.curve("valid_loss")->lowest().step == 10);
  REQUIRE(record.events.size() == 5);
  CHECK(record.events[1].count == 2);
  CHECK(record.events[2].words == "rank 1 died");
  const auto json = report_json({record});
  CHECK(json["schema"] == "mtl.report/1");
  CHECK(json["runs"][0]["best_valid_loss"] == 3.1);
  CHECK(json["runs"][0]["valid_loss"] == 3.3);
  CHECK(json["runs"][0]["loss"] == 2);
  CHECK_FALSE(json.contains("different_settings"));
}

TEST_CASE("of a run that goes on it is said when it was last heard of") {
  const RunFolder run("on");
  run.write("metrics.jsonl", step_line(1, 4));
  run.write("events.jsonl", "{\"time\":\"2026-11-21T01:42:10Z\",\"event\":\"started\"}\n");
  run.write("status.json", R"({"state":"running","step":1,"time":"2026-11-21T01:43:00Z"})");
  const auto runs = read_runs({run.dir});
  CHECK(runs[0].seconds == 50);
  CHECK(report_page(runs, "now").find("last heard of 2026-11-21 01:43:00 UTC") !=
        std::string::npos);
}

TEST_CASE("a run that failed before its first step has a report that says why") {
  const RunFolder run("early");
  record_failure(run.dir, 6, "the corpus <x> is not there");
  CHECK(write_report_of(run.dir).empty());
  const std::string page = run.read("report.html");
  CHECK(page.find("Failed with exit code 6.") != page.npos);
  CHECK(page.find("the corpus &lt;x&gt; is not there") != page.npos);
  CHECK(page.find("No step has been logged.") != page.npos);
  CHECK(read_run(run.dir).failures == 1);
  run.write("events.jsonl",
            "{\"event\":\"failed\",\"reason\":\"no port\"}\n"
            "{\"event\":\"failed\",\"reason\":\"no port either\"}\n");
  CHECK(read_run(run.dir).failures == 2);
}

TEST_CASE("whatever lies in a run directory, its report is written") {
  const RunFolder run("damaged");
  CHECK(write_report_of(run.dir).empty());  // nothing does
  for (const char* file : {"resolved.yaml", "plan.json", "env.json", "status.json", "metrics.jsonl",
                           "events.jsonl", "generated.jsonl"}) {
    for (const char* text : {"", "\n\n", "[1]", "{\"step\":\"x\"}\n{}\n",
                             "{\"stages\":[1,{\"memory_per_rank\":2}],"
                             "\"grid\":3,\"batch\":{\"phases\":[{}]}}",
                             "\xff\xfe{", "{\"event\":1}", "a:\n b",
                             "{\"step\":1,\"loss\":\"x\",\"gpus\":[],\"mfu\":1e999}\n",
                             "{\"lines\":{},\"event\":\"started\"}"}) {
      run.write(file, text);
      CAPTURE(file);
      CAPTURE(text);
      CHECK(write_report_of(run.dir).empty());
    }
  }
}

TEST_CASE("a report asks nobody for anything, and nothing in a run becomes a part of the page") {
  const RunFolder run("<script>alert(1)</script>x");
  const std::string evil = "</td><img src=x onerror=alert(1)>'\\\"";
  run.write("resolved.yaml", "run:\n  name: " + evil + "  # train.yaml\n");
  run.write("env.json", "{\"host\":\"" + evil + "\"}");
  run.write("metrics.jsonl", step_line(1, 4) + step_line(2, 3));
  run.write("events.jsonl", "{\"time\":\"" + evil + "\",\"event\":\"" + evil + "\",\"reason\":\"" +
                                evil + "\"}\n{\"event\":\"started\",\"lines\":[\"" + evil +
                                " b\"]}\n");
  run.write("generated.jsonl", "{\"step\":1,\"prompt\":\"" + evil + "\",\"text\":\"" + evil +
                                   "\",\"ended\":\"" + evil + "\"}\n");
  run.write("status.json", "{\"state\":\"" + evil + "\",\"reason\":\"" + evil + "\"}");
  const std::string page = report_page(read_runs({run.dir, run.dir}), "now");
  CHECK(page.find("<img") == page.npos);
  CHECK(page.find("<script>alert") == page.npos);
  CHECK(count_of(page, "<script") == 1);
  CHECK(count_of(page, "http") == 1);  // http-equiv
  CHECK(page.find("default-src 'none'") != page.npos);
  const RunFolder good("good");
  good.write("metrics.jsonl", step_line(1, 4) + step_line(2, 3));
  const std::string whole = report_page(read_runs({good.dir}), "now");
  for (const char* outside : {"src=", "href=", "url(", "@import", "fetch("}) {
    CAPTURE(outside);
    CHECK(whole.find(outside) == whole.npos);
  }
}

TEST_CASE("many lines become a small page, whose curves have the spike") {
  const RunFolder run("long");
  std::string lines;
  for (int i = 1; i <= 30'000; ++i) lines += step_line(i, i == 12'345 ? 99.0 : 2 + 1.0 / i);
  run.write("metrics.jsonl", lines);
  const auto runs = read_runs({run.dir});
  CHECK(runs[0].curve("loss")->highest().step == 12'345);
  CHECK(report_page(runs, "now").size() < 400'000);
}

TEST_CASE("several runs are compared by the settings in which they differ") {
  const RunFolder a("a"), b("b");
  a.write("resolved.yaml", kSettings);
  b.write("resolved.yaml",
          "train:\n  steps: 200  # command line\n  seed: 1234  # built-in\nlr:\n  max: 0.001  # "
          "built-in\nlog:\n  every: 5  # built-in\n");
  a.write("metrics.jsonl", step_line(1, 4) + step_line(2, 3));
  b.write("metrics.jsonl", step_line(1, 4) + step_line(2, 3.5));
  const auto runs = read_runs({a.dir, b.dir});
  const auto differences = different_settings(runs);
  REQUIRE(differences.size() == 2);
  CHECK(differences[0].key == "train.steps");
  CHECK(differences[0].values == std::vector<std::string>{"100", "200"});
  CHECK(differences[1].key == "log.every");
  CHECK(differences[1].values == std::vector<std::string>{"", "5"});
  CHECK(report_json(runs)["different_settings"]["train.steps"].dump() == R"(["100","200"])");
  const std::string page = report_page(runs, "now");
  CHECK(page.find("2 runs compared") != page.npos);
  CHECK(page.find("<code>train.steps</code>") != page.npos);
  CHECK(page.find("<td class='n best'>3.0000") != page.npos);
  CHECK(run_labels(runs) == std::vector<std::string>{"a", "b"});
  CHECK(run_labels(read_runs({a.dir, a.dir}))[0] == "a/20261121-014210-k7f3");
}

TEST_CASE("a report that cannot be written is said, and no exception at the end of a run") {
  CHECK(write_report_of("/nonexistent/run").find("report.html") != std::string::npos);
  CHECK_THROWS_AS(write_report({}, "/nonexistent/report.html"), Error);
}

TEST_CASE("a report replaces a file, and neither a link nor what is no file") {
  const test::TempDir folder;
  const fs::path file = folder.path() / "page.html", link = folder.path() / "link";
  std::ofstream(file) << "old";
  fs::create_symlink("page.html", link);
  write_report({}, link);
  CHECK(fs::is_symlink(link));
  CHECK(fs::file_size(file) > 1000);
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const fs::path& other : {pipe, folder.path()}) {
    CAPTURE(other.string());
    CHECK_THROWS_AS(write_report({}, other), Error);
  }
  CHECK(fs::is_fifo(pipe));
}

TEST_CASE("a run that says it runs is lost when nobody holds its lock, or after a long silence") {
  const RunFolder run("killed");
  run.write("metrics.jsonl", step_line(1, 4));
  run.write("status.json", R"({"state":"running","step":1,"time":"2026-11-21T01:43:00Z"})");
  CHECK(read_run(run.dir).state == "running");  // without a lock nobody knows
  std::optional<Fd> lock = take_lock(run.dir / "lock");
  CHECK(read_run(run.dir).state == "running");
  lock.reset();
  const auto runs = read_runs({run.dir});
  CHECK(runs[0].state == "lost");
  CHECK(report_page(runs, "now").find("No longer running since about 2026-11-21 01:43:00 UTC") !=
        std::string::npos);
  // On another machine the lock may be one that is not seen here.
  const auto now = [&] {
    run.write("status.json",
              fmt::format(R"({{"state":"running","time":"{}"}})", utc_time(std::time(nullptr))));
    return read_run(run.dir).state;
  };
  run.write("env.json", R"({"host":"somewhere else"})");
  CHECK(now() == "running");
  char here[256] = {};
  gethostname(here, sizeof here - 1);
  run.write("env.json", fmt::format(R"({{"host":"{}"}})", here));
  CHECK(now() == "lost");
}

TEST_CASE("a report shows what a model wrote, from the first step to the newest") {
  const RunFolder run("writer");
  run.write("metrics.jsonl", step_line(1, 4) + step_line(2, 3));
  std::string lines;
  for (int step = 1; step <= 1000; ++step) {
    for (const char* prompt : {"ROMEO:", "a < b"}) {
      lines += nlohmann::json{{"step", step}, {"prompt", prompt}, {"text", std::to_string(step)}}
                   .dump() +
               "\n";
    }
  }
  run.write("generated.jsonl", lines + "{\"step\":1000,\"pro");
  const RunRecord record = read_run(run.dir);
  REQUIRE(record.generated.size() == 24);
  CHECK(record.generated.front().step == 1);
  CHECK(record.generated.back().step == 1000);
  CHECK(record.damaged_lines == 1);
  const std::string page = report_page({record}, "now");
  CHECK(count_of(page, "<h2>What it writes</h2>") == 1);
  CHECK(count_of(page, "<th class='written'>a &lt; b</tr>") == 1);
  CHECK(count_of(page, "<td class='n'>1 000<td class='written'>1000</tr>") == 2);
}
