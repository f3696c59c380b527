// mtl worker as a rank of launchers that know nothing of mtl: it trains what mtl launch trains.
#include <algorithm>
#include <chrono>
#include <thread>

#include "cli/tiny_run.h"

using namespace mtl::test;

namespace {

// Where ranks left their word to one another, after all have met.
bool word_left(const fs::path& dir) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename().string().starts_with("meeting-")) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("mpirun starts the ranks of a train.yaml and they train the same") {
  if (!fs::exists("/usr/bin/mpirun")) {
    MESSAGE("skipped: no mpirun (Debian: openmpi-bin)");
    return;
  }
  const Shell shell;
  write_recipe(shell, 10);
  const std::vector<std::string> command = {
      "/usr/bin/mpirun", "--oversubscribe", "--allow-run-as-root", "-np",        "2",
      MTL_PROGRAM,       "worker",          "train.yaml",          "run.dir=mpi"};
  const Outcome outcome = shell.run(command, {{"OMP_NUM_THREADS", "1"}});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(losses_below(shell.dir() / "mpi/tiny") == losses_of_launch(shell));
  CHECK_FALSE(word_left(shell.dir() / "mpi/tiny"));
  // All ranks hear that nothing is left to do.
  const Outcome again = shell.run(command, {{"OMP_NUM_THREADS", "1"}});
  CHECK(again.code == 0);
  CHECK(has(again.err, "is complete: nothing is left to train"));
  // One that rank 0 cannot open ends all.
  std::vector<std::string> wrong = command;
  wrong.push_back("model.heads=5");
  const Outcome failed = shell.run(wrong);
  CHECK(failed.code == 3);
}

TEST_CASE("ranks by hand meet in a run directory") {
  const Shell shell;
  write_recipe(shell, 10);
  const std::map<std::string, std::string> env = {{"WORLD_SIZE", "2"}, {"OMP_NUM_THREADS", "1"}};
  const auto rank = [&](const char* number) {
    auto own = env;
    own["RANK"] = number;
    own["LOCAL_RANK"] = number;
    return shell.start({MTL_PROGRAM, "worker", "train.yaml", "run.dir=hand"}, own);
  };
  // A word of an earlier start that ended badly misleads nobody; whoever comes first waits.
  const fs::path stale = shell.dir() / "hand/tiny/meeting-RANK.and.WORLD_SIZE-..0-2";
  shell.write(fs::relative(stale, shell.dir()).string(),
              R"({"addresses": ["127.0.0.1"], "port": 1, "token": "old"})");
  const pid_t second = rank("1");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(fs::exists(stale));
  const Outcome first = shell.finish(rank("0"));
  CAPTURE(first.err);
  CHECK(first.code == 0);
  CHECK(shell.finish(second).code == 0);
  CHECK_FALSE(fs::exists(stale));
  CHECK(losses_below(shell.dir() / "hand/tiny") == losses_of_launch(shell));
}

TEST_CASE("a second start by hand leaves the first one its ranks") {
  const Shell shell;
  write_recipe(shell, 10);
  const auto rank = [&](const char* number) {
    return shell.start(
        {MTL_PROGRAM, "worker", "train.yaml", "run.dir=hand"},
        {{"WORLD_SIZE", "2"}, {"OMP_NUM_THREADS", "1"}, {"RANK", number}, {"LOCAL_RANK", number}});
  };
  const pid_t first = rank("0");
  wait_until([&] {
    return fs::exists(shell.dir() / "hand/tiny") && word_left(shell.dir() / "hand/tiny");
  });
  const Outcome second = shell.finish(rank("0"));
  CHECK(second.code == 4);
  CHECK(has(second.err, "rank 0 of another start waits for its ranks"));
  CHECK(word_left(shell.dir() / "hand/tiny"));
  CHECK(shell.finish(rank("1")).code == 0);
  CHECK(shell.finish(first).code == 0);
}

TEST_CASE("ranks of another launcher that are stopped before their first step leave it said") {
  const Shell shell;
  write_recipe(shell, 10);
  // The other rank never comes.
  const pid_t first = shell.start({MTL_PROGRAM, "worker", "train.yaml"},
                                  {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}});
  const fs::path runs = shell.dir() / "runs/tiny";
  wait_until([&] {
    if (!fs::exists(runs) || !word_left(runs)) return false;
    const auto started = [](const fs::directory_entry& entry) {
      return fs::exists(entry.path() / "status.json");
    };
    return std::any_of(fs::directory_iterator(runs), fs::directory_iterator(), started);
  });
  CHECK(status_of(run_of(shell))["state"] == "running");
  kill(first, SIGTERM);
  CHECK(shell.finish(first).code == 75);
  const fs::path run = run_of(shell);
  CHECK(status_of(run)["state"] == "stopped");
  CHECK(status_of(run)["step"] == 0);
  CHECK(has(file_text(run / "events.jsonl"), "\"event\":\"stopped\""));
  CHECK(fs::exists(run / "report.html"));
  // Where mtl launch is above, it says so once.
  CHECK(launch(shell, 1, {}).code == 0);
}

TEST_CASE("a rank that is kept from its work is named while the run goes on") {
  const Shell shell;
  write_recipe(shell, 1'000'000);
  // With several micro-batches: what a rank is stopped in while it waits for others is not its own
  // time, and on a loaded machine they come late.
  const auto rank = [&](int number) {
    return shell.start({MTL_PROGRAM, "worker", "train.yaml", "train.global_batch=24",
                        "train.seq_len=64", "checkpoint.every=0"},
                       {{"RANK", std::to_string(number)},
                        {"LOCAL_RANK", std::to_string(number)},
                        {"WORLD_SIZE", "3"},
                        {"OMP_NUM_THREADS", "1"}});
  };
  const Outcome less = shell.mtl({"launch", "train.yaml", "health.straggler_factor=0.9"});
  CHECK(less.code == 3);
  CHECK(has(less.err, "error[config.range]: health.straggler_factor cannot be 0.9"));
  constexpr int kSlow = 1;
  const pid_t second = rank(kSlow), third = rank(2), first = rank(0);
  // Three quarters of the time it stands still, until that is told. Left alone it soon keeps up, so
  // what is told of it is looked at before that.
  json slow;
  const auto told = [&] {
    if (!has(file_text(shell.dir() / "stderr.txt"), "] rank 1 (")) return false;
    const json status = json::parse(file_text(run_of(shell) / "status.json"));
    for (const json& one : status.value("stragglers", json::array())) {
      if (one.at("rank") == kSlow) slow = one;
    }
    return !slow.is_null();
  };
  using Clock = std::chrono::steady_clock;
  constexpr Clock::duration kLeast = std::chrono::milliseconds(30), kMost = std::chrono::seconds(3);
  Clock::time_point left = Clock::now();
  wait_until([&] {
    // By the clock, since on a loaded machine this test comes round ten times as seldom.
    const Clock::duration ran = Clock::now() - left;
    kill(second, SIGSTOP);
    std::this_thread::sleep_for(std::clamp<Clock::duration>(3 * ran, kLeast, kMost));
    kill(second, SIGCONT);
    left = Clock::now();
    return told();
  });
  kill(first, SIGTERM);
  const Outcome outcome = shell.finish(first);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 75);
  CHECK(shell.finish(second).code == 75);
  CHECK(shell.finish(third).code == 75);
  CHECK(has(outcome.err, "[rank.straggler] rank 1 ("));
  REQUIRE(!slow.is_null());
  // That of most of what was too much, wherever it was stopped: of a slow machine it may be any.
  CHECK_FALSE(slow.at("phase").get<std::string>().empty());
  CHECK(slow.at("factor") > 1.2);
  CHECK(has(file_text(run_of(shell) / "events.jsonl"), R"("event":"straggler")"));
}

TEST_CASE("the time that is left has what comes beside the steps, up to the end") {
  const Shell shell;
  write_recipe(shell, 10);
  // After the last step: what is there still to do, in seconds.
  const auto left = [&](const char* name, std::vector<std::string> settings) {
    std::vector<std::string> command = {MTL_PROGRAM, "worker", "train.yaml",
                                        std::string("run.dir=") + name};
    command.insert(command.end(), settings.begin(), settings.end());
    const Outcome outcome = shell.run(
        command,
        {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}, {"MTL_PROGRESS_FD", "1"}});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    double seconds = -1;
    std::istringstream in(outcome.out);
    for (std::string line; std::getline(in, line);) {
      const json record = json::parse(line);
      if (record.at("kind") == "step") seconds = record.at("eta_s");
    }
    return seconds;
  };
  const std::string no_saves = "checkpoint.every=0", no_text = "data.split=[1, 0]";
  CHECK(left("nothing", {no_saves, no_text}) == 0);
  CHECK(left("evaluation", {no_saves}) > 0);
  CHECK(left("texts", {no_saves, no_text, "train.eval.generate.prompts=[the]",
                       "train.eval.generate.tokens=8"}) > 0);
  CHECK(left("saves", {no_text, "checkpoint.async=false"}) > 0);
}

TEST_CASE("a rank whose environment contradicts itself does not start") {
  const Shell shell;
  write_recipe(shell, 10);
  const Outcome beyond = shell.mtl({"worker", "train.yaml"}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  CHECK(beyond.code == 4);
  CHECK(has(beyond.err, "error[surroundings.value]: RANK=2 is beyond WORLD_SIZE=2"));
  const Outcome pod =
      shell.mtl({"worker", "train.yaml"},
                {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"PET_NPROC_PER_NODE", "8"}});
  CHECK(pod.code == 4);
  CHECK(has(pod.err, "mtl worker is one rank"));
}
