// What the agent finds out about a failure: the rank's own words (TORCHELASTIC_ERROR_FILE), its
// core, who was first; and how the report says it. Binding to CPUs is here too, since it can fail.
#include <chrono>
#include <csignal>
#include <ctime>
#include <fstream>
#include <sched.h>

#include <doctest/doctest.h>

#include "launcher/agent/agent.h"
#include "launcher/agent/error_file.h"
#include "launcher/processes.h"
#include "launcher/system/core_file.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// As torch writes it.
std::string torch_error(const std::string& message, std::time_t when) {
  return R"({"message": {"message": ")" + message +
         R"(", "extraInfo": {"py_callstack": "Traceback ...\n", "timestamp": ")" +
         std::to_string(when) + R"("}}})";
}

int first_cpu() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) return cpu;
  }
  return -1;
}

std::string what_of(const AgentOptions& options, int& code) {
  try {
    run_agent(options);
  } catch (const Error& error) {
    code = static_cast<int>(error.exit());
    return error.diagnostics().front().code + " " + error.diagnostics().front().what;
  }
  return {};
}

}  // namespace

TEST_CASE("the error file's message is in the report") {
  TempDir folder;
  const std::filesystem::path file = folder / "errors/deep/rank-0.json";
  write(folder / "source", torch_error("ValueError: bad shape\\nsecond line", time(nullptr)));
  AgentOptions options =
      shells({"cp " + (folder / "source").string() + " $TORCHELASTIC_ERROR_FILE; exit 1"});
  options.workers[0].error_file = file;
  const AgentResult result = run_agent(options);
  CHECK(result.exit_code == 1);
  CHECK(std::filesystem::exists(file));
  const std::string report = render(failure_report(result));
  CHECK(report.find("its error: ValueError: bad shape\n") != std::string::npos);
  CHECK(report.find("second line") != std::string::npos);
}

TEST_CASE("an error file of an earlier process is not this one's") {
  TempDir folder;
  write(folder / "old.json", torch_error("old", time(nullptr) - 100));
  AgentOptions options = shells({"exit 1"});
  options.workers[0].error_file = folder / "old.json";
  const AgentResult result = run_agent(options);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->notes.empty());
}

TEST_CASE("an error file that cannot be read as one is ignored") {
  TempDir folder;
  for (const char* text : {"", "{", "[]", "7", R"({"message": 3})", R"({"message": {}})",
                           R"({"message": {"message": [1]}})", "{\"message\": \"\xff\xfe\"}"}) {
    write(folder / "e", text);
    CAPTURE(std::string(text));
    CHECK(!read_error_file(folder / "e"));
  }
  CHECK(!read_error_file(folder / "none"));
  CHECK(!read_error_file(folder.path()));
}

TEST_CASE("the forms of an error file") {
  TempDir folder;
  write(folder / "e", R"({"message": "plain"})");
  REQUIRE(read_error_file(folder / "e"));
  CHECK(read_error_file(folder / "e")->message == "plain");
  CHECK(!read_error_file(folder / "e")->when);
  for (const char* text :
       {R"({"message": "m", "timestamp": 1700000000})",
        R"({"message": "m", "timestamp": "1700000000"})",
        R"({"message": {"message": "m", "extraInfo": {"timestamp": 1700000000}}})",
        R"({"message": {"message": "m", "errorCode": 3,
                               "extraInfo": {"timestamp": "1700000000"}}})"}) {
    write(folder / "e", text);
    const auto error = read_error_file(folder / "e");
    REQUIRE(error);
    REQUIRE(error->when);
    CHECK(std::chrono::system_clock::to_time_t(*error->when) == 1'700'000'000);
    CHECK(error->message == "m");
  }
  write(folder / "e", R"({"message": {"message": "m", "extraInfo": {"timestamp": "soon"}}})");
  CHECK(!read_error_file(folder / "e")->when);
}

TEST_CASE("who wrote its error first has failed first") {
  TempDir folder;
  const std::string f = folder.path();
  // Rank 0 fails, writes so, and takes long to end; rank 1 dies of the lost connection.
  write(folder / "source", torch_error("the cause", time(nullptr) - 30));
  const std::string cause = "trap '' TERM; cp " + f + "/source $TORCHELASTIC_ERROR_FILE; echo > " +
                            f + "/written; while [ ! -s " + f +
                            "/gone ]; do sleep 0.01; done; while kill -0 $(cat " + f +
                            "/gone) 2> " + f + "/null; do sleep 0.01; done; ";
  AgentOptions options = shells(
      {cause + "exit 5",
       "while [ ! -s " + f + "/written ]; do sleep 0.01; done; echo $$ > " + f + "/gone; exit 3"});
  options.workers[0].error_file = folder / "0.json";
  options.workers[1].error_file = folder / "1.json";
  SUBCASE("with a code of its own") {}
  SUBCASE("killed by our TERM") {
    options.workers[0].argv[2] =
        "cp " + f + "/source $TORCHELASTIC_ERROR_FILE; echo > " + f + "/written; exec sleep 1000";
  }
  const AgentResult result = run_agent(options);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->rank == 0);
  CHECK(!result.first_failure->stopped_by_us);
  CHECK(result.exit_code == result.first_failure->exit_code);
  CHECK((result.exit_code == 5 || result.exit_code == 128 + SIGTERM));
  CHECK(render(failure_report(result)).find("then rank 1 exited with code 3") != std::string::npos);
}

TEST_CASE("an error written after the request to stop is no cause") {
  TempDir folder;
  const std::string f = folder.path();
  write(folder / "source", torch_error("asked to stop", time(nullptr) + 1'000));
  AgentOptions options =
      shells({"trap 'cp " + f + "/source $TORCHELASTIC_ERROR_FILE; exit 1' TERM; echo $$ > " + f +
                  "/0; while :; do sleep 0.01; done",
              "while [ ! -s " + f + "/0 ]; do sleep 0.01; done; exit 3"});
  options.workers[0].error_file = folder / "0.json";
  const AgentResult result = run_agent(options);
  CHECK(result.exit_code == 3);
  CHECK(result.ends.back().stopped_by_us);
}

TEST_CASE("where a core went") {
  CHECK(core_note("core", false, "/bin/prog", 42) ==
        "a core was dumped: core in its working directory");
  CHECK(core_note("core", true, "/bin/prog", 42) ==
        "a core was dumped: core.42 in its working directory");
  CHECK(core_note("/var/%e.%p.%t%%", true, "/bin/prog", 42) ==
        "a core was dumped: /var/prog.42.*%");
  CHECK(core_note("|/lib/systemd/systemd-coredump %P %u", false, "p", 42) ==
        "a core was dumped: coredumpctl gdb 42");
  CHECK(core_note("|/usr/share/apport/apport -p%p", false, "p", 42) ==
        "a core was dumped and given to /usr/share/apport/apport");
}

TEST_CASE("a core that was dumped is said") {
  TempDir folder;
  AgentOptions options = shells({"cd " + folder.path().string() +
                                 "; ulimit -c unlimited 2>/dev/null || exit 0; kill -SEGV $$"});
  const AgentResult result = run_agent(options);
  std::ifstream pattern("/proc/sys/kernel/core_pattern");
  std::string text;
  std::getline(pattern, text);
  if (result.exit_code == 0 || text.starts_with('|') || text.starts_with('/')) {
    MESSAGE("no core in the working directory on this machine");
    return;
  }
  REQUIRE(result.first_failure);
  REQUIRE(result.first_failure->notes.size() == 1);
  CHECK(result.first_failure->notes[0].find("a core was dumped: core") == 0);
  CHECK(failure_report(result).help.find("gdb") != std::string::npos);
  options.workers[0].argv[2] = "ulimit -c 0; kill -SEGV $$";
  CHECK(run_agent(options).first_failure->notes.empty());
}

TEST_CASE("a failure on another host says where") {
  AgentResult result;
  WorkerEnd end;
  end.rank = 5;
  end.local_rank = 1;
  end.host = "m3";
  end.pid = 4242;
  end.exit_code = 42;
  end.log = "/runs/a/logs/rank-00005.log";
  end.notes = {"its error: \x1b[31mbad\x1b[0m"};
  result.ends = {end};
  result.first_failure = end;
  const Diagnostic report = failure_report(result);
  CHECK(report.what == "rank 5 (local 1 on m3, pid 4242) exited with code 42");
  const std::string text = render(report);
  CHECK(text.find("log: m3:/runs/a/logs/rank-00005.log") != std::string::npos);
  CHECK(text.find("its error: bad\n") != std::string::npos);
}

TEST_CASE("a worker runs on its CPUs") {
  TempDir folder;
  AgentOptions options = shells({"grep Cpus_allowed_list /proc/self/status"});
  options.logs.dir = folder.path();
  const int cpu = first_cpu();
  REQUIRE(cpu >= 0);
  options.workers[0].cpus = {cpu};
  options.workers[0].numa = 0;
  CHECK(run_agent(options).exit_code == 0);
  CHECK(file_text(folder / "rank-00000.log") ==
        "Cpus_allowed_list:\t" + std::to_string(cpu) + "\n");
  // Nobody has that one: refused for the memory, an error for the CPU.
  options.workers[0].numa = 900;
  CHECK(run_agent(options).exit_code == 0);
  options.workers[0].cpus = {8'000};
  int code = 0;
  const std::string what = what_of(options, code);
  CHECK(what.find("launch.affinity rank 0 cannot be bound to CPU 8000") == 0);
  CHECK(code == 4);
}

TEST_CASE("a worker prefers its NUMA node") {
  TempDir folder;
  AgentOptions options = shells({"head -1 /proc/self/numa_maps"});
  options.logs.dir = folder.path();
  options.workers[0].numa = 0;
  CHECK(run_agent(options).exit_code >= 0);
  const std::string maps = file_text(folder / "rank-00000.log");
  if (maps.find("default") != std::string::npos || maps.empty()) {
    MESSAGE("no memory policies on this machine: ", maps);
  } else {
    CHECK(maps.find("prefer") != std::string::npos);
  }
}
