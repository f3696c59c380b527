// What is read from how a job ended.
#include "launcher/controller/verdict.h"

#include <csignal>

#include <doctest/doctest.h>

#include "launcher/system/oom.h"

using namespace mtl;

TEST_CASE("memory is the reason where a rank says so or the kernel's killer struck") {
  JobOutcome outcome;
  CHECK_FALSE(ran_out_of_memory(outcome));
  outcome.first_failure = WorkerEnd{};
  outcome.first_failure->exit_code = 5;
  CHECK(ran_out_of_memory(outcome));
  outcome.first_failure->exit_code = 137;
  outcome.first_failure->signal = SIGKILL;
  CHECK_FALSE(ran_out_of_memory(outcome));  // somebody's kill -9
  outcome.first_failure->notes = {std::string(kOomKiller) + " struck on this machine"};
  CHECK(ran_out_of_memory(outcome));
}
