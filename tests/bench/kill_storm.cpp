// The storm of tests/launcher/kill_storm_test.cpp for as many rounds as one likes.
//   build/bench/kill_storm [rounds=300] [seed=1]
#include "launcher/kill_storm.h"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
  std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1U);
  mtl::test::Storm storm;
  while (storm.rounds < rounds) {
    const size_t before = storm.wrong.size();
    mtl::test::storm_round(storm, random);
    for (size_t i = before; i < storm.wrong.size(); ++i) printf("%s\n", storm.wrong[i].c_str());
    fflush(stdout);
  }
  printf(
      "%d kills (%d of a worker, %d of the keeper, %d of the agent): %zu wrong; nothing left "
      "after %.0f ms at the latest\n",
      storm.rounds, storm.of_worker, storm.of_keeper, storm.of_agent, storm.wrong.size(),
      storm.longest_ms);
  return storm.wrong.empty() ? 0 : 1;
}
