// A machine behind a bad line: is it taken for dead, and how long does it take to join? Every
// setting has a lab of its own, all of them side by side.
//   build/bench/bad_lines [minutes=10] [joins=20] [only settings with this in their name]
#define DOCTEST_CONFIG_IMPLEMENT
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include <sys/wait.h>

#include "cluster/bad_line.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Prints its row, and what was said of a false death.
void measure(const BadLine& line, double minutes, int joins) {
  Cluster cluster(2);
  shape(cluster, line);
  std::vector<double> times;
  int failed = 0;
  std::string said;
  for (int i = 0; i < joins; ++i) {
    BadLineJob job(cluster, line);
    const double took = job.joined();
    if (took >= 0) times.push_back(took);
    const std::string wrong = job.end();
    if (took >= 0) continue;
    ++failed;
    said += wrong;
  }
  // Again and again, should it die before its time.
  const auto start = std::chrono::steady_clock::now();
  int deaths = 0;
  for (double left = 60 * minutes; left > 0; left = 60 * minutes - since(start)) {
    BadLineJob job(cluster, line);
    if (job.joined() >= 0 && !job.lives(Milliseconds(static_cast<int64_t>(1000 * left)))) ++deaths;
    said += job.end();
  }
  std::sort(times.begin(), times.end());
  std::string row(200, '\0');
  row.resize(static_cast<size_t>(snprintf(row.data(), row.size(), "%-38s", line.text().c_str())));
  if (!times.empty()) {
    char text[100];
    snprintf(text, sizeof text, "  %5.2f  %5.2f  %5.2f  %5.2f", times.front(),
             times[times.size() / 2], times[times.size() * 9 / 10], times.back());
    row += text;
  }
  row += "  " + std::to_string(failed) + " of " + std::to_string(joins) + " failed, " +
         std::to_string(deaths) + " false deaths in " + std::to_string(minutes).substr(0, 4) +
         " min\n" + said;
  (void)!write(STDOUT_FILENO, row.data(), row.size());
}

}  // namespace

int main(int argc, char** argv) {
  const double minutes = argc > 1 ? std::atof(argv[1]) : 10;
  const int joins = argc > 2 ? std::atoi(argv[2]) : 20;
  const std::string only = argc > 3 ? argv[3] : "";
  if (const std::string missing = Lab::missing(); !missing.empty()) {
    printf("no machines to test on: %s\n", missing.c_str());
    return 1;
  }
  printf("%-38s  joins, s: best, median, 90 %%, worst\n", "");
  fflush(stdout);
  int started = 0;
  for (const bool typed : {true, false}) {
    for (const char* dead_after : {"5", "10", "15", "30"}) {
      for (const int lost : {0, 30}) {
        const BadLine line{.round_trip = lost > 0 ? 0ms : 40ms,
                           .lost_percent = lost,
                           .typed = typed,
                           .dead_after = dead_after};
        if ((lost == 0 && line.dead_after != "5") || !has(line.text(), only)) continue;
        ++started;
        if (fork() == 0) {
          measure(line, minutes, joins);
          _exit(0);
        }
      }
    }
  }
  while (started > 0 && wait(nullptr) > 0) --started;
  return 0;
}
