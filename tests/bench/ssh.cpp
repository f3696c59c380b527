// Starting one command on N hosts by ssh: our fleet, and OpenSSH's client in the same run.
//   build/bench/ssh [hosts=64] [repetitions=3]     (hosts=1000 takes half a minute)
// The hosts are N sessions of one sshd on this machine, so the wall time is mostly the server's CPU
// on the same cores; what a client costs is its own CPU time and memory. Each case is a process of
// its own: CPU from its start to the last magic line (for OpenSSH that of all clients, until they
// have ended), memory as resident bytes that the sessions add (for OpenSSH the private part of each
// client). Median of the repetitions, the ways interleaved.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "median.h"
#include "ssh/loopback.h"

namespace {

using namespace mtl;
using namespace mtl::test;
using Clock = std::chrono::steady_clock;

struct Cost {
  int started = 0;
  double wall_s = 0, cpu_ms = 0, bytes = 0;  // of all hosts
};

double milliseconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1000 + static_cast<double>(time.tv_usec) / 1000;
}

double cpu_ms(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime);
}

// A line of kB in a file of /proc.
double kilobytes(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key)) return atof(line.c_str() + key.size() + 1);
  }
  return 0;
}

double memory_of_children() {
  double sum = 0;
  // The fleet's thread has started them.
  const std::string self = "/proc/self/task/";
  for (const auto& task : std::filesystem::directory_iterator(self)) {
    std::ifstream in(task.path() / "children");
    for (int pid = 0; in >> pid;) {
      const std::string rollup = "/proc/" + std::to_string(pid) + "/smaps_rollup";
      sum += kilobytes(rollup, "Private_Clean:") + kilobytes(rollup, "Private_Dirty:");
    }
  }
  return sum * 1024;
}

Cost start_all(const FleetOptions& options) {
  Cost cost;
  const bool own = options.ssh_command.empty();
  const double memory = kilobytes("/proc/self/status", "VmRSS:") * 1024;
  const auto begin = Clock::now();
  {
    const auto fleet = start_fleet(options);
    const std::vector<FleetEvent> events = first_events(*fleet, options.hosts.size());
    cost.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
    cost.cpu_ms = cpu_ms(RUSAGE_SELF);
    bool told = false;  // one failure is enough to see why
    for (const FleetEvent& event : events) {
      if (event.kind == FleetEvent::started) ++cost.started;
      if (event.error && !told) fputs(render(*event.error).c_str(), stderr);
      told = told || event.error;
    }
    cost.bytes =
        own ? kilobytes("/proc/self/status", "VmRSS:") * 1024 - memory : memory_of_children();
  }
  if (!own) cost.cpu_ms += cpu_ms(RUSAGE_CHILDREN);
  return cost;
}

Cost in_a_process(const FleetOptions& options) {
  int ends[2];
  Cost cost;
  if (pipe(ends) != 0) return cost;
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Cost mine;
    try {
      mine = start_all(options);
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
    }
    const bool sent = write(ends[1], &mine, sizeof mine) == sizeof mine;
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  if (read(ends[0], &cost, sizeof cost) != sizeof cost) cost = {};
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  return cost;
}

}  // namespace

int main(int argc, char** argv) {
  const int most = argc > 1 ? atoi(argv[1]) : 64;
  const int repetitions = argc > 2 ? atoi(argv[2]) : 3;
  Site site;
  site.sshd("m", "MaxSessions 4096\nMaxStartups 4096\nLogLevel ERROR");
  printf("%-10s %6s %10s %14s %14s\n", "client", "hosts", "wall s", "CPU ms/host", "KiB/host");
  for (int hosts : {1, 4, 64, 1000}) {
    if (hosts > most) break;
    struct Way {
      const char* name;
      const char* command;
      int most;
      std::vector<Cost> costs = {};
    };
    std::vector<Way> ways{{"mtl", "", 1 << 20}, {"OpenSSH", "ssh", 64}};
    const int times = hosts > 64 ? 1 : repetitions;
    for (int i = 0; i < times; ++i) {
      for (Way& way : ways) {
        if (hosts > way.most) continue;
        FleetOptions options = site.options(
            std::vector<std::string>(static_cast<size_t>(hosts), "m"), "exec cat >/dev/null");
        options.ssh_command = way.command;
        options.connect_timeout = std::chrono::seconds(120);
        way.costs.push_back(in_a_process(options));
      }
    }
    for (const Way& way : ways) {
      if (way.costs.empty()) continue;
      const auto of = [&](double Cost::*value) {
        std::vector<double> values;
        for (const Cost& cost : way.costs) values.push_back(cost.*value);
        return median_of(values);
      };
      printf("%-10s %6d %10.3f %14.2f %14.1f", way.name, hosts, of(&Cost::wall_s),
             of(&Cost::cpu_ms) / hosts, of(&Cost::bytes) / hosts / 1024);
      for (const Cost& cost : way.costs) {
        if (cost.started != hosts) printf("  (%d of %d started)", cost.started, hosts);
      }
      printf("\n");
      fflush(stdout);
    }
  }
}
