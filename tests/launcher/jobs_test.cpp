// What mtl ps shows: the registry of this user, SLURM's queue and the runs' own reports, joined.
#include "launcher/job/jobs.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <unistd.h>

#include <doctest/doctest.h>

#include "support/temp_dir.h"
#include "support/variable.h"

using namespace mtl;
namespace fs = std::filesystem;

namespace {

// A registry of the test's own.
class StateHome {
 public:
  const fs::path& path() const { return dir_.path(); }

 private:
  mtl::test::TempDir dir_;
  mtl::test::Variable variable_{"XDG_STATE_HOME", dir_.path().string()};
};

void write_file(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

JobRecord slurm_record(const std::string& id, const std::string& run, pid_t pid = 0) {
  JobRecord record;
  record.kind = "slurm";
  record.id = id;
  record.name = "train";
  record.run = run;
  record.pid = pid;
  record.log = pid > 0 ? "" : "/log";
  record.when = std::time(nullptr);
  return record;
}

SlurmJobState queued(const std::string& id, const std::string& state) {
  SlurmJobState job;
  job.id = id;
  job.raw_id = id.substr(0, id.find('_'));
  job.name = "train";
  job.state = state;
  return job;
}

}  // namespace

TEST_CASE("jobs are recorded and found again") {
  const StateHome home;
  JobRecord record = record_of_this_process("local", "a \"name\" \xff");
  record.run = "/runs/x";
  record.nodes = 3;
  record_job(record);
  record_job(slurm_record("12", "/runs/y"));
  record_job(slurm_record("12", "/runs/y/1", getpid()));
  write_file(job_registry() / "bad.json", "{");
  write_file(job_registry() / "other.json", "[1]");
  fs::create_directories(job_registry() / "folder.json");
  std::vector<JobRecord> found = recorded_jobs();
  CHECK(found.size() == 3);
  const auto own = std::find_if(found.begin(), found.end(),
                                [](const JobRecord& one) { return one.kind == "local"; });
  REQUIRE(own != found.end());
  CHECK(own->id == "p" + std::to_string(getpid()));
  CHECK(own->nodes == 3);
  CHECK(is_alive(*own));
  JobRecord other = *own;
  other.started += 1;  // another process had this number
  CHECK_FALSE(is_alive(other));
  other = *own;
  other.host = "elsewhere";
  CHECK_FALSE(is_alive(other));
  // What is old goes, what lives stays.
  JobRecord old = slurm_record("3", "/runs/z");
  old.when -= 100 * 86'400;
  record_job(old);
  record.when -= 100 * 86'400;
  record_job(record);
  found = recorded_jobs();
  CHECK(
      std::none_of(found.begin(), found.end(), [](const JobRecord& one) { return one.id == "3"; }));
  CHECK(found.size() == 3);
}

TEST_CASE("a run whose directory was deleted is forgotten and another host's is not") {
  const StateHome home;
  JobRecord record = record_of_this_process("local", "tiny");
  record.started += 1;  // it is over
  record.run = (home.path() / "runs").string();
  record_job(record);
  JobRecord there = record;
  there.host = "elsewhere";
  record_job(there);
  fs::create_directories(record.run);
  CHECK(recorded_jobs().size() == 2);
  fs::remove(record.run);
  const std::vector<JobRecord> left = recorded_jobs();
  REQUIRE(left.size() == 1);
  CHECK(left[0].host == "elsewhere");
}

TEST_CASE("a home that cannot be written keeps nothing from starting") {
  const StateHome home;
  write_file(home.path() / "mtl", "a file where the folder should be");
  record_job(slurm_record("1", ""));
  CHECK(recorded_jobs().empty());
}

TEST_CASE("local runs are shown with their progress and without SLURM") {
  const StateHome home;
  const fs::path run = home.path() / "runs" / "tiny" / "1";
  write_file(run / "resolved.yaml", "");
  write_file(run / "status.json",
             R"({"state":"running","step":7,"steps":10,"loss":2.5,"tokens_per_s":100,"eta_s":3})");
  JobRecord record = record_of_this_process("local", "tiny");
  record.run = run.string();
  std::vector<JobView> jobs = join_jobs({record}, std::nullopt, false);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].state == "RUNNING");
  CHECK(jobs[0].pid == getpid());
  CHECK(jobs[0].step == 7);
  CHECK(jobs[0].steps == 10);
  CHECK(jobs[0].loss == 2.5);
  CHECK(jobs[0].eta_s == 3);
  // Its process is gone, without and with a word.
  record.started += 1;
  CHECK(join_jobs({record}, std::nullopt, false).empty());
  jobs = join_jobs({record}, std::nullopt, true);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].state == "LOST");
  CHECK(std::isnan(jobs[0].tokens_per_s));
  write_file(run / "status.json", R"({"state":"stopped","step":7,"steps":10})");
  CHECK(join_jobs({record}, std::nullopt, true)[0].state == "STOPPED");
  write_file(run / "status.json", "{\"state\":");  // read while it was written
  CHECK(join_jobs({record}, std::nullopt, true)[0].state == "LOST");
}

TEST_CASE("of a launch on another machine its run says what it does, if it can be seen") {
  const StateHome home;
  const fs::path run = home.path() / "runs" / "tiny" / "1";
  JobRecord record = record_of_this_process("local", "tiny");
  record.host = "elsewhere";
  record.run = run.string();
  const auto view = [&] { return join_jobs({record}, std::nullopt, true).at(0); };
  CHECK(join_jobs({record}, std::nullopt, false).empty());
  CHECK(view().state == "UNKNOWN");
  CHECK(view().reason == "on elsewhere");
  CHECK(unended_elsewhere({record}) == 1);
  write_file(run / "resolved.yaml", "");
  write_file(run / "status.json", R"({"state":"running","step":7})");
  CHECK(view().state == "RUNNING");
  CHECK(view().step == 7);
  CHECK(unended_elsewhere({record, record_of_this_process("local", "here"), record}) == 2);
  const fs::path status = run / "status.json";
  fs::last_write_time(status, fs::last_write_time(status) - std::chrono::hours(2));
  CHECK(view().state == "UNKNOWN");
  write_file(status, R"({"state":"failed"})");
  CHECK(view().state == "FAILED");
  CHECK(unended_elsewhere({record}) == 0);
}

TEST_CASE("a run that was started several times is shown once, as it is now") {
  const mtl::test::TempDir dir;
  const std::string run = (dir.path() / "runs" / "tiny" / "1").string();
  write_file(fs::path(run) / "resolved.yaml", "");
  const auto start = [&](const std::string& id, const std::string& where, const std::string& of) {
    return JobView{.id = id, .name = "tiny", .where = where, .state = "STOPPED", .run = of};
  };
  JobView waits = start("15", "slurm", (dir.path() / "runs" / "tiny").string());
  waits.live = true;
  JobView goes_on = start("14", "slurm", run);
  goes_on.live = true;
  const std::vector<JobView> jobs = newest_starts(
      {waits, goes_on, start("p3", "local", run), start("p2", "local", "/elsewhere/1"),
       start("13", "slurm", run), start("p1", "local", "/elsewhere/1"), start("p0", "local", ""),
       start("p0", "local", "")});
  std::string shown;
  for (const JobView& job : jobs) shown += job.id + " x" + std::to_string(job.starts) + " ";
  CHECK(shown == "15 x1 14 x3 p2 x2 p0 x1 p0 x1 ");
}

TEST_CASE("slow ranks of a run that goes on are shown, the slowest first") {
  const StateHome home;
  const fs::path run = home.path() / "runs" / "tiny" / "1";
  write_file(run / "resolved.yaml", "");
  const std::string status = R"({"state":"running","step":7,"stragglers":[
      {"rank":2,"host":"m1","device":"GPU 2","phase":"reading data","factor":1.5,"job_speed":0.8},
      {"rank":5,"host":"m2","factor":2.5,"phase":7}, {"rank":-1}, {"rank":"x"}, 8,
      {"rank":6,"factor":null}]})";
  write_file(run / "status.json", status);
  JobRecord record = record_of_this_process("local", "tiny");
  record.run = run.string();
  const JobView job = join_jobs({record}, std::nullopt, false).at(0);
  REQUIRE(job.slow.size() == 3);
  CHECK(job.slow[0].rank == 5);
  CHECK(job.slow[0].host == "m2");
  CHECK(job.slow[0].phase.empty());
  CHECK(std::isnan(job.slow[0].job_speed));
  CHECK(job.slow[1].rank == 2);
  CHECK(job.slow[1].device == "GPU 2");
  CHECK(job.slow[1].phase == "reading data");
  CHECK(job.slow[1].factor == 1.5);
  CHECK(job.slow[1].job_speed == 0.8);
  CHECK(job.slow[2].rank == 6);
  record.started += 1;  // it is over
  CHECK(join_jobs({record}, std::nullopt, true).at(0).slow.empty());
}

TEST_CASE("a job of SLURM is one line with what the launch inside it knows") {
  const mtl::test::TempDir dir;
  const fs::path name = dir.path() / "runs" / "train";
  write_file(name / "1" / "resolved.yaml", "");
  write_file(name / "1" / "status.json", R"({"state":"running","step":2,"steps":4,"loss":1})");
  const std::vector<JobRecord> records = {slurm_record("12", name.string()),
                                          slurm_record("12", (name / "1").string(), 4711)};
  SlurmJobState job = queued("12", "RUNNING");
  job.nodes = 4;
  std::vector<JobView> jobs = join_jobs(records, {{job}}, false);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].where == "slurm");
  CHECK(jobs[0].run == (name / "1").string());
  CHECK(jobs[0].log == "/log");
  CHECK(jobs[0].nodes == 4);
  CHECK(jobs[0].step == 2);
  job.state = "PENDING";
  job.reason = "Resources";
  CHECK(join_jobs(records, {{job}}, false)[0].reason == "Resources");
  job.state = "FAILED";
  write_file(name / "1" / "status.json", R"({"state":"stopped","step":2})");
  CHECK(join_jobs(records, {{job}}, true)[0].state == "STOPPED");
  job.state = "COMPLETED";
  CHECK(join_jobs(records, {{job}}, false).empty());
  CHECK(join_jobs(records, {{job}}, true)[0].state == "COMPLETED");
  // SLURM has forgotten it.
  jobs = join_jobs(records, {std::vector<SlurmJobState>()}, true);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].state == "ENDED");
}

TEST_CASE("tasks of an array have runs of their own, and those that wait have none yet") {
  const mtl::test::TempDir dir;
  const fs::path first = dir.path() / "runs" / "ax-1", second = dir.path() / "runs" / "ax-2";
  for (const fs::path& run : {first / "1", second / "1"}) {
    write_file(run / "resolved.yaml", "");
    write_file(run / "plan.json", "");
  }
  write_file(first / "1" / "status.json", R"({"state":"running","step":7})");
  write_file(second / "1" / "status.json", R"({"state":"running","step":3})");
  JobRecord array = slurm_record("41", first.string());
  array.log = "/jobs/41_%a.log";
  array.when -= 60;
  const std::vector<JobRecord> records = {array, slurm_record("41_1", (first / "1").string(), 4711),
                                          slurm_record("41_2", (second / "1").string(), 4712)};
  const std::vector<JobView> jobs = newest_starts(join_jobs(
      records, {{queued("41_1", "RUNNING"), queued("41_2", "RUNNING"), queued("41_3", "PENDING")}},
      false));
  REQUIRE(jobs.size() == 3);
  const auto job = [&](const std::string& id) { return matching_jobs(jobs, id).at(0); };
  CHECK(job("41_1").run == (first / "1").string());
  CHECK(job("41_1").step == 7);
  CHECK(job("41_1").starts == 1);
  CHECK(job("41_2").run == (second / "1").string());
  CHECK(job("41_2").step == 3);
  CHECK(job("41_3").run.empty());
  CHECK(job("41_3").step == -1);
  CHECK(job("41_3").log == "/jobs/41_3.log");
  CHECK(job("41_3").name == "train");
  CHECK(matching_jobs(jobs, (first / "1").string()).size() == 1);
}

TEST_CASE("a run that waits to go on has no speed and no time left") {
  const mtl::test::TempDir dir;
  const fs::path run = dir.path() / "runs" / "train" / "1";
  write_file(run / "resolved.yaml", "");
  const std::vector<JobRecord> records = {slurm_record("12", run.string(), 4711)};
  const auto job = [&](const char* state, const char* status) {
    write_file(run / "status.json", status);
    return join_jobs(records, {{queued("12", state)}}, false).at(0);
  };
  const char* stopped = R"({"state":"stopped","step":6,"steps":9,"tokens_per_s":5,"eta_s":0.0})";
  const char* running = R"({"state":"running","step":6,"steps":9,"tokens_per_s":5,"eta_s":3.0})";
  CHECK(job("PENDING", stopped).step == 6);
  CHECK(std::isnan(job("PENDING", stopped).eta_s));
  CHECK(std::isnan(job("PENDING", running).eta_s));  // its node was lost
  CHECK(std::isnan(job("RUNNING", stopped).eta_s));  // it begins again
  CHECK(job("RUNNING", running).eta_s == 3);
}

TEST_CASE("jobs of SLURM that are none of ours are left out") {
  const mtl::test::TempDir dir;
  SlurmJobState job = queued("12", "RUNNING");
  job.script = (dir.path() / "job.sbatch").string();
  CHECK(join_jobs({}, {{job}}, false).empty());
  write_file(job.script, "#!/bin/bash\nsleep 1\n");
  CHECK(join_jobs({}, {{job}}, false).empty());
  // One of mtl's that somebody has given to sbatch.
  write_file(job.script,
             "#!/bin/bash\n#SBATCH --nodes=1\nexport MTL_JOB_SCRIPT=/x\nexec mtl launch x\n");
  write_file(dir.path() / "job.json", R"({"run":"/runs/train"})");
  const std::vector<JobView> jobs = join_jobs({}, {{job}}, false);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].run == "/runs/train");
}

TEST_CASE("an ID, a run directory or a name finds its job") {
  std::vector<JobView> jobs(4);
  jobs[0].id = "12";
  jobs[0].name = "train";
  jobs[0].run = "/runs/train/1";
  jobs[0].where = "slurm";
  jobs[1].id = "13_1";
  jobs[1].name = "sweep";
  jobs[1].where = "slurm";
  jobs[2] = jobs[1];
  jobs[2].id = "13_2";
  jobs[3].id = "p12";
  jobs[3].name = "12";
  const auto ids = [&](const std::string& text) {
    std::string all;
    for (const JobView& job : matching_jobs(jobs, text)) all += job.id + " ";
    return all;
  };
  CHECK(ids("12") == "12 ");
  CHECK(ids("13") == "13_1 13_2 ");
  CHECK(ids("13_2") == "13_2 ");
  CHECK(ids("p12") == "p12 ");
  CHECK(ids("sweep") == "13_1 13_2 ");
  CHECK(ids("/runs/train/1/") == "12 ");
  CHECK(ids("/runs/train") == "12 ");
  CHECK(ids("1").empty());
  CHECK(ids("nobody").empty());
}

TEST_CASE("a path that the system refuses is no job's run, and a run that it refuses no path's") {
  const mtl::test::TempDir dir;
  // Who may read everything is refused nothing but a circle.
  fs::create_symlink("one", dir / "one");
  fs::create_symlink("two", dir / "two");
  const std::vector<JobView> jobs = {{.id = "1", .name = "a", .run = (dir / "one").string()},
                                     {.id = "2", .name = "b", .run = (dir / "there").string()}};
  const auto found = [&](const std::string& text) {
    std::string all;
    for (const JobView& job : matching_jobs(jobs, text)) all += job.id + " ";
    return all;
  };
  CHECK(found((dir / "two").string()).empty());
  CHECK(found((dir / "there").string()) == "2 ");
}
