// The storms of tests/launcher/kill_storm_test.cpp (one agent, in this process) and of
// tests/cluster/storm_test.cpp (mtl launch here, over ssh, static and elastic, on machines of a
// lab) for as many rounds as one likes.
//   build/bench/kill_storm [rounds=300] [seed=1]
#define DOCTEST_CONFIG_IMPLEMENT
#include "launcher/kill_storm.h"

#include <cstdio>
#include <cstdlib>

#include "cluster/storm.h"

namespace {

template <typename Storm, typename Round>
void storm_for(Storm& storm, int rounds, const Round& round) {
  while (storm.rounds < rounds) {
    const size_t before = storm.wrong.size();
    round();
    for (size_t i = before; i < storm.wrong.size(); ++i) printf("%s\n", storm.wrong[i].c_str());
    fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
  std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1U);
  mtl::test::Storm storm;
  storm_for(storm, rounds, [&] { mtl::test::storm_round(storm, random); });
  printf(
      "an agent: %d kills (%d of a worker, %d of the keeper, %d of the agent): %zu wrong; nothing "
      "left after %.0f ms at the latest\n",
      storm.rounds, storm.of_worker, storm.of_keeper, storm.of_agent, storm.wrong.size(),
      storm.longest_ms);
  const std::string missing = mtl::test::Lab::missing();
  if (!missing.empty()) {
    printf("no storm over machines: %s\n", missing.c_str());
    return storm.wrong.empty() ? 0 : 1;
  }
  mtl::test::ClusterStorm wide;
  mtl::test::Cluster cluster(2);
  storm_for(wide, rounds, [&] { mtl::test::storm_round(wide, cluster, random); });
  printf("mtl launch: %d kills: %zu wrong; nothing left after %.0f ms at the latest\n", wide.rounds,
         wide.wrong.size(), wide.longest_ms);
  for (const auto& [what, times] : wide.hit) printf("  %-16s %d\n", what.c_str(), times);
  return storm.wrong.empty() && wide.wrong.empty() ? 0 : 1;
}
