// The table of mtl ps and mtl top: what fits, the ranks that the others wait for, and what it
// leaves out.
#include "cli/jobs/jobs_table.h"

#include <ctime>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "common/terminal.h"
#include "common/text.h"
#include "support/text.h"

using namespace mtl;
using mtl::test::has;

namespace {

JobView running() {
  JobView job{.id = "p4711", .name = "shakespeare", .where = "local", .state = "RUNNING"};
  job.nodes = 1;
  job.run_s = 3661;
  job.run = "/runs/shakespeare/20261125-190039-abcd";
  job.live = true;
  job.step = 1200;
  job.steps = 20000;
  job.loss = 2.5;
  job.tokens_per_s = 123456;
  job.eta_s = 3600;
  return job;
}

}  // namespace

TEST_CASE("a table that is too wide loses the columns that say least") {
  const std::string whole = jobs_table({running()}, 0, true, true);
  CHECK(has(whole,
            "ID     NAME         WHERE  STATE    NODES  TIME     STEP        LOSS    "
            "TOKENS/S  LEFT     RUN"));
  CHECK(has(whole, "  1:01:01  1200/20000  2.5000  123456    1:00:00  /runs/shakespeare/2026"));
  for (int columns = 40; columns < 160; ++columns) {
    CAPTURE(columns);
    for (const bool wide : {false, true}) {
      const std::vector<std::string> lines = lines_of(jobs_table({running()}, columns, true, wide));
      REQUIRE(lines.size() == 2);
      CHECK(display_width(lines[0]) <= columns);
      CHECK(display_width(lines[1]) <= columns);
      CHECK(has(lines[0], "STATE"));
      // Whole, but for a path.
      if (!has(lines[0], "  RUN")) CHECK_FALSE(has(lines[1], "…"));
      CHECK(has(lines[1], "1200/20000"));
      if (columns >= (wide ? 65 : 60)) CHECK(has(lines[0], "TIME"));
      if (wide && columns >= 60) CHECK(has(lines[1], "1:00:00"));
    }
  }
}

TEST_CASE("how often runs were started stands there where one was started again") {
  JobView again = running();
  again.starts = 3;
  const std::vector<std::string> lines = lines_of(jobs_table({again, running()}, 0, true, false));
  CHECK(has(lines[0], "LOSS    STARTS  RUN"));
  CHECK(has(lines[1], "2.5000  3       /runs"));
  CHECK(has(lines[2], "2.5000  1       /runs"));
  CHECK_FALSE(has(jobs_table({running()}, 0, true, false), "STARTS"));
  CHECK(nlohmann::json::parse(jobs_json({again}))["jobs"][0]["starts"] == 3);
}

TEST_CASE("slow ranks stand under the table, four of a run at most") {
  JobView job = running();
  CHECK(lines_of(jobs_table({job}, 80, true, false)).size() == 2);
  job.slow = {{.rank = 3,
               .host = "gpu-17",
               .device = "GPU 3",
               .phase = "forward and backward",
               .factor = 1.524,
               .job_speed = 0.67}};
  const std::string text = jobs_table({job}, 0, true, false);
  CHECK(
      text.ends_with("\n\np4711: rank 3 (gpu-17, GPU 3) is slow (1.52 x), most of it in forward "
                     "and backward; the job runs at about 0.67 of its speed\n"));
  for (const std::string& line : lines_of(jobs_table({job}, 60, true, true))) {
    CHECK(display_width(line) <= 60);
  }
  job.slow.resize(6);
  const std::string many = jobs_table({job}, 0, true, false);
  CHECK(has(many, "p4711: rank 0 is slow\n"));
  CHECK(many.ends_with("p4711: 2 more are slow (status.json)\n"));
  CHECK(lines_of(many).size() == 2 + 1 + 4 + 1);
  const auto json = nlohmann::json::parse(jobs_json({job, running()}));
  CHECK(json["jobs"][0]["stragglers"].size() == 6);
  CHECK(json["jobs"][0]["stragglers"][0]["host"] == "gpu-17");
  CHECK(json["jobs"][0]["stragglers"][1]["factor"].is_null());
  CHECK(json["jobs"][1]["stragglers"].empty());
}

TEST_CASE("mtl ps says how many jobs of other machines it leaves out, and what shows them") {
  const test::Shell shell;
  const std::map<std::string, std::string> env = {{"XDG_STATE_HOME", (shell.dir() / "s").string()}};
  const auto record = [&](const std::string& id, const std::string& state) {
    shell.write("runs/" + id + "/resolved.yaml", "");
    shell.write("runs/" + id + "/status.json", R"({"state":")" + state + R"("})");
    const nlohmann::json json = {{"schema", "mtl.job/1"},
                                 {"kind", "local"},
                                 {"id", id},
                                 {"run", (shell.dir() / "runs" / id).string()},
                                 {"pid", 1},
                                 {"started", 1},
                                 {"host", "no-host-of-this-name"},
                                 {"when", std::time(nullptr)}};
    shell.write("s/mtl/jobs/" + id + ".json", json.dump());
  };
  const std::string nothing = "nothing of yours runs (--all: what has ended)\n";
  record("p1", "done");
  CHECK(shell.mtl({"ps"}, env).err == nothing);
  record("p2", "running");
  CHECK(shell.mtl({"ps"}, env).err ==
        nothing + "1 job of other machines that may still run is hidden (mtl ps --all)\n");
  record("p3", "running");
  CHECK(shell.mtl({"ps"}, env).err ==
        nothing + "2 jobs of other machines that may still run are hidden (mtl ps --all)\n");
  const test::Outcome all = shell.mtl({"ps", "--all"}, env);
  CHECK(all.err.empty());
  CHECK(has(all.out, "p3"));
  CHECK(shell.mtl({"ps", "--json"}, env).err.empty());
}
