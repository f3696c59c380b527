// What a job asks SLURM for: every setting by what SLURM accepts, and nothing that could get out of
// its line.
#include <fstream>

#include <doctest/doctest.h>

#include "launcher/settings/launch_flags.h"
#include "launcher/slurm/job_options.h"
#include "launcher/slurm/job_script.h"
#include "launcher/slurm/queue.h"
#include "launcher/slurm/submit.h"
#include "launcher/system/run_command.h"
#include "support/temp_dir.h"

using namespace mtl;

namespace {

using Words = std::vector<std::string>;
using Settings = std::map<std::string, Words>;

LaunchRequest request_of(const Settings& slurm, int nodes = 1, int ranks = 8) {
  LaunchRequest request;
  request.via = "slurm";
  request.slurm = slurm;
  for (const auto& [name, texts] : slurm)
    request.scheduler_origins["slurm_" + name] = "train.yaml:7";
  request.min_nodes = request.max_nodes = nodes;
  request.local_ranks = ranks;
  request.ranks_said = true;
  return request;
}

struct Read {
  SlurmOptions options;
  Words codes;
  std::string words;
  bool has(const std::string& line) const {
    const Words& lines = options.sbatch;
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  }
};

Read read(const LaunchRequest& request) {
  Diagnostics diagnostics;
  Read result;
  result.options = slurm_options(request, "train", "/home/me/runs/train/jobs/1", diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) {
    result.codes.push_back(diagnostic.code);
    result.words += diagnostic.what + " / " + diagnostic.help + "\n";
  }
  return result;
}

Words codes(const std::string& name, const Words& values) {
  Settings settings = {{name, values}};
  if (name.starts_with("container_")) settings["container"] = {"image"};
  return read(request_of(settings)).codes;
}

std::string script(const LaunchRequest& request, Words launch) {
  SlurmJob job;
  job.options = read(request).options;
  job.version = "0.1.0";
  job.when = "2026-11-22 12:00";
  job.command = {"mtl", "submit", "train.yaml"};
  job.script = "/home/me/runs/train/jobs/1/job.sbatch";
  job.working_directory = "/home/me";
  job.launch = std::move(launch);
  return slurm_script(job, request, load_job_template("slurm/job.sbatch", ""));
}

}  // namespace

TEST_CASE("the smallest job has only the lines that it needs") {
  const Read job = read(request_of({}, 4));
  CHECK(job.codes.empty());
  CHECK(job.options.sbatch == Words{"--job-name=train", "--nodes=4", "--ntasks-per-node=1",
                                    "--gpus-per-node=8", "--signal=B:USR2@180", "--requeue",
                                    "--open-mode=append",
                                    "--output=/home/me/runs/train/jobs/1/%j.log"});
}

TEST_CASE("settings of a job become lines for sbatch") {
  LaunchRequest request = request_of({{"partition", {"gpu,gpu2"}},
                                      {"account", {"lab"}},
                                      {"qos", {"high"}},
                                      {"time", {"1-12:00:00"}},
                                      {"gpu_type", {"a100"}},
                                      {"cpus_per_task", {"96"}},
                                      {"mem", {"0"}},
                                      {"constraint", {"a100&nvlink"}},
                                      {"exclude", {"gpu[01-03,7]"}},
                                      {"exclusive", {"true"}},
                                      {"array", {"0-15%4"}},
                                      {"dependency", {"afterok:12:13_4,singleton"}},
                                      {"job_name", {"my job"}},
                                      {"signal_s", {"300"}},
                                      {"chain", {"none"}},
                                      {"mail_user", {"me@x.org"}},
                                      {"mail_type", {"END,time_limit_90"}},
                                      {"comment", {"a test, of many"}},
                                      {"output", {"/scratch/50% of it"}},
                                      {"extra", {"--switches=1", "--contiguous"}}},
                                     4);
  request.min_nodes = 2;
  const Read job = read(request);
  CAPTURE(job.words);
  CHECK(job.codes.empty());
  for (const char* line : {"--job-name=\"my job\"",
                           "--nodes=2-4",
                           "--gpus-per-node=a100:8",
                           "--partition=gpu,gpu2",
                           "--account=lab",
                           "--qos=high",
                           "--time=1-12:00:00",
                           "--cpus-per-task=96",
                           "--mem=0",
                           "--constraint=\"a100&nvlink\"",
                           "--exclude=\"gpu[01-03,7]\"",
                           "--exclusive",
                           "--array=0-15%4",
                           "--dependency=afterok:12:13_4,singleton",
                           "--mail-user=me@x.org",
                           "--mail-type=END,time_limit_90",
                           "--comment=\"a test, of many\"",
                           "--signal=B:USR2@300",
                           "--no-requeue",
                           "--no-kill",
                           "--output=\"/scratch/50%% of it/%A_%a.log\"",
                           "--switches=1",
                           "--contiguous"}) {
    CAPTURE(line);
    CHECK(job.has(line));
  }
}

TEST_CASE("GPUs are those of the ranks unless they are said") {
  CHECK(read(request_of({{"gpus_per_node", {"4"}}})).has("--gpus-per-node=4"));
  CHECK(read(request_of({{"gres", {"gpu:a100:8"}}})).has("--gres=gpu:a100:8"));
  LaunchRequest on_cpu = request_of({});
  on_cpu.config.use_cpu = true;
  CHECK(read(on_cpu).options.gpus_per_node == 0);
  CHECK(read(request_of({{"gpus_per_node", {"0"}}})).options.gpus_per_node == 0);
  LaunchRequest unsaid = request_of({}, 1, 1);
  unsaid.ranks_said = false;
  CHECK(read(unsaid).options.gpus_unsaid);
  CHECK(read(unsaid).options.gpus_per_node == 0);
  CHECK(read(request_of({{"gres", {"gpu:8"}}, {"gpu_type", {"a100"}}})).codes ==
        Words{"slurm.conflict"});
}

TEST_CASE("what a setting of a job cannot be is told with its name and place") {
  const std::map<std::string, Words> good = {
      {"time", {"90", "90:00", "12:00:00", "1-12", "1-12:30", "2-00:00:00", "UNLIMITED"}},
      {"mem", {"0", "64G", "512000M", "1T", "2048"}},
      {"array", {"0", "0-15", "1,3,7", "0-15:4", "0-15%4", "1-3,7%2"}},
      {"dependency", {"singleton", "afterok:1", "afterany:1:2?afterok:3", "after:5+10"}},
      {"exclusive", {"true", "false", "user"}},
      {"nodelist", {"n1", "gpu[001-003,007],dgx-[1-2]"}},
      {"container", {"/images/torch.sqsh", "docker://nvcr.io#nvidia/pytorch:24.01-py3"}},
      {"extra", {"--switches=1@00:10:00", "--licenses=a:2,b"}},
      {"setup", {"source ~/venv/bin/activate", "export A='x y' B=$HOME"}},
      {"modules", {"cuda/12.4", "gcc/12.2.0-abc"}}};
  for (const auto& [name, values] : good) {
    for (const std::string& value : values) {
      CAPTURE(name);
      CAPTURE(value);
      CHECK(codes(name, {value}).empty());
    }
  }
  const std::map<std::string, Words> bad = {
      {"partition", {"", "a b", "a\n#SBATCH --account=root", "a;b", "$(id)"}},
      {"account", {"a,b", "a'b"}},
      {"time", {"tomorrow", "1:2:3:4", "-1", "12h", "1-", "1 0"}},
      {"mem", {"64 G", "64GB!", "all"}},
      {"array", {"a", "1-", "0-3%", "1..3", "0-3%4%5"}},
      {"dependency", {"afterwards:1", "afterok", "afterok:x"}},
      {"mail_type", {"ENDE", "END, FAIL", "END,"}},
      {"mail_user", {"me\n", "me;rm"}},
      {"exclusive", {"yes please"}},
      {"gpus_per_node", {"eight", "-1", "1.5"}},
      {"cpus_per_task", {"0", "many"}},
      {"signal_s", {"-3", "100000"}},
      {"comment", {"a\"b", "a\nb", "a # b", "`id`"}},
      {"job_name", {"a\nb", "a\"b", std::string(300, 'x')}},
      {"output", {"a\nb", "$HOME/logs"}},
      {"container", {"a b", "$(id)"}},
      {"container_runtime", {"docker"}},
      {"container_mounts", {"/a:/b;id", "/a\n"}},
      {"modules", {"cuda; id", "a b"}},
      {"setup", {"a\nb", "a\rb"}},
      {"extra",
       {"switches=1", "-N4", "--x=a\nb", "--x=\"", "--partition=x", "--output=x", "--nodes=3",
        "--requeue"}},
      {"chain", {"forever"}},
      {"gres", {"gpu 8"}}};
  for (const auto& [name, values] : bad) {
    for (const std::string& value : values) {
      CAPTURE(name);
      CAPTURE(value);
      CHECK(codes(name, {value}).size() == 1);
    }
  }
  // All of them at once, with who said it and what is allowed.
  const Read job =
      read(request_of({{"time", {"12h"}}, {"mem", {"much"}}, {"mail_type", {"ENDE"}}}));
  CHECK(job.codes.size() == 3);
  CHECK(job.words.find("slurm_time (train.yaml:7) cannot be '12h' / it is a time limit: 90") !=
        std::string::npos);
  CHECK(job.words.find("did you mean END?") != std::string::npos);
}

TEST_CASE("the warning before the limit leaves a short job its time") {
  const auto signal = [](const std::string& time, const std::string& before = {}) {
    Settings settings = {{"time", {time}}};
    if (!before.empty()) settings["signal_s"] = {before};
    const Read job = read(request_of(settings));
    if (!job.codes.empty()) return job.codes[0];
    for (const std::string& line : job.options.sbatch) {
      if (line.starts_with("--signal=B:USR2@")) return line.substr(16);
    }
    return std::string("none");
  };
  CHECK(signal("12:00:00") == "180");
  CHECK(signal("UNLIMITED") == "180");
  CHECK(signal("4") == "60");
  CHECK(signal("1") == "none");
  CHECK(signal("10", "30") == "30");
  CHECK(signal("12:00:00", "0") == "none");
  CHECK(signal("3", "180") == "slurm.conflict");
  CHECK(slurm_seconds("90") == 5400);
  CHECK(slurm_seconds("1:30") == 90);
  CHECK(slurm_seconds("2:00:01") == 7201);
  CHECK(slurm_seconds("1-2") == 93'600);
  CHECK(slurm_seconds("1-02:03:04") == 93'784);
  CHECK_FALSE(slurm_seconds("UNLIMITED"));
}

TEST_CASE("every setting of SLURM is checked by what it is") {
  // A flag without a rule would go into the script as it is.
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.group != FlagGroup::slurm) continue;
    if (flag.kind == FlagKind::truth) continue;
    const std::string name = flag.name.substr(6);
    CAPTURE(name);
    CHECK(codes(name, {"a\nb"}).size() >= 1);
  }
}

TEST_CASE("the script of a job") {
  LaunchRequest request = request_of(
      {{"partition", {"gpu"}}, {"modules", {"cuda/12.4"}}, {"setup", {"source venv/bin/activate"}}},
      4);
  const std::string text = script(
      request, {"/opt/mtl", "launch", "--config_file", "none", "--num_machines", "4",
                "--nproc_per_node", "8", "/home/me/runs/train/jobs/1/train.yaml", "run.name=it's"});
  CHECK(text == R"(#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --partition=gpu
#SBATCH --signal=B:USR2@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/me/runs/train/jobs/1/%j.log
#
# Written by mtl 0.1.0 on 2026-11-22 12:00 for
#   mtl submit train.yaml
# To submit it (again): sbatch /home/me/runs/train/jobs/1/job.sbatch
# To follow it: mtl logs -f JOB; to stop it with a checkpoint: mtl stop JOB

module load cuda/12.4 || exit 4
source venv/bin/activate
export MTL_JOB_SCRIPT=/home/me/runs/train/jobs/1/job.sbatch
cd /home/me || exit 4
exec /opt/mtl launch --config_file none --num_machines 4 --nproc_per_node 8 \
  /home/me/runs/train/jobs/1/train.yaml 'run.name=it'\''s'
)");
}

TEST_CASE("nothing gets out of a comment or a word of a script") {
  const mtl::test::TempDir dir;
  LaunchRequest request = request_of({});
  SlurmJob job;
  job.options = read(request).options;
  job.command = {"mtl", "submit", "x\ntouch " + (dir.path() / "out").string() + "\n"};
  job.script = "/a b/it's/job.sbatch";
  job.working_directory = dir.path().string();
  job.launch = {"printf", "%s|", "a b", "$HOME", "`id`", "c\nd", "'\"",
                "\\",     "",    "*",   "#x",    "--n",  "-1"};
  const std::string text = slurm_script(job, request, load_job_template("slurm/job.sbatch", ""));
  std::ofstream(dir.path() / "script") << text;
  const CommandAnswer answer = run_command({"bash", (dir.path() / "script").string()});
  CAPTURE(text);
  CAPTURE(answer.err);
  CHECK(answer.out == "a b|$HOME|`id`|c\nd|'\"|\\||*|#x|--n|-1|");
  CHECK_FALSE(std::filesystem::exists(dir.path() / "out"));
  CHECK(run_command({"bash", "-n", (dir.path() / "script").string()}).ok());
  const CommandAnswer checked = run_command({"shellcheck", (dir.path() / "script").string()});
  CAPTURE(checked.out);
  CHECK((checked.ok() || checked.missing));
}

TEST_CASE("a template of one's own has every setting by its name") {
  const LaunchRequest request = request_of({{"time", {"10"}}});
  SlurmJob job;
  job.options = read(request).options;
  const auto render = [&](const std::string& text) {
    return slurm_script(job, request, {"slurm/job.sbatch", "/mine", text});
  };
  CHECK(render("{{time}} {{nodes}} {{gpus_per_node}}{{#partition}}x{{/partition}}") == "10 1 8");
  CHECK_THROWS(render("{{partition}}"));
  CHECK_THROWS(render("{{partitoin}}"));
}

TEST_CASE("what scontrol and squeue say of jobs") {
  const auto jobs = read_scontrol_jobs(
      "JobId=12 JobName=my job UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 "
      "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 "
      "ExitCode=0:0 RunTime=1-00:01:02 TimeLimit=UNLIMITED NodeList=n[1-4] BatchHost=n1 NumNodes=4 "
      "Command=/x/job.sbatch WorkDir=/x StdOut=/x/12.log Power= \n"
      "JobId=14 ArrayJobId=13 ArrayTaskId=1 JobName=a JobState=FAILED Reason=NonZeroExitCode "
      "ExitCode=0:9 StdOut=/x/%A_%a.log NumNodes=1\nslurm_load_jobs error\n");
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].id == "12");
  CHECK(jobs[0].name == "my job");
  CHECK(jobs[0].running());
  CHECK(jobs[0].reason.empty());
  CHECK(jobs[0].restarts == 2);
  CHECK(jobs[0].run_s == 86'462);
  CHECK(jobs[0].nodes == 4);
  CHECK(jobs[0].output == "/x/12.log");
  CHECK(jobs[0].script == "/x/job.sbatch");
  CHECK(jobs[1].id == "13_1");
  CHECK(jobs[1].exit_code == 137);
  CHECK(jobs[1].ended());
  CHECK(jobs[1].output == "/x/13_1.log");
  std::string line;
  for (const char* cell :
       {"13_1", "14", "a b", "PENDING", "Resources", "2", "", "0:00", "/x/job.sbatch"}) {
    line += (line.empty() ? "" : "\x1f") + std::string(cell);
  }
  const auto queue = read_squeue_jobs(line + "\ngarbage\n");
  REQUIRE(queue.size() == 1);
  CHECK(queue[0].raw_id == "14");
  CHECK(queue[0].pending());
  CHECK(queue[0].reason == "Resources");
  CHECK(queue[0].script == "/x/job.sbatch");
}

TEST_CASE("what SLURM has against a job is said in words") {
  const LaunchRequest request = request_of({{"partition", {"gpus"}}, {"time", {"9-0"}}});
  const std::string there = "gpu 1-00:00:00\nlow infinite";
  const Diagnostic partition = slurm_refusal(
      "sbatch: error: invalid partition specified: gpus\nsbatch: error: Batch job submission "
      "failed: Invalid partition name specified",
      request, there);
  CHECK(partition.what == "there is no partition 'gpus'");
  CHECK(partition.help == "did you mean gpu? there are: gpu, low");
  CHECK(partition.notes.size() == 2);
  CHECK(slurm_refusal("Requested time limit is invalid (missing or exceeds some limit)", request,
                      there)
            .help == "limits: gpu 1-00:00:00,low infinite");
  const Diagnostic other = slurm_refusal("sbatch: error: strange", request, there);
  CHECK(other.notes == Words{"sbatch: error: strange"});
  CHECK_FALSE(other.help.empty());
}

TEST_CASE("a SLURM that cannot be asked is told from one that refuses a job") {
  const char* const script = "/w ork/job.sbatch";
  const auto code = [&](const std::string& words, bool late = false) {
    const auto found = slurm_unreachable(words, late, script);
    return found ? found->code : "refused";
  };
  CHECK(code("sbatch: error: Batch job submission failed: Invalid account") == "refused");
  CHECK(code("sbatch did not answer in time", true) == "slurm.unreachable");
  const std::string stopped = "sbatch: error: Unable to contact slurm controller (connect failure)";
  CHECK(slurm_unreachable(stopped, false, script)->help == "try again: sbatch '/w ork/job.sbatch'");
  const auto bare = slurm_unreachable(
      "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
      "sbatch: error: fetch_config: DNS SRV lookup failed\n"
      "sbatch: fatal: Could not establish a configuration source",
      false, script);
  REQUIRE(bare);
  CHECK(bare->code == "slurm.unreachable");
  CHECK(bare->what.find("no configuration") != std::string::npos);
  CHECK(bare->help.find("SLURM_CONF") != std::string::npos);
}

TEST_CASE("a job of more nodes than its partition has is told that it waits for ever") {
  const std::string there =
      "PartitionName=low AllowGroups=ALL Default=NO MaxNodes=2 TotalCPUs=32 TotalNodes=9\n"
      "PartitionName=debug AllowGroups=ALL Default=YES MaxNodes=UNLIMITED TotalCPUs=8 "
      "TotalNodes=4";
  const auto said = [&](const Settings& settings, int nodes) {
    const auto warning = slurm_shortage(request_of(settings, nodes), there);
    if (warning) CHECK(warning->severity == Diagnostic::Severity::warning);
    return warning ? warning->what : "";
  };
  CHECK(said({}, 4).empty());
  CHECK(said({}, 5) == "the job waits for 5 nodes, and partition debug has 4");
  CHECK(said({{"partition", {"low"}}}, 2).empty());
  CHECK(said({{"partition", {"low"}}}, 4) ==
        "the job waits for 4 nodes, and partition low gives a job at most 2");
  CHECK(said({{"partition", {"low,debug"}}}, 4).empty());
  CHECK(said({{"partition", {"low,debug"}}}, 5) ==
        "the job waits for 5 nodes, and partition low gives a job at most 2, partition debug has "
        "4");
  CHECK(said({{"partition", {"low,hidden"}}}, 5).empty());
  CHECK_FALSE(slurm_shortage(request_of({}, 5), ""));
  LaunchRequest range = request_of({}, 5);
  range.min_nodes = 4;
  CHECK_FALSE(slurm_shortage(range, there));
}

TEST_CASE("GPUs for a job on CPUs contradict each other") {
  const auto codes_on_cpu = [](const Settings& settings) {
    LaunchRequest request = request_of(settings);
    CHECK(read(request).codes.empty());
    request.config.use_cpu = true;
    return read(request).codes;
  };
  CHECK(codes_on_cpu({{"gpus_per_node", {"3"}}}) == Words{"slurm.conflict"});
  CHECK(codes_on_cpu({{"gpus_per_node", {"0"}}}).empty());
  CHECK(codes_on_cpu({{"gres", {"gpu:a100:8"}}}).empty());  // as a site may want it
}

TEST_CASE("a default_config.yaml and the environment say what a job asks for") {
  const mtl::test::TempDir dir;
  const std::string path = (dir.path() / "c.yaml").string();
  std::ofstream(path) << "compute_environment: LOCAL_MACHINE\ndistributed_type: MEGATRON_LM\n"
                         "num_processes: 4\nmegatron_lm_config:\n  mtl_via: slurm\n"
                         "  mtl_slurm_partition: gpu\n  mtl_slurm_time: 12:00:00\n";
  Diagnostics diagnostics;
  const LaunchConfig file = read_launch_config(path, diagnostics);
  LaunchGiven given;
  const char* const environment[] = {"MTL_SLURM_TIME=10", "MTL_SLURM_QOS=high", nullptr};
  given.environment = flags_in_environment(environment, diagnostics);
  const LaunchRequest request = resolve_launch(file, given, false, diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) CAPTURE(diagnostic.what);
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(request.via == "slurm");
  CHECK(request.slurm.at("partition") == Words{"gpu"});
  CHECK(request.slurm.at("time") == Words{"10"});
  CHECK(request.slurm.at("qos") == Words{"high"});
  CHECK(request.scheduler_origins.at("slurm_time") == "MTL_SLURM_TIME");
  CHECK(read(request).has("--gpus-per-node=4"));
}
