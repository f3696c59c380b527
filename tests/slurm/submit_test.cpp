// mtl submit, ps, logs, stop and top against a real SLURM. One node, so that what is tested is the
// way into the queue and out of it; several nodes are the affair of tests/slurm/allocation_test.
#include <csignal>
#include <fstream>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "slurm/slurm_run.h"
#include "slurm/submit_run.h"
#include "support/text.h"

using namespace mtl::test;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

json listed(const Slurm& slurm, Words flags = {}) {
  Words words = {"ps", "--json"};
  words.insert(words.end(), flags.begin(), flags.end());
  return json::parse(slurm.ask(mtl_words(words)))["jobs"];
}

json row(const json& jobs, const std::string& id) {
  for (const json& job : jobs) {
    if (job["id"] == id) return job;
  }
  return nullptr;
}

std::string folder_of(const std::string& out) {
  const size_t at = out.find("script  ");
  REQUIRE(at != std::string::npos);
  return fs::path(out.substr(at + 8, out.find('\n', at) - at - 8)).parent_path();
}

}  // namespace

TEST_CASE("submitted scripts are accepted by bash and shellcheck and sbatch") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(4);
  write_tiny(slurm, 10);
  const std::vector<Words> cases = {
      {"train.yaml"},
      {"--num_machines", "4", "--nproc_per_node", "2", "train.yaml", "train.steps=20",
       "train.global_batch=8", "run.name=it-s"},
      {"--nnodes", "2:4", "--partition", "low", "--time", "1:00:00", "--mem", "100M", "--exclusive",
       "true", "train.yaml"},
      {"--array", "0-3%2", "train.yaml", "lr.max=0.00%a1"},
      {"--gres", "gpu:2", "--comment", "a test, of many", "--job_name", "my job", "--mail_user",
       "me@example.org", "--mail_type", "END,FAIL", "--", "sh", "-c", "echo 'a b' \"$HOME\" `id`"},
      {"--setup", "export A='x y'", "--setup", "ulimit -c 0", "--exclude", "n[3-4]", "--dependency",
       "singleton", "--extra=--nice=5", "--chain", "none", "--", "true"},
  };
  for (const Words& words : cases) {
    Words all = {"--dry-run"};
    all.insert(all.end(), words.begin(), words.end());
    const CommandEnd end = slurm.run(submit(all));
    CAPTURE(end.err);
    CAPTURE(end.out);
    REQUIRE(end.code == 0);
    CHECK(std::count(end.out.begin(), end.out.end(), '\n') <= 40);
    std::ofstream(slurm.work() / "job.sbatch") << end.out;
    CHECK(slurm.run({"bash", "-n", "job.sbatch"}).code == 0);
    const CommandEnd checked = slurm.run({"shellcheck", "job.sbatch"});
    CAPTURE(checked.out);
    CHECK(checked.code == 0);
    const CommandEnd tested = slurm.run({"sbatch", "--test-only", "job.sbatch"});
    CAPTURE(tested.err);
    CHECK(tested.code == 0);
  }
  // A dry run leaves nothing behind.
  CHECK_FALSE(fs::exists(slurm.work() / "runs"));
  CHECK_FALSE(fs::exists(slurm.work() / "jobs"));
}

TEST_CASE("the script of a dry run is kept and runs when it is submitted") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(1);
  write_tiny(slurm, 3);
  std::ofstream(slurm.work() / "home.yaml") << "distributed_type: MULTI_CPU\nuse_cpu: true\n";
  const CommandEnd end = slurm.run(
      {"sh", "-c",
       std::string(MTL_PROGRAM) +
           " submit --cpu --nproc_per_node 2 --config_file home.yaml --dry-run train.yaml "
           "run.name=dry > dry.sbatch"});
  CAPTURE(end.err);
  REQUIRE(end.code == 0);
  CHECK_FALSE(fs::exists(slurm.work() / "runs"));
  const fs::path script = slurm.work() / "dry.sbatch";
  CAPTURE(file_text(script));
  CHECK(has(file_text(script), "again): sbatch " + script.string() + "\n"));
  CHECK(has(file_text(script), "\nexport MTL_JOB_SCRIPT=" + script.string() + "\n"));
  const std::string id = slurm.ask({"sbatch", "--parsable", "dry.sbatch"});
  const bool done = slurm.reaches(id, {"COMPLETED", "FAILED"});
  CAPTURE(file_text(slurm.work() / (id + ".log")));
  CHECK(done);
  CHECK(slurm.exit_code(id) == "0:0");
  CHECK(losses(slurm, "dry").size() == 3);
  CHECK(fs::exists(slurm.work() / "dry.sbatch.begun"));
  // The folder of the log is the user's affair, and said.
  const CommandEnd elsewhere = slurm.run(
      {"sh", "-c", std::string(MTL_PROGRAM) + " submit --cpu --dry-run --output logs true | cat"});
  CHECK(has(elsewhere.err, "warning[slurm.log_folder]"));
  CHECK(has(elsewhere.out, "again): sbatch " + (slurm.work() / "true.sbatch").string() + "\n"));
}

TEST_CASE("the launch in the job knows how long before its end it is warned") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(1);
  const CommandEnd end = slurm.run(submit(
      {"--dry-run", "--signal_s", "600", "--time", "2:00:00", "--partition", "low", "--", "true"}));
  CAPTURE(end.out);
  const std::string launch = end.out.substr(end.out.find("\nexec "));
  CHECK(has(launch, "--slurm_signal_s 600"));
  CHECK(has(launch, "--slurm_time 2:00:00"));
  CHECK_FALSE(has(launch, "--slurm_partition"));
}

TEST_CASE("a program is submitted and its exit code comes back") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(2);
  CommandEnd end =
      slurm.run(submit({"--wait", "--", "sh", "-c", "echo from $RANK of $WORLD_SIZE"}));
  CAPTURE(end.out);
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK(has(end.out, "submitted job "));
  CHECK(has(end.out, "from 0 of 1"));
  CHECK(has(end.err, ": done, exit code 0"));
  const fs::path folder = folder_of(end.out);
  CHECK(folder.parent_path().parent_path() == slurm.work() / "jobs");
  const json record = json::parse(mtl::read_file(folder / "job.json"));
  CHECK(record["schema"] == "mtl.submit/1");
  CHECK(fs::exists(record["log"].get<std::string>()));
  end =
      slurm.run(submit({"--wait", "--quiet", "--nproc_per_node", "2", "--", "sh", "-c", "exit 3"}));
  CAPTURE(end.err);
  CHECK(end.code == 3);
  end = slurm.run(
      submit({"--wait", "--quiet", "--slurm_chain", "none", "--", "sh", "-c", "exit 75"}));
  CAPTURE(end.err);
  CHECK(end.code == 75);
  CHECK(slurm.processes().empty());
}

TEST_CASE("a train.yaml is submitted as it is at that moment") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(2);
  write_tiny(slurm, 4, "launch:\n  via: slurm\n  slurm:\n    time: 10\n    partition: low\n");
  // It cannot start before the file has changed.
  slurm.ask({"scontrol", "update", "PartitionName=low", "State=DOWN"});
  const CommandEnd end = slurm.run(mtl_words({"launch", "--cpu", "train.yaml", "train.steps=5"}));
  CAPTURE(end.out);
  CAPTURE(end.err);
  REQUIRE(end.code == 0);
  const size_t at = end.out.find("submitted job ") + 14;
  const std::string id = end.out.substr(at, end.out.find(' ', at) - at);
  CHECK(slurm.state(id) == "PENDING");
  const json waiting = row(listed(slurm), id);
  REQUIRE(waiting.is_object());
  CHECK(waiting["state"] == "PENDING");
  CHECK(waiting["where"] == "slurm");
  CHECK(waiting["name"] == "tiny");
  std::ofstream(slurm.work() / "train.yaml") << "broken";
  slurm.ask({"scontrol", "update", "PartitionName=low", "State=UP"});
  const bool done = slurm.reaches(id, {"COMPLETED", "FAILED"});
  const CommandEnd log = slurm.run(mtl_words({"logs", id}));
  CAPTURE(log.out);
  CAPTURE(log.err);
  REQUIRE(done);
  CHECK(slurm.state(id) == "COMPLETED");
  CHECK(log.code == 0);
  CHECK(has(log.out, "step"));
  const json ended = row(listed(slurm, {"--all"}), id);
  REQUIRE(ended.is_object());
  CHECK(ended["state"] == "COMPLETED");
  CHECK(ended["step"] == 5);
  CHECK(fs::exists(fs::path(ended["run"].get<std::string>()) / "metrics.jsonl"));
}

TEST_CASE("what SLURM refuses is explained and leaves nothing behind") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(2, "");
  CommandEnd end = slurm.run(submit({"--partition", "debg", "--", "true"}));
  CAPTURE(end.err);
  CHECK(end.code == 3);
  CHECK(has(end.err, "error[slurm.refused]: there is no partition 'debg'"));
  CHECK(has(end.err, "did you mean debug? there are: debug, low"));
  CHECK(has(end.err, "note: sbatch: error:"));
  end = slurm.run(submit({"--num_machines", "9", "--", "true"}));
  // This site lets it wait, another would refuse it.
  CHECK(
      (has(end.err, "warning[slurm.nodes]: the job waits for 9 nodes, and partition debug has 2") ||
       has(end.err, "there are no 9 nodes with what the job asks for")));
  end = slurm.run(submit({"--gpus_per_node", "3", "--", "true"}));
  CHECK(end.code == 3);
  CHECK(has(end.err, "--slurm_gpus_per_node asks for GPUs, and the job uses none"));
  end = slurm.run(mtl_words({"submit", "--nproc_per_node", "9", "--", "true"}));
  CHECK(end.code == 3);
  CHECK(has(end.err, "no node has what the job asks for"));
  slurm.ask({"scontrol", "update", "PartitionName=low", "MaxTime=10"});
  end = slurm.run(submit({"--partition", "low", "--time", "20", "--", "true"}));
  // A site may also take it and let it wait for ever; this one does not check at submit.
  CHECK((end.code == 0 || has(end.err, "the time limit 20 is more than partition low allows")));
  end = slurm.run(submit({"--partition", "a b", "--time", "never", "--", "true"}));
  CHECK(end.code == 3);
  CHECK(has(end.err, "--slurm_partition cannot be 'a b'"));
  CHECK(has(end.err, "--slurm_time cannot be 'never'"));
  end = slurm.run(submit({"--", "true"}), {{"SLURM_CONF", "/nowhere/slurm.conf"}});
  CHECK(end.code == 4);
  CHECK(has(end.err, "SLURM_CONF=/nowhere/slurm.conf cannot be read"));
  end = slurm.run(submit({"--", "true"}), {{"PATH", "/nowhere"}});
  CHECK(end.code == 4);
  CHECK(has(end.err, "error[slurm.missing]"));
}

TEST_CASE("an array is one job of several tasks") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(2);
  const std::string id = submitted(
      slurm, {"--array", "1-3", "--", "sh", "-c", "echo task $SLURM_ARRAY_TASK_ID; sleep 1000"});
  bool all = false;
  for (int i = 0; i < 300 && !all; ++i) {
    all = slurm.ask({"squeue", "-h", "-r", "-t", "R", "-o", "%i"}).size() >= 3 * (id.size() + 2);
    if (!all) usleep(50'000);
  }
  CHECK(all);
  const json jobs = listed(slurm);
  for (const char* task : {"_1", "_2", "_3"}) CHECK(row(jobs, id + task)["state"] == "RUNNING");
  CHECK(row(jobs, id + "_2")["log"].get<std::string>().ends_with("/" + id + "_2.log"));
  // The logs of all, or of one.
  const auto logged = [&](const std::string& of) { return slurm.ask(mtl_words({"logs", of})); };
  for (int i = 0; i < 300 && !has(logged(id), "task 3| task 3\n"); ++i) usleep(50'000);
  for (const char* task : {"1", "2", "3"}) {
    CHECK(has(logged(id) + "\n", fmt::format("task {0}| task {0}\n", task)));
  }
  CHECK(has(logged(id + "_2"), "task 2"));
  CHECK_FALSE(has(logged(id + "_2"), "task 3"));
  Command watched = slurm.start(mtl_words({"logs", "-f", id}));
  CHECK(watched.says("task 2| task 2", std::chrono::seconds(60)));
  // The ID of all means all.
  const CommandEnd end = slurm.run(mtl_words({"stop", "--now", id}));
  CAPTURE(end.out);
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK(listed(slurm).empty());
  CHECK(slurm.processes().empty());
}

TEST_CASE("a running job stops with a checkpoint and a waiting one leaves the queue") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(1);
  write_tiny(slurm, 1'000'000);
  const std::string running = submitted(slurm, {"--exclusive", "true", "train.yaml"});
  const std::string waiting = submitted(slurm, {"--exclusive", "true", "--", "true"});
  REQUIRE(slurm.reaches(running, {"RUNNING"}));
  json job;
  for (int i = 0; i < 600 && (!job.is_object() || !job["step"].is_number() || job["step"] < 3);
       ++i) {
    usleep(50'000);
    job = row(listed(slurm), running);
  }
  REQUIRE(job.is_object());
  CHECK(job["step"] >= 3);
  CHECK(job["steps"] == 1'000'000);
  CHECK(job["loss"].is_number());
  CHECK(row(listed(slurm), waiting)["reason"].is_string());
  const std::string table = slurm.ask(mtl_words({"ps"}));
  CAPTURE(table);
  CHECK(has(table, "ID"));
  CHECK(has(table, "PENDING ("));
  CHECK(has(slurm.ask(mtl_words({"top"})), "TOKENS/S"));
  CommandEnd end = slurm.run(mtl_words({"logs", waiting}));
  CHECK(has(end.err, "has printed nothing yet: it waits"));
  end = slurm.run(mtl_words({"stop", waiting}));
  CHECK(end.code == 0);
  CHECK(has(end.out, "taken out of the queue"));
  CHECK(slurm.state(waiting) == "CANCELLED");
  end = slurm.run(mtl_words({"stop", running}));
  CAPTURE(end.out);
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK(has(end.out, "stopped with a complete checkpoint, exit code 75"));
  CHECK(slurm.exit_code(running) == "75:0");
  CHECK(slurm.processes().empty());
  end = slurm.run(mtl_words({"stop", running}));
  CHECK(end.code == 0);
  end = slurm.run(mtl_words({"stop", "999999"}));
  CHECK(end.code == 2);
  CHECK(has(end.err, "error[job.missing]"));
}

TEST_CASE("watching a job can be left and the job goes on") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(1);
  Command watched = slurm.start(submit({"--wait", "--", "sh", "-c", "echo begun; sleep 600"}));
  REQUIRE(watched.says("begun", std::chrono::seconds(180)));
  watched.signal(SIGINT);
  const CommandEnd end = watched.wait(std::chrono::seconds(180));
  CAPTURE(end.err);
  CHECK(end.code == 130);
  CHECK(has(end.err, "goes on without being watched"));
  const json jobs = listed(slurm);
  REQUIRE(jobs.size() == 1);
  const std::string id = jobs[0]["id"];
  CHECK(jobs[0]["state"] == "RUNNING");
  Command followed = slurm.start(mtl_words({"logs", "-f", id}));
  CHECK(followed.says("begun", std::chrono::seconds(180)));
  slurm.run({"scancel", id});
  const CommandEnd gone = followed.wait(std::chrono::seconds(180));
  CAPTURE(gone.err);
  CHECK(gone.code == 0);
  CHECK(has(gone.err, "CANCELLED"));
}

TEST_CASE("a job at its time limit says so") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(1);
  const std::string id = submitted(
      slurm, {"--time", "60", "--chain", "none", "--", "sh", "-c", "trap '' TERM INT; sleep 600"});
  REQUIRE(slurm.reaches(id, {"RUNNING"}));
  Command followed = slurm.start(mtl_words({"logs", "-f", id}));
  // SLURM looks at limits every half minute, and of a limit knows no less than one.
  slurm.ask({"scontrol", "update", "jobid=" + id, "EndTime=now+1"});
  const CommandEnd end = followed.wait(std::chrono::seconds(200));
  CAPTURE(end.err);
  CAPTURE(end.out);
  CHECK(has(end.err, fmt::format("job {}: the time limit was reached", id)));
  CHECK(is_quiet(slurm));
}
