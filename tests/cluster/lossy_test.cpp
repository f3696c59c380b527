// A machine behind a bad line: it joins, and is not taken for dead. build/bench/bad_lines does this
// for ten minutes, and says how long joins take.
#include "cluster/bad_line.h"

using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE_FIXTURE(Machines, "40 ms or a loss of 30 % do not make a machine dead") {
  Cluster cluster(2);
  BadLine line;
  SUBCASE("40 ms") {
    line.round_trip = 40ms;
    SUBCASE("static") {}
    SUBCASE("hosts") {
      line.typed = false;
    }
  }
  SUBCASE("30 % lost") {
    // Typed, not by ssh: there chance decides whether a host is found at all (each of several steps
    // in a row may take seconds).
    line.lost_percent = 30;
    line.dead_after = "15";
  }
  shape(cluster, line);
  BadLineJob job(cluster, line);
  CHECK(job.joined() >= 0);
  CHECK(job.lives(6s));
  // Where packets are lost the other node may not hear of the end in time, and says so.
  const std::string wrong = job.end();
  CHECK((line.lost_percent > 0 || wrong == ""));
  CHECK_NOTHING_LEFT(cluster);
}
