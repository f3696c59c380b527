// PyTorch programs as they are, under mtl launch on this machine: they meet, they compute what they
// compute under any launcher, and they find torchrun's contract kept.
#include <algorithm>

#include <doctest/doctest.h>

#include "clients/clients.h"

using namespace mtl::test;

namespace {

// The processes started by hand, without any launcher; they meet in a file.
std::string losses_by_hand(const Shell& shell, int world,
                           const std::map<std::string, std::string>& env) {
  std::string script = "set -e\n";
  for (int rank = world - 1; rank >= 0; --rank) {
    script += "/usr/bin/python3 " + client("ddp.py") + " --init file://" +
              (shell.dir() / "meeting").string() + " --world " + std::to_string(world) +
              " --rank " + std::to_string(rank) + (rank > 0 ? " &\n" : "\nwait\n");
  }
  const Outcome outcome = without_chance([&] {
    std::filesystem::remove(shell.dir() / "meeting");
    return shell.run({"/bin/sh", "-c", script}, env);
  });
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  return lines(outcome.out, "step ");
}

}  // namespace

TEST_CASE("DistributedDataParallel trains as it does without a launcher") {
  const auto env = torch_environment();
  Shell shell;
  const std::string expected = losses_by_hand(shell, 4, env);
  REQUIRE(std::count(expected.begin(), expected.end(), '\n') == 12);
  const Outcome outcome = without_chance([&] {
    return shell.mtl({"launch", "--num_processes", "4", client("ddp.py")}, env);
  });
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(lines(outcome.out, "step ") == expected);
}

TEST_CASE("processes meet over env and a store and reduce and gather") {
  const auto env = torch_environment();
  Shell shell;
  for (const std::string world : {"1", "4"}) {
    const Outcome outcome = without_chance([&] {
      return shell.mtl({"launch", "--num_processes", world, client("collectives.py")}, env);
    });
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(outcome.out.find("met " + world + " of 1 nodes") != std::string::npos);
  }
}

TEST_CASE("a worker sees every variable that torchrun promises") {
  need_flag("max_restarts");
  const auto env = torch_environment();
  Shell shell;
  const Outcome outcome =
      shell.mtl({"launch", "--num_processes", "4", client("elastic_env.py"), "--local", "4"}, env);
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.out == "all as promised\n");
}

TEST_CASE("an exception recorded by torch is in the report") {
  need_flag("max_restarts");
  const auto env = torch_environment();
  Shell shell;
  const Outcome outcome =
      shell.mtl({"launch", "--num_processes", "2", "--grace", "5", client("record.py")}, env);
  CHECK(outcome.code == 1);
  CHECK_MESSAGE(outcome.err.find("rank 1") != std::string::npos, outcome.err);
  // It is in the error file only: stderr ends with other things.
  CHECK_MESSAGE(outcome.err.find("RuntimeError: the tensor was on fire") != std::string::npos,
                outcome.err);
  CHECK(outcome.err.find("TORCHELASTIC_ERROR_FILE is not set") == std::string::npos);
}

TEST_CASE("workers that fail are started again with the next restart count") {
  need_flag("max_restarts");
  const auto env = torch_environment();
  Shell shell;
  const Outcome outcome = shell.mtl({"launch", "--num_processes", "3", "--max_restarts", "3",
                                     "--grace", "5", client("restarts.py")},
                                    env);
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(lines(outcome.out, "generation ") ==
        "generation 0 of 3 with 3\ngeneration 1 of 3 with 3\ngeneration 2 of 3 with 3\n");
  const Outcome too_few = shell.mtl({"launch", "--num_processes", "3", "--max_restarts", "1",
                                     "--grace", "5", client("restarts.py")},
                                    env);
  CHECK(too_few.code == 5);
  CHECK(lines(too_few.out, "generation ") ==
        "generation 0 of 1 with 3\ngeneration 1 of 1 with 3\n");
}
