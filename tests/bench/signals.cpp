// The rounds of tests/cluster/signals_test.cpp for as often as one likes: jobs started in every way
// and stopped by a person.
//   build/bench/signals [runs=100]
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>
#include <cstdlib>

#include "cluster/signal_rounds.h"

using namespace mtl::test;

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::atoi(argv[1]) : 100;
  if (const std::string missing = Lab::missing(); !missing.empty()) {
    printf("no machines to test on: %s\n", missing.c_str());
    return 1;
  }
  Cluster cluster(2);
  StopRounds rounds;
  for (size_t turn = 0; rounds.runs < runs; ++turn) {
    const size_t before = rounds.wrong.size();
    stop_round(rounds, cluster, turn);
    for (size_t i = before; i < rounds.wrong.size(); ++i) printf("%s\n", rounds.wrong[i].c_str());
    fflush(stdout);
  }
  printf("%-16s", "wrong / runs");
  for (const std::string& signal : kStopSignals) printf("  %-13s", signal.c_str());
  printf("\n");
  for (const std::string& way : kStopWays) {
    printf("%-16s", way.c_str());
    for (const std::string& signal : kStopSignals) {
      const auto what = std::make_pair(way, signal);
      const std::string cell =
          std::to_string(rounds.failed[what]) + " / " + std::to_string(rounds.done[what]);
      printf("  %-13s", cell.c_str());
    }
    printf("\n");
  }
  printf("%zu of %d wrong\n", rounds.wrong.size(), rounds.runs);
  return rounds.wrong.empty() ? 0 : 1;
}
