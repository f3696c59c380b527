// Jobs that end before their run does: signals, time limits, and the jobs that follow.
#include <doctest/doctest.h>

#include "slurm/slurm_run.h"

using namespace mtl::test;
using std::chrono::seconds;

namespace {

std::string launch(const std::string& name, const std::string& more = "") {
  return "exec " + kMtl + " launch --nproc_per_node 2 " + more + " train.yaml run.name=" + name;
}

int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

}  // namespace

TEST_CASE("USR2 twice: checkpoint and requeue and the same losses as without") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(2);
  write_recipe(slurm, 500);
  REQUIRE(
      slurm.run({kMtl, "launch", "--num_processes", "4", "train.yaml", "run.name=whole"}).code ==
      0);
  const std::string job = submit(slurm, "job.sh", {"-N2", "--requeue"}, launch("chain"));
  const auto said = [&] { return file_text(slurm.work() / "job.sh.out"); };
  for (const int step : {8, 60}) {
    REQUIRE_MESSAGE(reaches_step(slurm, "chain", step), said());
    slurm.run({"scancel", "--batch", "--signal=USR2", job});
    REQUIRE_MESSAGE(slurm.reaches(job, {"PENDING"}), said());
    CHECK(is_quiet(slurm));
    CHECK(slurm.start_again(job));
  }
  CHECK(slurm.reaches(job, {"COMPLETED", "FAILED", "CANCELLED"}));
  CAPTURE(said());
  CHECK(slurm.state(job) == "COMPLETED");
  CHECK(losses(slurm, "chain") == losses(slurm, "whole"));
  CHECK(losses(slurm, "chain").size() == 500);
  CHECK(has(said(), "is queued again"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("USR2 to every process of the steps is one request and ends nobody") {
  const Slurm slurm(2);
  write_recipe(slurm, 100000);
  const std::string job = submit(slurm, "job.sh", {"-N2"}, launch("all", "--slurm_chain none"));
  const auto said = [&] { return file_text(slurm.work() / "job.sh.out"); };
  REQUIRE_MESSAGE(reaches_step(slurm, "all", 4), said());
  slurm.run({"scancel", "--full", "--signal=USR2", job});
  slurm.run({"scancel", "--signal=USR2", job});
  CHECK(slurm.reaches(job, {"FAILED", "COMPLETED"}));
  CAPTURE(said());
  CHECK(slurm.exit_code(job) == "75:0");
  CHECK(has(said(), "stopped with a complete checkpoint"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("scancel stops with a checkpoint and nothing follows") {
  const Slurm slurm(2);
  write_recipe(slurm, 100000);
  const std::string job = submit(slurm, "job.sh", {"-N2", "--requeue"}, launch("gone"));
  const auto said = [&] { return file_text(slurm.work() / "job.sh.out"); };
  REQUIRE_MESSAGE(reaches_step(slurm, "gone", 4), said());
  slurm.run({"scancel", job});
  CHECK(slurm.reaches(job, {"CANCELLED"}));
  CHECK(is_quiet(slurm));
  CAPTURE(said());
  CHECK(has(said(), "stopped with a complete checkpoint"));
  CHECK_FALSE(has(said(), "is queued again"));
  CHECK(slurm.state(job) == "CANCELLED");
}

TEST_CASE("a successor is submitted from the script and a missing one is explained") {
  const Slurm slurm(2);
  write_recipe(slurm, 500);
  const std::string script = (slurm.work() / "job.sh").string();
  const std::string job =
      submit(slurm, "job.sh", {"-N2"},
             "export MTL_JOB_SCRIPT=" + script + "\n" + launch("next", "--slurm_chain dependency"));
  const auto said = [&] { return file_text(slurm.work() / "job.sh.out"); };
  REQUIRE_MESSAGE(reaches_step(slurm, "next", 8), said());
  slurm.run({"scancel", "--batch", "--signal=USR2", job});
  CHECK(slurm.reaches(job, {"FAILED"}));
  CAPTURE(said());
  CHECK(slurm.exit_code(job) == "75:0");
  const std::string following = std::to_string(std::stoi(job) + 1);
  CHECK(has(said(), "SLURM job " + following + " was submitted"));
  CHECK(slurm.reaches(following, {"COMPLETED", "FAILED"}));
  CHECK(slurm.state(following) == "COMPLETED");
  CHECK(losses(slurm, "next").size() == 500);

  write_recipe(slurm, 100000);
  const std::string lonely =
      submit(slurm, "lonely.sh", {"-N2"}, launch("lonely", "--slurm_chain dependency"));
  REQUIRE(reaches_step(slurm, "lonely", 2));
  slurm.run({"scancel", "--batch", "--signal=USR2", lonely});
  CHECK(slurm.reaches(lonely, {"FAILED"}));
  CHECK(slurm.exit_code(lonely) == "75:0");
  CHECK(has(file_text(slurm.work() / "lonely.sh.out"), "slurm.successor"));
}

TEST_CASE("a chain that makes no progress ends with an error") {
  const Slurm slurm(2);
  write_recipe(slurm, 100000);
  // The warning comes as soon as mtl is there to hear it, and before any step.
  const std::string job = submit(slurm, "job.sh", {"-N2", "--requeue"},
                                 "(until grep -q mtl /proc/$$/comm && grep -qE "
                                 "'^Sig(Blk|Cgt).*[89a-f]..$' /proc/$$/status; do "
                                 "sleep 0.005; done; kill -USR2 $$) &\nexec " +
                                     kMtl + " launch train.yaml run.name=idle");
  const auto said = [&] { return file_text(slurm.work() / "job.sh.out"); };
  for (int i = 0; i < 2; ++i) {
    // Not the state: it is pending before its first start, too.
    for (int wait = 0; wait < 3600 && times(said(), "is queued again") <= i; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    REQUIRE_MESSAGE(slurm.reaches(job, {"PENDING"}), said());
    CHECK(is_quiet(slurm));
    CHECK(slurm.start_again(job));
  }
  CHECK(slurm.reaches(job, {"FAILED"}));
  CAPTURE(said());
  CHECK(slurm.exit_code(job) == "1:0");
  CHECK(has(said(), "error[slurm.no_progress]: 3 jobs in a row have ended at step 0"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("tasks of an array have runs of their own") {
  const Slurm slurm(3);
  write_recipe(slurm, 3);
  const std::string named = submit(
      slurm, "named.sh", {"-N1", "--array=0-2"},
      "exec " + kMtl + " launch --nproc_per_node 2 train.yaml run.name=own-%a train.seed=%a");
  const std::string same =
      submit(slurm, "same.sh", {"-N1", "--array=4-5"},
             "exec " + kMtl + " launch --nproc_per_node 2 train.yaml run.name=sweep");
  const auto until = std::chrono::steady_clock::now() + seconds(180);
  while (!slurm.ask({"squeue", "-h"}).empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CAPTURE(file_text(slurm.work() / "same.sh.out"));
  CHECK(losses(slurm, "sweep-4").size() == 3);
  CHECK(losses(slurm, "sweep-5").size() == 3);
  // Each with its own seed.
  CHECK(losses(slurm, "own-0").size() == 3);
  CHECK(losses(slurm, "own-0") != losses(slurm, "own-2"));
}
