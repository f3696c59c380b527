// The real program with the real trainer, where memory is short.
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE(
    "generate takes memory for the text that is asked of it, not for all that fits the model") {
  Shell shell;
  write_recipe(shell, 2);
  // A context so long and heads so wide that no address space holds the keys of all of it.
  const Outcome launched =
      shell.mtl({"launch", "train.yaml", "model.position.type=alibi", "model.max_seq=134217728",
                 "model.layers=1", "model.hidden=8", "model.heads=2", "model.head_dim=65536"});
  REQUIRE_MESSAGE(launched.code == 0, launched.err);
  const Outcome words = shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "});
  CAPTURE(words.err);
  CHECK(words.code == 0);
  CHECK(words.out.size() >= 20);
  const Outcome all = shell.mtl({"generate", "--tokens", "134217728", "runs/tiny", "the "});
  CAPTURE(all.err);
  CHECK(all.code == 5);
  CHECK(has(all.err, "a context of 134 217 728 tokens takes "));
  CHECK(has(all.err, "fewer --tokens"));
  CHECK_FALSE(has(all.err, "micro-batch"));
}

TEST_CASE("a batch that does not fit at once is cut where train.micro_batch is auto") {
  Shell shell;
  write_recipe(shell, 5);
  // A million sequences at once need more than this machine has.
  const Outcome cut = shell.mtl({"launch", "--dry-run", "train.yaml", "train.global_batch=1048576",
                                 "train.micro_batch=auto"});
  CAPTURE(cut.err);
  CHECK(cut.code == 0);
  CHECK(has(cut.err, "train.micro_batch auto: "));
  CHECK(has(cut.err, "of 1048576 sequences at once"));
  CHECK(has(cut.out, "  # auto: "));
  // A plan may be of another machine.
  const Outcome plan =
      shell.mtl({"plan", "train.yaml", "train.global_batch=1048576", "train.micro_batch=auto"});
  CHECK(plan.code == 0);
  CHECK_FALSE(has(plan.err, "train.micro_batch auto"));
  // What somebody wrote stays, and is refused if it does not fit.
  CHECK(
      shell.mtl({"launch", "train.yaml", "train.global_batch=1048576", "train.micro_batch=1048576"})
          .code == 5);
}

TEST_CASE("in a control group with little memory a run is cut to it and learns the same") {
  Shell shell;
  write_recipe(shell, 5);
  const std::string small =
      "unshare -m sh -c 'mount -t tmpfs tmpfs /sys/fs/cgroup && "
      "echo 8000000 > /sys/fs/cgroup/memory.max";
  // Only where mount namespaces are allowed.
  if (shell.run({"/bin/sh", "-c", small + "'"}).code != 0) return;
  const std::string launch = std::string(" launch train.yaml train.global_batch=256 ") +
                             "train.micro_batch=auto run.name=";
  const Outcome cut =
      shell.run({"/bin/sh", "-c", small + " && exec " + MTL_PROGRAM + launch + "cut'"});
  CAPTURE(cut.err);
  REQUIRE(cut.code == 0);
  CHECK(has(cut.err, "of 256 sequences at once"));
  REQUIRE(
      shell.run({"/bin/sh", "-c", std::string("exec ") + MTL_PROGRAM + launch + "whole"}).code ==
      0);
  std::vector<double> losses;
  for (const char* name : {"cut", "whole"}) {
    for (const auto& entry : fs::recursive_directory_iterator(shell.dir() / "runs" / name)) {
      if (entry.path().filename() != "metrics.jsonl") continue;
      std::istringstream lines(file_text(entry.path()));
      for (std::string line; std::getline(lines, line);) {
        const auto record = nlohmann::json::parse(line);
        if (record.contains("loss") && record["step"] == 5) losses.push_back(record["loss"]);
      }
    }
  }
  REQUIRE(losses.size() == 2);
  // Another order of sums, and nothing else.
  CHECK(losses[0] == doctest::Approx(losses[1]).epsilon(1e-4));
}

#ifndef __SANITIZE_ADDRESS__  // which wants the whole address space
TEST_CASE("a first step that does not get its memory is tried again with a smaller micro-batch") {
  Shell shell;
  write_recipe(shell, 2);
  // The arena of all 256 sequences is planned to fit into the machine, and does not get half of it.
  const std::vector<std::string> wide = {"train.global_batch=256", "train.seq_len=256",
                                         "model.hidden=64"};
  std::string launch = std::string("exec ") + MTL_PROGRAM + " launch --cpu train.yaml";
  for (const std::string& setting : wide) launch += " " + setting;
  std::vector<std::string> planned = {"plan", "--json", "train.yaml", "train.micro_batch=auto"};
  planned.insert(planned.end(), wide.begin(), wide.end());
  const Outcome plan = shell.mtl(planned);
  REQUIRE_MESSAGE(plan.code == 0, plan.err);
  const auto bytes = json::parse(plan.out)["stages"][0]["memory_per_rank"]["total_bytes"];
  // A program's own address space is about 300 MB.
  const int64_t limit = 300'000 + bytes.get<int64_t>() / 1024 / 2;
  const std::string less = "ulimit -v " + std::to_string(limit) + " && ";
  const Outcome run =
      shell.run({"/bin/sh", "-c", less + launch + " train.micro_batch=auto run.name=auto"});
  CAPTURE(run.err);
  CHECK(run.code == 0);
  CHECK(has(run.err, "the first step ran out of memory; again with train.micro_batch auto: "));
  CHECK(has(run.err, "done     2 steps"));
  // Who asked for 256 gets an answer, not another number.
  const Outcome asked =
      shell.run({"/bin/sh", "-c", less + launch + " train.micro_batch=256 run.name=asked"});
  CHECK(asked.code == 5);
  CHECK_FALSE(has(asked.err, "again with"));
  // And nothing is tried for ever.
  const Outcome never = shell.run({"/bin/sh", "-c",
                                   "ulimit -v 300000 && " + launch +
                                       " model.hidden=1024 train.micro_batch=auto run.name=never"});
  CAPTURE(never.err);
  CHECK(never.code == 5);
}
#endif
