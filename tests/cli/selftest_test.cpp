// mtl test: set-ups that are well, and what it says and returns when a rank of one is not.
#include <algorithm>
#include <chrono>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/checks/test_report.h"
#include "cli/program.h"
#include "support/fitting_limit.h"
#include "support/text.h"

using mtl::test::Outcome;
using mtl::test::Shell;
using nlohmann::json;

namespace {

using Words = std::vector<std::string>;

using mtl::test::has;

Outcome test_setup(const Words& flags, const std::map<std::string, std::string>& env = {}) {
  const Shell shell;
  Words args = {"test"};
  args.insert(args.end(), flags.begin(), flags.end());
  // What is well, or wrong at once, has time.
  if (std::find(flags.begin(), flags.end(), "--stage_timeout") == flags.end()) {
    args.insert(args.end(), {"--stage_timeout", "120"});
  }
  const Outcome outcome = shell.mtl(args, env);
  // Only the settings' own folder and what the shell itself writes: nothing is left behind.
  for (const auto& entry : std::filesystem::directory_iterator(shell.dir())) {
    CAPTURE(entry.path().string());
    CHECK(entry.path().filename().string().starts_with("std"));
  }
  return outcome;
}

// Two agents on this machine, of which none is lost for standing still.
const Words kTwoHosts = {"--hosts", "localhost:2,127.0.0.1:2", "--dead_after", "300"};

Outcome with_fault(const std::string& fault, const Words& flags = kTwoHosts) {
  return test_setup(flags, {{"MTL_TEST_FAULT", fault}});
}

// Of a rank that hangs; `error` is what is said behind "error[selftest.timeout]: ". Where the
// machine is so slow that others do not come in time either, with more time.
Outcome with_hang(const std::string& fault, const std::string& error,
                  const Words& flags = kTwoHosts) {
  Outcome outcome;
  mtl::test::with_fitting_limit(std::chrono::seconds(4), [&](auto limit) {
    const std::string seconds = std::to_string(limit.count() / 1000);
    Words all = flags;
    all.insert(all.end(), {"--stage_timeout", seconds});
    outcome = with_fault(fault, all);
    CHECK(has(outcome.err, " did not come within " + seconds + " s\n"));
    return has(outcome.err, "error[selftest.timeout]: " + error);
  });
  return outcome;
}

}  // namespace

TEST_CASE("mtl test: 1 and 2 and 4 ranks here are well and nothing is left behind") {
  for (const char* ranks : {"1", "2", "4"}) {
    const Outcome outcome = test_setup({"--num_processes", ranks});
    CAPTURE(outcome.out);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(outcome.err.empty());
    size_t at = 0;
    for (const char* stage :
         {"ok  spawn", "ok  rendezvous", "ok  network", "ok  train", "ok  clocks", "ok  disk"}) {
      CAPTURE(std::string(stage));
      at = outcome.out.find(stage, at);
      REQUIRE(at != std::string::npos);
    }
    CHECK(has(outcome.out, std::string("\nall is well: ") + ranks + " rank"));
    CHECK(has(outcome.out, "tp=2") == (*ranks != '1'));
    CHECK(has(outcome.out, "within a host: all_reduce 4 B ") == (*ranks != '1'));
    CHECK_FALSE(has(outcome.out, "between hosts"));
  }
}

TEST_CASE("mtl test: three ranks have no tp=2 and quiet says only the verdict") {
  const Outcome outcome = test_setup({"--num_processes", "3", "--quiet"});
  CHECK(outcome.code == 0);
  CHECK(outcome.out.rfind("all is well: 3 ranks on 1 host (", 0) == 0);
}

TEST_CASE("mtl test: what comes behind the last stage that is asked for is not tested") {
  const Outcome outcome = test_setup({"--num_processes", "2", "--until", "rendezvous"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "ok  rendezvous"));
  CHECK_FALSE(has(outcome.out, "network"));
  CHECK_FALSE(has(outcome.out, "disk"));
  CHECK(has(outcome.out, "all is well until rendezvous: 2 ranks"));
  CHECK(test_setup({"--until", "lunch"}).code == 2);
  const Outcome clocks = test_setup({"--num_processes", "1", "--until", "clocks"});
  CHECK(clocks.code == 0);
  CHECK_FALSE(has(clocks.out, "disk"));
  // The last one is the default.
  const Outcome all = test_setup({"--num_processes", "1", "--until", "disk"});
  CAPTURE(all.err);
  CHECK(all.code == 0);
  CHECK(has(all.out, "ok  disk"));
  CHECK(has(all.out, "\nall is well: 1 rank"));
  CHECK(has(test_setup({"--help"}).out, "[default: disk]"));
}

TEST_CASE("mtl test: two agents, over shared memory and over TCP") {
  const Outcome here = test_setup(kTwoHosts);
  CAPTURE(here.err);
  CHECK(here.code == 0);
  CHECK(has(here.out, "4 ranks on 2 hosts (localhost 2, 127.0.0.1 2)"));
  CHECK(has(here.out, "ok  clocks       at most "));
  const Outcome tcp = test_setup(kTwoHosts, {{"MTL_COMM", "tcp"}});
  CAPTURE(tcp.err);
  CHECK(tcp.code == 0);
  CHECK(has(tcp.out, "between hosts: all_reduce 4 B "));
}

TEST_CASE("mtl test: one JSON object with what every rank found") {
  const Outcome outcome = test_setup({"--num_processes", "2", "--json"});
  CAPTURE(outcome.out);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const json all = json::parse(outcome.out);
  CHECK(all["ok"] == true);
  CHECK(all["exit_code"] == 0);
  CHECK(all["errors"].empty());
  REQUIRE(all["stages"].size() == 6);
  REQUIRE(all["stages"][0]["ranks"].size() == 2);
  CHECK(all["stages"][0]["ranks"][1]["omp_threads"] >= 1);
  CHECK(all["stages"][0]["ranks"][1]["pid"] != all["stages"][0]["ranks"][0]["pid"]);
  const json loss = all["stages"][3]["ranks"][1];
  CHECK(loss["last_loss"].get<double>() < loss["first_loss"].get<double>());
  CHECK(loss["difference"].get<double>() <= 1e-4);

  const json bad = json::parse(
      test_setup({"--num_processes", "2", "--json"}, {{"MTL_TEST_FAULT", "train:1"}}).out);
  CHECK(bad["ok"] == false);
  CHECK(bad["exit_code"] == 1);
  CHECK(bad["errors"][0]["code"] == "selftest.loss");
  CHECK(bad["stages"].size() == 4);
  CHECK(bad["stages"][3]["rank"] == 1);
}

TEST_CASE("mtl test: what is wrong is named with stage and rank and host") {
  struct Case {
    const char* fault;
    int code;
    const char* row;
    const char* error;
  };
  const Case cases[] = {
      {"network:3", 1, "BAD network",
       "error[selftest.collective]: network: rank 3 on 127.0.0.1: all_reduce (sum) of F32 over 4 "
       "ranks gave 4 for element 17 of 960, where 3 is right\n"},
      {"train:2", 1, "BAD train",
       "error[selftest.loss]: train: rank 2 on 127.0.0.1: with tp=1 dp=4 the loss of step 8 is "},
      {"spawn:1:sleep", 7, "BAD spawn",
       "error[selftest.timeout]: spawn: rank 1 on localhost did not come within "},
      {"network:3:sleep", 7, "BAD network",
       "error[selftest.timeout]: network: rank 3 on 127.0.0.1 did not come within "},
      {"train:0:sleep", 7, "BAD train",
       "error[selftest.timeout]: train: rank 0 on localhost did not come within "},
      {"rendezvous:2:sleep", 7, "BAD rendezvous",
       "error[selftest.timeout]: rendezvous: rank 2 on 127.0.0.1 did not come within "},
      {"rendezvous:3:exit", 1, "BAD rendezvous",
       "error[rank.died]: rendezvous: rank 3 (local 1 on 127.0.0.1, pid "},
      {"clocks:2:sleep", 7, "BAD clocks",
       "error[selftest.timeout]: clocks: rank 2 on 127.0.0.1 did not come within "},
      {"network:0:exit", 1, "BAD network",
       "error[rank.died]: network: rank 0 (local 0 on localhost, pid "},
      {"train:1:exit", 1, "BAD train",
       "error[rank.died]: train: rank 1 (local 1 on localhost, pid "},
  };
  for (const Case& one : cases) {
    const std::string hang = "error[selftest.timeout]: ";
    const bool hangs = std::string(one.error).starts_with(hang);
    const Outcome outcome =
        hangs ? with_hang(one.fault, one.error + hang.size()) : with_fault(one.fault);
    CAPTURE(outcome.out);
    CAPTURE(outcome.err);
    CHECK(outcome.code == one.code);
    CHECK(has(outcome.out, one.row));
    CHECK_FALSE(has(outcome.out, "all is well"));
    CHECK_FALSE(has(outcome.out, "ok  disk"));
    CHECK(has(outcome.err, one.error));
    // One error, and the last thing on the screen.
    CHECK(outcome.err.find("error[") == outcome.err.rfind("\nerror[") + 1);
  }
}

TEST_CASE("mtl test: a rank that hangs in a local job, and whom to look at") {
  const Outcome outcome =
      with_hang("network:1:sleep", "network: rank 1 on ", {"--num_processes", "2"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 7);
  CHECK(has(outcome.err, "error[selftest.timeout]: network: rank 1 on "));
  CHECK(has(outcome.err, "  help: see what it waits for, on "));
  CHECK(has(outcome.err, ": gdb -p "));
}

TEST_CASE("mtl test: a host whose clock is ahead is a warning") {
  const Outcome outcome = with_fault("clocks:2");
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err,
            "warning[selftest.clock]: the clock of 127.0.0.1 is 5 s ahead of that of localhost\n"));
  CHECK(has(outcome.out, "all is well, with a warning to think about: 4 ranks"));
}

TEST_CASE("mtl test: a run.dir that cannot be written") {
  const Outcome outcome = test_setup({"--num_processes", "1"}, {{"MTL_RUN__DIR", "/proc/runs"}});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 4);
  CHECK(has(outcome.out, "BAD disk"));
  CHECK(has(outcome.err, "error[selftest.disk]: disk: cannot write in /proc, where /proc/runs "));
}

TEST_CASE("mtl test: what keeps a job from starting is said as mtl launch says it") {
  Words flags = kTwoHosts;
  flags.insert(flags.end(), {"--remote_program", "/bin/false"});
  const Outcome missing = test_setup(flags);
  CAPTURE(missing.err);
  CHECK(missing.code == 4);
  CHECK(has(missing.err, "error[launch.agent]"));
  const Outcome usage = test_setup({"train.yaml"});
  CHECK(usage.code == 2);
  CHECK(has(usage.err, "error[usage.extra]: mtl test does not take 'train.yaml'"));
  // What becomes a job of a scheduler's has no ranks yet.
  for (const char* via : {"slurm", "kubernetes"}) {
    const Outcome later = test_setup(
        {"--via", via, "--nproc_per_node", "1", "--num_machines", "2", "--kubernetes_image", "a"});
    CHECK(later.code == 2);
  }
  const Outcome job = test_setup({"--via", "slurm", "--nproc_per_node", "1"});
  CHECK(has(job.err, "mtl test starts ranks now, and --via slurm makes a job of them"));
  const Outcome threads = Shell().mtl({"selftest"}, {{"MTL_RANK_THREADS", "2"}});
  CHECK(threads.code == 4);
  CHECK(has(threads.err, "does not know ranks in threads"));
}

TEST_CASE("the slowest hosts are those beyond twice the median") {
  CHECK(mtl::slow_ones(std::vector<double>{1, 9}).empty());
  CHECK(mtl::slow_ones(std::vector<double>{1, 1.9, 1.2}).empty());
  CHECK(mtl::slow_ones(std::vector<double>{1, 1, 3, 1.1}) == std::vector<size_t>{2});
}

TEST_CASE("the host behind a slow link is named, and not its neighbours") {
  const std::vector<mtl::TestHost> hosts = {{"m1", 0, 1}, {"m2", 1, 1}, {"m3", 2, 1}, {"m4", 3, 1}};
  mtl::TestRecord record = {{"stage", "network"}, {"ranks", mtl::TestRecord::array()}};
  for (int rank = 0; rank < 4; ++rank) {
    // What comes in: to m3 over its own link, and from there to m4.
    const double link_s = rank >= 2 ? 0.4 : 0.1;
    record["ranks"].push_back(
        {{"place", rank},
         {"across", {{"latency_s", 1e-4}, {"bytes_per_s", 1e8}, {"link_s", link_s}}}});
  }
  std::vector<mtl::Diagnostic> warnings;
  const std::string text = mtl::stage_words(record, hosts, warnings);
  CHECK(has(text, "between hosts: all_reduce 4 B 100.0 us, 8 MiB 100 MB/s"));
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].code == "selftest.slow_host");
  CHECK(warnings[0].what ==
        "the network link of m3 is 4 times slower than the median of the hosts");
}

TEST_CASE("a stage's row fits the terminal and says its time at the end of the first line") {
  const std::string row = mtl::stage_row("ok  ", "network", "one two\nthree", 1.25, 80);
  CHECK(row ==
        "ok  network      one two" + std::string(47, ' ') + "   1.25 s\n                 three\n");
}
