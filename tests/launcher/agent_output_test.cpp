// What run_agent does with the workers' output: logs, rank 0 on the terminal, last lines, lines of
// other descriptors, slow readers.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <thread>

#include <doctest/doctest.h>

#include "common/error.h"
#include "common/files.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/keeper.h"
#include "launcher/processes.h"
#include "launcher/system/system_error.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

size_t lines_of(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("each rank has a log with whole lines of both streams") {
  TempDir folder;
  AgentOptions options = shells(
      {"i=0; while [ $i -lt 2000 ]; do echo out$i; echo err$i >&2; i=$((i+1)); done", "echo one"});
  options.logs.dir = folder / "logs/deep";
  CHECK(run_agent(options).exit_code == 0);
  std::ifstream in(folder / "logs/deep/rank-00000.log");
  std::string line;
  int next[2] = {0, 0};
  while (std::getline(in, line)) {
    const bool err = line.starts_with("err");
    REQUIRE(line == (err ? "err" : "out") + std::to_string(next[err]++));
  }
  CHECK(next[0] == 2000);
  CHECK(next[1] == 2000);
  CHECK(file_text(folder / "logs/deep/rank-00001.log") == "one\n");
}

TEST_CASE("a log is appended to: a resumed run keeps its history") {
  TempDir folder;
  AgentOptions options = shells({"echo again"});
  options.logs.dir = folder.path();
  run_agent(options);
  run_agent(options);
  CHECK(file_text(folder / "rank-00000.log") == "again\nagain\n");
}

TEST_CASE("the last 20 stderr lines are kept") {
  const AgentResult result = run_agent(shells(
      {"for i in $(seq 1 50); do echo line $i >&2; echo noise; done; printf tail >&2; exit 1"}));
  REQUIRE(result.first_failure);
  // An unfinished line is not whole as long as somebody can go on writing it.
  const auto& lines = result.first_failure->last_lines;
  REQUIRE(lines.size() == 20);
  CHECK(lines.front() == "line 32");
  CHECK(lines.back() == "tail");
}

TEST_CASE("a line of 1 MiB and 100 000 lines") {
  TempDir folder;
  AgentOptions options = shells({"head -c 1048576 /dev/zero | tr '\\0' x; echo; echo end >&2",
                                 "seq 1 100000; seq 1 100000 >&2; exit 1"});
  options.workers[0].argv[2] += "; sleep 1000";
  options.logs.dir = folder.path();
  const AgentResult result = run_agent(options);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->last_lines.size() == 20);
  CHECK(result.first_failure->last_lines.back() == "100000");
  const std::string many = file_text(folder / "rank-00001.log");
  CHECK(lines_of(many) == 200'000);
  CHECK(result.warnings.empty());
}

TEST_CASE("long lines stay whole") {
  TempDir folder;
  AgentOptions options =
      shells({"head -c 1048576 /dev/zero | tr '\\0' x; echo; "
              "head -c 1048576 /dev/zero | tr '\\0' y >&2; echo >&2; exit 3"});
  options.logs.dir = folder.path();
  const AgentResult result = run_agent(options);
  const std::string log = file_text(folder / "rank-00000.log");
  CHECK(lines_of(log) == 2);
  CHECK(log.size() == 2 * 1'048'577);
  const std::string x(1'048'576, 'x');
  CHECK(log.find(x + "\n") != std::string::npos);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->last_lines.back().size() < 3'000);
}

TEST_CASE("a line without an end does not eat the memory") {
  TempDir folder;
  AgentOptions options = shells({"head -c 30000000 /dev/zero"});
  options.logs.dir = folder.path();
  CHECK(run_agent(options).exit_code == 0);
  const std::string log = file_text(folder / "rank-00000.log");
  CHECK(std::count(log.begin(), log.end(), '\0') == 30'000'000);
}

TEST_CASE("any bytes pass") {
  TempDir folder;
  AgentOptions options =
      shells({"i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; "
              "i=$((i+1)); done; echo; printf '\\377\\n' >&2; exit 2"});
  options.logs.dir = folder.path();
  const AgentResult result = run_agent(options);
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const std::string log = file_text(folder / "rank-00000.log");
  CHECK(log.size() == all.size() + 1 + 2);
  CHECK(log.find(all.substr(11)) != std::string::npos);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->last_lines.back() == "\xff");
  CHECK(render(failure_report(result)).find("\xEF\xBF\xBD") != std::string::npos);
}

TEST_CASE("rank 0 goes to stdout and stderr byte for byte, the others do not") {
  TempDir folder;
  for (bool shown : {true, false}) {
    Child agent([&] {
      dup2(open((folder / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
      dup2(open((folder / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
      AgentOptions options =
          shells({"printf 'a\\rb\\0c'; printf 'no newline' >&2", "echo other; echo other >&2"});
      options.logs.console_default = shown ? -1 : 0;
      return run_agent(options).exit_code;
    });
    CHECK(agent.wait() == 0);
    CHECK(file_text(folder / "out") == (shown ? std::string("a\rb\0c", 5) : ""));
    CHECK(file_text(folder / "err") == (shown ? "no newline" : ""));
  }
}

TEST_CASE("a callback gets rank 0's lines instead") {
  AgentOptions options = shells({"echo one; echo two >&2; printf three", "echo other"});
  options.logs.console_default = -1;
  std::vector<std::string> lines[2];
  options.on_output = [&](int rank, bool is_stderr, std::string_view line) {
    CHECK(rank == 0);
    lines[is_stderr].emplace_back(line);
  };
  CHECK(run_agent(options).exit_code == 0);
  CHECK(lines[0] == std::vector<std::string>{"one", "three"});
  CHECK(lines[1] == std::vector<std::string>{"two"});
}

TEST_CASE("lines are read from other descriptors too, to the last one") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  AgentOptions options = shells({"seq 1 5000 >&5; exit 0"});
  options.workers[0].inherit[5] = ends[1];
  std::vector<std::string> lines;
  options.line_sources.push_back(
      {ends[0], [&](std::string_view line) { lines.emplace_back(line); }});
  CHECK(run_agent(options).exit_code == 0);  // our own write end is still open
  REQUIRE(lines.size() == 5000);
  CHECK(lines.front() == "1");
  CHECK(lines.back() == "5000");
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("notices say what happens") {
  AgentOptions options = shells({"sleep 1000", "exit 3"});
  std::string notices;
  options.on_notice = [&](std::string_view line) { notices += std::string(line) + "\n"; };
  run_agent(options);
  CHECK(notices.find("rank 1 exited with code 3") != std::string::npos);
}

TEST_CASE("a reader that has gone does not end the run") {
  TempDir folder;
  Child agent([&] {
    int ends[2];
    if (pipe(ends) != 0) return 99;
    close(ends[0]);
    dup2(ends[1], 1);
    AgentOptions options = shells({"seq 1 1000; exit 0"});
    options.logs.console_default = -1;
    options.logs.dir = folder.path();
    return run_agent(options).exit_code;
  });
  CHECK(agent.wait() == 0);
  CHECK(lines_of(file_text(folder / "rank-00000.log")) == 1000);
}

TEST_CASE("a reader that does not read holds up neither the workers nor the stop") {
  TempDir folder;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const std::string done = folder / "done";
  Child agent([&] {
    dup2(ends[1], 1);
    close(ends[0]);
    close(ends[1]);
    AgentOptions options = shells({"trap 'exit 75' TERM; seq 1 100000; echo $$ > " + done +
                                   "; while :; do sleep 0.02; done"});
    options.logs.console_default = -1;
    options.logs.dir = folder.path();
    return run_agent(options).exit_code;
  });
  close(ends[1]);
  const pid_t worker = pid_in(done);  // 600 kB have gone into a pipe of 64 kB
  REQUIRE(worker > 0);
  kill(agent.pid(), SIGTERM);
  CHECK(wait_until([&] { return !alive(worker); }));
  // Only now somebody reads, and all is there.
  std::string text;
  char buffer[1 << 16];
  ssize_t got;
  while ((got = read(ends[0], buffer, sizeof buffer)) > 0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  CHECK(lines_of(text) == 100'000);
  CHECK(agent.wait() == 75);
  close(ends[0]);
}

TEST_CASE("a blocked callback does not hold up the stop") {
  TempDir folder;
  std::atomic<bool> release = false;
  std::atomic<int> calls = 0;
  AgentOptions options =
      shells({"echo x; echo $$ > " + (folder / "w").string() + "; exit 3", "sleep 1000"});
  options.logs.console_default = -1;
  options.on_output = [&](int, bool, std::string_view) {
    ++calls;
    wait_until([&] { return release.load(); });
  };
  std::thread releaser([&] {
    const pid_t worker = pid_in(folder / "w");
    wait_until([&] { return !alive(worker); });
    release = true;
  });
  CHECK(run_agent(options).exit_code == 3);
  releaser.join();
  CHECK(calls == 1);
}

TEST_CASE("what the system refuses comes with its cure") {
  const auto help = [](int error) {
    return system_error("cannot open the log", error).diagnostics().front().help;
  };
  CHECK(help(EAGAIN).find("ulimit") != std::string::npos);
  CHECK(help(ENOSPC).find("df -h") != std::string::npos);
  CHECK(help(EACCES).find("able to write") != std::string::npos);
}

TEST_CASE("a log that cannot be opened is an error, one that cannot be written a warning") {
  AgentOptions options = shells({"echo x"});
  TempDir folder;
  std::filesystem::create_directories(folder / "rank-00000.log");
  options.logs.dir = folder.path();
  CHECK_THROWS_AS(run_agent(options), Error);
  std::filesystem::remove(folder / "rank-00000.log");
  std::filesystem::create_symlink("/dev/full", folder / "rank-00000.log");
  const AgentResult result = run_agent(options);
  CHECK(result.exit_code == 0);
  REQUIRE(result.warnings.size() == 1);
  CHECK(result.warnings[0].find("No space left") != std::string::npos);
}

TEST_CASE("what could not be written to the console is said, readers that are gone are not") {
  const auto warnings_to = [](const char* path) {
    AgentOptions options = shells({"echo x"});
    options.logs.console_default = 3;
    const Fd kept(dup(STDOUT_FILENO));
    fflush(stdout);
    if (path != nullptr) {
      const Fd other(open(path, O_WRONLY | O_CLOEXEC));
      dup2(other.get(), STDOUT_FILENO);
    } else {
      int ends[2];
      REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
      close(ends[0]);
      const Fd other(ends[1]);
      dup2(other.get(), STDOUT_FILENO);
    }
    const AgentResult result = run_agent(options);
    dup2(kept.get(), STDOUT_FILENO);
    CHECK(result.exit_code == 0);
    return result.warnings;
  };
  const auto full = warnings_to("/dev/full");
  REQUIRE(full.size() == 1);
  CHECK(full[0] == "what was written to stdout is incomplete: No space left on device");
  CHECK(warnings_to(nullptr).empty());
}

TEST_CASE("exit codes are explained where they are mtl's own") {
  for (const int code : {5, 7}) {
    const AgentResult result = run_agent(shells({"exit " + std::to_string(code)}));
    CHECK(failure_report(result).help.starts_with("see "));
    CHECK_FALSE(failure_report(result, true).help.starts_with("see "));
  }
  // Best by the rank itself, in its last words.
  const AgentResult said =
      run_agent(shells({"printf 'error[x.y]: full\n  help: free space\nnoise\n' >&2; exit 4"}));
  CHECK(failure_report(said, true).help.starts_with("free space; see "));
  CHECK(failure_report(said).help.starts_with("see "));
  // Nothing of it is there twice; of a foreign program all is quoted.
  const auto count_of = [](const std::string& text, const std::string& word) {
    size_t n = 0;
    for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++n;
    return n;
  };
  const std::string text = render(failure_report(said, true));
  CAPTURE(text);
  CHECK(count_of(text, "free space") == 1);
  CHECK(count_of(text, "| error[x.y]: full\n") == 1);
  CHECK(count_of(text, "| noise\n") == 1);
  CHECK(count_of(render(failure_report(said)), "|   help: free space\n") == 1);
  // Warnings are told by themselves, in front of the report.
  AgentResult warned = said;
  warned.warnings = {"the log is incomplete"};
  CHECK(render(failure_report(warned, true)) == text);
}

TEST_CASE("the failure report is the headline") {
  TempDir folder;
  AgentOptions options = shells({"sleep 1000", "echo 'bad \033[31mthing' >&2; kill -KILL $$"});
  options.logs.dir = folder.path();
  const AgentResult result = run_agent(options);
  const Diagnostic report = failure_report(result);
  CHECK(report.code == "rank.died");
  CHECK(report.what ==
        "rank 1 (pid " + std::to_string(result.first_failure->pid) + ") was killed by SIGKILL");
  const std::string text = render(report);
  CHECK(text.find("| bad thing\n") != std::string::npos);
  CHECK(text.find("1 other rank was stopped because of it") != std::string::npos);
  CHECK(text.find((folder / "rank-00001.log").string()) != std::string::npos);
  CHECK(text.find("after the start") != std::string::npos);
  CHECK(!report.help.empty());
  options.workers[1].argv[2] = "exit 42";
  CHECK(failure_report(run_agent(options)).what.find("exited with code 42") != std::string::npos);
}

TEST_CASE("a report without a failure is a warning") {
  AgentResult result;
  result.interrupted = true;
  const Diagnostic report = failure_report(result);
  CHECK(report.severity == Diagnostic::Severity::warning);
  CHECK(report.code == "run.stopped");
}

TEST_CASE("a process with several ranks is named and counted by its ranks") {
  AgentOptions options = shells({"sleep 1000", "exit 6"});
  options.workers[0].ranks = 4;
  options.workers[1].rank = 4;
  options.workers[1].ranks = 2;
  std::string notices;
  options.on_notice = [&](std::string_view line) { notices += line; };
  const AgentResult result = run_agent(options);
  CHECK(result.exit_code == 6);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->ranks == 2);
  CHECK(notices == "ranks 4-5 exited with code 6: asked 4 ranks to stop");
  const Diagnostic report = failure_report(result);
  CHECK(report.what.find("ranks 4-5 (pid ") == 0);
  CHECK(render(report).find("4 other ranks were stopped because of it") != std::string::npos);
}
