// The rows of four machines (a lab of namespaces with real sshd). Each worker stamps its start, so
// that a restart is timed from the workers' side, whoever launches.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>

#include "bench/launch/bench.h"
#include "cluster/lab/lab.h"
#include "support/text.h"

namespace mtl::bench {
namespace {

using namespace std::chrono_literals;
using mtl::test::Command;
using mtl::test::CommandEnd;
using mtl::test::Lab;
namespace fs = std::filesystem;

constexpr int kMachines = 4;
constexpr int kWorld = 8;
const std::string kHosts = "m1:2,m2:2,m3:2,m4:2";

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The workers' program: stamps its start, then sleeps. Asked to crash, rank 5 does so once, a
// little after everybody has started. (Generations are told by time: torchrun's restart count
// differs between its nodes.)
const char* const kWorker = R"SH(#!/bin/sh
name=$RANK-$(hostname)-$$
date +%s.%N > "$1/.$name"
mv "$1/.$name" "$1/start-$name"
if [ "$2" = crash ] && [ "$RANK" = 5 ] && [ ! -e "$1/crash" ]; then
  while [ "$(ls "$1" | grep -c '^start-')" -lt 8 ]; do sleep 0.01; done
  sleep 0.3
  date +%s.%N > "$1/.crash"
  mv "$1/.crash" "$1/crash"
  exit 1
fi
exec sleep 600
)SH";

class Bench {
 public:
  explicit Bench(const Setup& setup) : setup_(setup), lab_(kMachines) {
    worker_ = lab_.dir() / "worker.sh";
    std::ofstream(worker_) << kWorker;
    fs::permissions(worker_, fs::perms(0755));
  }

  void rows();

 private:
  // mtl over the four machines, from the head.
  Words mtl(const Words& options, const Words& program) const {
    Words words = {setup_.mtl, "launch", "--hosts", kHosts};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("--");
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }
  Words mpirun(const Words& program) const {
    Words words = {"mpirun",
                   "--allow-run-as-root",
                   "--host",
                   kHosts,
                   "-np",
                   "8",
                   "--mca",
                   "oob_tcp_if_include",
                   "eth0",
                   "--mca",
                   "btl_tcp_if_include",
                   "eth0"};
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }
  // One torchrun on each of the first `machines`, started by ssh as a person's script would.
  Words torchrun(int machines, const std::string& nodes, const Words& program) const {
    std::string agent = "/usr/bin/python3 " + (setup_.dir / "torchrun.py").string() + " --nnodes " +
                        nodes + " --nproc_per_node 2 --monitor_interval 0.1 " +
                        "--max_restarts 3 --rdzv_backend c10d --rdzv_id b --rdzv_endpoint m1:" +
                        std::to_string(port_) + " --no_python";
    for (const std::string& word : program) agent += " " + word;
    std::string script;
    for (int i = 1; i <= machines; ++i)
      script += "ssh m" + std::to_string(i) + " '" + agent + "' & ";
    return {"/bin/sh", "-c", script + "wait"};
  }

  fs::path fresh() {
    const fs::path dir = lab_.dir() / ("stamps-" + std::to_string(++count_));
    fs::create_directory(dir);
    ++port_;
    return dir;
  }
  // When the `count`th of the workers that started after `since` did so; < 0 after `limit`.
  static double started(const fs::path& dir, double since, size_t count,
                        std::chrono::milliseconds limit) {
    const auto until = Clock::now() + limit;
    while (Clock::now() < until) {
      std::vector<double> found;
      for (const auto& entry : fs::directory_iterator(dir)) {
        if (!entry.path().filename().string().starts_with("start-")) continue;
        const double stamp = std::stod(test::file_text(entry.path()));
        if (stamp > since) found.push_back(stamp);
      }
      std::sort(found.begin(), found.end());
      if (found.size() >= count) return found[count - 1];
      std::this_thread::sleep_for(2ms);
    }
    return -1;
  }
  // Whatever is left on the machines after a row is ended by its pid.
  void clean() {
    for (int i = 0; i <= kMachines; ++i) {
      for (const auto& process : lab_.processes(i)) ::kill(process.pid, SIGKILL);
    }
    for (int i = 0; i <= kMachines; ++i) {
      const auto until = Clock::now() + 10s;
      while (!lab_.processes(i).empty() && Clock::now() < until) std::this_thread::sleep_for(2ms);
    }
  }
  Measured whole(const Words& argv) {
    const CommandEnd end = lab_.head(argv, env());
    const double seconds = std::chrono::duration<double>(end.took).count();
    clean();
    return {seconds, "code " + std::to_string(end.code)};
  }
  static std::map<std::string, std::string> env() { return {{"PATH", "/usr/bin:/bin:/usr/sbin"}}; }

  Measured crash(const std::function<Words(const Words&)>& launch) {
    const fs::path dir = fresh();
    Command job = lab_.start(0, launch({worker_.string(), dir.string(), "crash"}), env());
    double died = -1, again = -1;
    for (const auto until = Clock::now() + 60s; died < 0 && Clock::now() < until;) {
      if (fs::exists(dir / "crash")) died = std::stod(test::file_text(dir / "crash"));
      std::this_thread::sleep_for(2ms);
    }
    if (died > 0) again = started(dir, died, kWorld, 60s);
    const std::string said = died < 0 ? "did not start" : again < 0 ? "not in 60 s" : "all 8 again";
    job.signal(SIGKILL);
    job.wait(10s);
    clean();
    return {again < 0 ? -1 : again - died, said};
  }

  // Something befalls machine 4 while all run: until six ranks have started again.
  Measured lost(const std::function<Words(const Words&)>& launch, const std::string& how,
                std::chrono::milliseconds limit) {
    const fs::path dir = fresh();
    Command job = lab_.start(0, launch({worker_.string(), dir.string(), "run"}), env());
    Measured measured{-1, "did not start"};
    if (started(dir, 0.0, kWorld, 60s) > 0) {
      std::this_thread::sleep_for(1s);
      const double since = now();
      how == "cut" ? lab_.cut(4) : lab_.freeze(4);
      const auto until = Clock::now() + limit;
      double noticed = -1, again = -1;
      while (again < 0 && Clock::now() < until && job.running()) {
        if (noticed < 0 && (job.err() + job.out()).find("m4") != std::string::npos) {
          noticed = now() - since;
        }
        again = started(dir, since, 6, 5ms);
      }
      char text[80];
      std::snprintf(text, sizeof text, "named after %.2f s", noticed);
      measured = {again < 0 ? -1 : again - since, noticed < 0 ? "m4 not named" : text};
      how == "cut" ? lab_.heal(4) : lab_.thaw(4);
    }
    job.signal(SIGKILL);
    job.wait(10s);
    clean();
    return measured;
  }

  // A stopped rank: until the launcher has ended or the others were started again.
  Measured stopped(const std::function<Words(const Words&)>& launch,
                   std::chrono::milliseconds limit) {
    const fs::path dir = fresh();
    Command job = lab_.start(0, launch({worker_.string(), dir.string(), "run"}), env());
    Measured measured{-1, "did not start"};
    if (started(dir, 0.0, kWorld, 60s) > 0) {
      std::this_thread::sleep_for(500ms);
      for (const auto& process : lab_.processes(3)) {
        if (process.command.starts_with("sleep 600")) {
          ::kill(process.pid, SIGSTOP);
          break;
        }
      }
      const double since = now();
      const CommandEnd end = job.wait(limit);
      measured = {end.code < 0 ? -1 : now() - since,
                  end.code < 0 ? "still there" : "code " + std::to_string(end.code)};
    }
    clean();
    return measured;
  }

  // m4's sshd refuses: until six ranks run.
  Measured three_of_four(const std::function<Words(const Words&)>& launch) {
    const fs::path dir = fresh();
    lab_.stop_sshd(4);
    const double since = now();
    Command job = lab_.start(0, launch({worker_.string(), dir.string(), "run"}), env());
    const double up = started(dir, 0.0, 6, 60s);
    const std::string said = up < 0 ? "did not start" : "6 ranks";
    job.signal(SIGKILL);
    job.wait(10s);
    lab_.start_sshd(4);
    clean();
    return {up < 0 ? -1 : up - since, said};
  }

  // Machine 0 of two waits for one that never comes: until it says so, then Ctrl-C.
  Measured missing(const Words& argv, const std::string& says) {
    Command job = lab_.start(1, argv, env());
    const double since = now();
    const bool said = job.says(says, 20s);
    const double after = now() - since;
    const double asked = now();
    job.signal(SIGINT);
    const CommandEnd end = job.wait(10s);
    char text[120];
    std::snprintf(text, sizeof text, "Ctrl-C: %s %.2f s, code %d",
                  end.code < 0 ? "still there after" : "gone after", now() - asked, end.code);
    clean();
    return {said ? after : -1, text};
  }

  const Setup& setup_;
  Lab lab_;
  fs::path worker_;
  int count_ = 0;
  int port_ = 29600;
};

void Bench::rows() {
  const std::string mtl_absent = setup_.has_flag("hosts") ? "" : "not yet";
  const std::string elastic_absent =
      setup_.has_flag("hosts") && setup_.has_flag("max_restarts") && setup_.has_flag("dead_after")
          ? ""
          : "not yet";
  const std::string torch_absent = setup_.has_torch ? "" : "not installed";
  const std::string mpi_absent = setup_.has_mpirun ? "" : "not installed";
  const Words hold = {"--max_restarts", "3", "--grace", "2"};
  const Words elastic = {"--nnodes",     "3:4", "--max_restarts", "3",
                         "--dead_after", "5",   "--grace",        "2"};
  const auto ours = [&](const Words& options) {
    return [this, options](const Words& program) { return mtl(options, program); };
  };
  const auto theirs = [&](int machines, const std::string& nodes) {
    return [this, machines, nodes](const Words& program) {
      return torchrun(machines, nodes, program);
    };
  };

  row("4 ssh machines x 2, true", "<= 0.30 s", setup_.runs,
      {{"mtl", [&] { return whole(mtl({}, {"/bin/true"})); }, mtl_absent},
       {"mpirun", [&] { return whole(mpirun({"/bin/true"})); }, mpi_absent},
       {"torchrun by ssh",
        [&] {
          fresh();
          return whole(torchrun(4, "4", {"/bin/true"}));
        },
        torch_absent, 2}});
  row("rank 5 crashes: until all 8 run again", "<= 0.3 s", setup_.runs,
      {{"mtl", [&] { return crash(ours(hold)); }, elastic_absent},
       {"torchrun by ssh", [&] { return crash(theirs(4, "4")); }, torch_absent, 2}});
  row("cable of 1 of 4 cut: until 3 machines go on", "named <= 5.5 s, on <= 6 s", 2,
      {{"mtl", [&] { return lost(ours(elastic), "cut", 30s); }, elastic_absent},
       {"torchrun by ssh", [&] { return lost(theirs(4, "3:4"), "cut", 20s); }, torch_absent, 1}});
  row("1 of 4 machines frozen: until 3 go on", "named <= 5.5 s", 2,
      {{"mtl", [&] { return lost(ours(elastic), "freeze", 30s); }, elastic_absent},
       {"torchrun by ssh", [&] { return lost(theirs(4, "3:4"), "freeze", 20s); }, torch_absent,
        1}});
  row("SIGSTOP of a rank: until the job ends", "<= 5.5 s, named", 2,
      {{"mtl",
        [&] {
          return stopped(ours({"--grace", "2"}), 30s);
        },
        mtl_absent},
       {"mpirun",
        [&] {
          // RANK is torch's word; Open MPI's is another.
          return stopped(
              [this](const Words& program) {
                std::string line = "RANK=$OMPI_COMM_WORLD_RANK exec";
                for (const std::string& word : program) line += " " + word;
                return mpirun({"/bin/sh", "-c", line});
              },
              20s);
        },
        mpi_absent, 1},
       {"torchrun by ssh", [&] { return stopped(theirs(4, "4"), 20s); }, torch_absent, 1}});
  row("3:4 machines, the fourth refuses ssh: until 6 ranks run", "<= 1 s", 2,
      {{"mtl", [&] { return three_of_four(ours(elastic)); }, elastic_absent},
       {"torchrun on three", [&] { return three_of_four(theirs(3, "3:4")); }, torch_absent, 1}});
  row("static, machine 1 of 2 never comes: until it is named", "5 s; Ctrl-C at once", 1,
      {{"mtl",
        [&] {
          return missing({setup_.mtl, "launch", "--num_machines", "2", "--machine_rank", "0",
                          "--main_process_ip", Lab::address(1), "--main_process_port", "29700",
                          "--num_processes", "4", "--", "/bin/true"},
                         "machine_rank 1");
        },
        setup_.has_flag("machine_rank") ? "" : "not yet"},
       {"torchrun, static",
        [&] {
          return missing({"/usr/bin/python3", (setup_.dir / "torchrun.py").string(), "--nnodes",
                          "2", "--node_rank", "0", "--nproc_per_node", "2", "--master_addr",
                          Lab::address(1), "--master_port", "29701", "--no_python", "/bin/true"},
                         "rank 1");
        },
        torch_absent}});
}

}  // namespace

void cluster_rows(const Setup& setup) {
  const std::string reason = Lab::missing();
  if (!reason.empty()) {
    std::printf("\nno rows of several machines: %s\n", reason.c_str());
    return;
  }
  std::printf("\nfour machines: namespaces with sshd on this one\n\n");
  print_head();
  Bench(setup).rows();
}

}  // namespace mtl::bench
