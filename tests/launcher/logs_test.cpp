// The parts of the logs: the queue that drops, files that rotate, lines for a shared console; and
// which output run_agent sends where.
#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <future>
#include <thread>

#include <sys/eventfd.h>
#include <sys/stat.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/error.h"
#include "launcher/agent/agent.h"
#include "launcher/new_terminal.h"
#include "launcher/output/console_lines.h"
#include "launcher/output/log_file.h"
#include "launcher/output/outlet.h"
#include "launcher/processes.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// A consumer that stands still until it is let go.
struct Slow {
  std::promise<void> entered, go;
  std::shared_future<void> released = go.get_future().share();
  std::string text;
  bool first = true;
  Consumer consumer;
  Slow() {
    consumer.write = [this](std::string_view block) {
      if (first) entered.set_value();
      first = false;
      released.wait();
      text += block;
    };
    consumer.gap = [](int64_t bytes) { return fmt::format("[{} lost]\n", bytes); };
  }
};

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  each_line(text, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

struct Shown {
  std::string out, err;
  int code = -1;
};

// Runs it in a process of its own, whose stdout and stderr are files.
Shown shown_by(const AgentOptions& options) {
  TempDir folder;
  Child agent([&] {
    dup2(open((folder / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    dup2(open((folder / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    return run_agent(options).exit_code;
  });
  Shown shown;
  shown.code = agent.wait();
  shown.out = file_text(folder / "out");
  shown.err = file_text(folder / "err");
  return shown;
}

AgentOptions three() {
  AgentOptions options;
  for (int rank = 0; rank < 3; ++rank) {
    options.workers.push_back(shell(rank, "echo o$RANK; echo e$RANK >&2"));
  }
  return options;
}

std::string sorted(const std::string& text) {
  std::vector<std::string> lines = lines_in(text);
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

}  // namespace

TEST_CASE("a full queue drops, says where, and takes again when half of it is free") {
  Slow slow;
  const Fd wake(eventfd(0, EFD_CLOEXEC));
  int64_t dropped = 0;
  {
    Outlet outlet(1'000, wake.get(), Outlet::Policy::drop);
    outlet.push(slow.consumer, "first\n");
    slow.entered.get_future().wait();  // in the consumer's hand now
    std::string kept(1'500, 'x');
    kept.back() = '\n';
    outlet.push(slow.consumer, kept);  // the queue takes what is there when it is not full
    CHECK(outlet.accepts());
    for (int i = 0; i < 10; ++i) outlet.push(slow.consumer, "lost line\n");
    dropped = outlet.dropped_bytes();
    CHECK(slow.consumer.lost_in_all == 100);
    slow.go.set_value();
    CHECK(wait_until([&] {
      outlet.push(slow.consumer, "again\n");
      return slow.consumer.lost == 0;
    }));
  }
  CHECK(dropped == 100);
  const std::vector<std::string> lines = lines_in(slow.text);
  REQUIRE(lines.size() >= 4);
  CHECK(lines[0] == "first");
  CHECK(lines[1].size() == 1'499);
  CHECK(lines[2] == fmt::format("[{} lost]", slow.consumer.lost_in_all));
  CHECK(lines[3] == "again");
}

TEST_CASE("a gap at the end is said too") {
  Slow slow;
  const Fd wake(eventfd(0, EFD_CLOEXEC));
  {
    Outlet outlet(10, wake.get(), Outlet::Policy::drop);
    outlet.push(slow.consumer, "first line\n");
    slow.entered.get_future().wait();
    outlet.push(slow.consumer, "second\n");
    outlet.close_gap(slow.consumer);
    outlet.close_gap(slow.consumer);
    slow.go.set_value();
  }
  CHECK(slow.text == "first line\n[7 lost]\n");
}

TEST_CASE("somebody's pipe is waited for as long as it moves") {
  Slow slow;
  const Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Outlet outlet(10, wake.get(), Outlet::Policy::wait);
  outlet.push(slow.consumer, "a long first line\n");
  slow.entered.get_future().wait();
  CHECK(!outlet.accepts());
  outlet.push(slow.consumer, "second\n");  // pushed all the same: kept
  slow.go.set_value();
  CHECK(wait_until([&] { return outlet.accepts(); }));
  eventfd_t woken = 0;
  CHECK(wait_until([&] { return eventfd_read(wake.get(), &woken) == 0; }));
  CHECK(outlet.dropped_bytes() == 0);
}

TEST_CASE("a log rotates between lines and loses none") {
  TempDir folder;
  const std::filesystem::path path = folder / "rank.log";
  std::string all;
  {
    LogFile log(path, 100, 3);
    std::string block;
    for (int i = 0; i < 40; ++i) {
      block += fmt::format("line {}\n", i);
      if (i % 7 == 6 || i == 39) {
        log.write(block);
        block.clear();
      }
    }
    CHECK(log.error() == 0);
  }
  for (const char* suffix : {".3", ".2", ".1", ""}) {
    const std::string text = file_text(path.string() + suffix);
    CHECK(text.size() <= 100);
    CHECK(text.ends_with('\n'));
    all += text;
  }
  const std::vector<std::string> lines = lines_in(all);
  REQUIRE(lines.size() == 40);
  for (size_t i = 0; i < lines.size(); ++i) CHECK(lines[i] == fmt::format("line {}", i));
  // One more file than is kept: the oldest goes, and a restart appends.
  { LogFile(path, 100, 3).write(std::string(99, 'n') + "\n"); }
  CHECK(file_text(path) == std::string(99, 'n') + "\n");
  CHECK(lines_in(file_text(path.string() + ".3")).front() != "line 0");
  CHECK(!std::filesystem::exists(path.string() + ".4"));
  { LogFile(path, 0, 3).write("more\n"); }
  CHECK(file_text(path).ends_with("n\nmore\n"));
}

TEST_CASE("a line larger than a log file has one for itself") {
  TempDir folder;
  const std::filesystem::path path = folder / "rank.log";
  const std::string big = std::string(500, 'b') + "\n";
  LogFile log(path, 100, 4);
  log.write("small\n" + big + "after\n");
  CHECK(file_text(path.string() + ".2") == "small\n");
  CHECK(file_text(path.string() + ".1") == big);
  CHECK(file_text(path) == "after\n");
}

TEST_CASE("a log that cannot be moved aside grows on") {
  TempDir folder;
  const std::filesystem::path path = folder / "rank.log";
  std::filesystem::create_directories(path.string() + ".1/full");
  LogFile log(path, 10, 1);
  log.write("123456\n");
  log.write("789012\n");
  CHECK(log.error() == 0);
  CHECK(log.rotate_error() != 0);
  CHECK(file_text(path) == "123456\n789012\n");
}

TEST_CASE("lines of a console with a prefix") {
  const auto start = ConsoleLines::Clock::now();
  const auto shows = [&](const std::vector<std::string>& pieces) {
    ConsoleLines lines("r| ");
    std::string text;
    for (const std::string& piece : pieces) text += lines.add(piece, start);
    return text + "/" + lines.finish();
  };
  CHECK(shows({"one\ntwo\n"}) == "r| one\nr| two\n/");
  CHECK(shows({"o", "ne\nt", "wo"}) == "r| one\n/r| two\n");
  CHECK(shows({"\n\n"}) == "r| \nr| \n/");
  CHECK(shows({"dos\r\nlines\r", "\n"}) == "r| dos\nr| lines\n/");
  CHECK(shows({std::string("\0\xff\n", 3)}) == std::string("r| \0\xff\n/", 7));
  // Of a progress bar the first and the last, not all.
  CHECK(shows({"\r 1%", "\r 2%\r 3%", "\r 4%\n"}) == "r|  1%\nr|  4%\n/");
  CHECK(shows({"\r 1%\r 2%\r 3%\r\nnext\n"}) == "r|  1%\nr|  3%\nr| next\n/");
  CHECK(shows({"\r 1%\r 2%\r"}) == "r|  1%\n/r|  2%\n");
  CHECK(shows({"x\r\r\r\n"}) == "r| x\n/");
  CHECK(shows({""}) == "/");
}

TEST_CASE("a progress bar is shown now and then") {
  ConsoleLines lines("r| ");
  const auto start = ConsoleLines::Clock::now();
  std::string text;
  for (int s = 0; s <= 12; ++s) {
    text += lines.add(fmt::format("\r{} s", s), start + std::chrono::seconds(s));
  }
  CHECK(text == "r| 0 s\nr| 5 s\nr| 10 s\n");
}

TEST_CASE("which rank goes to the console") {
  AgentOptions options = three();
  LogOptions& logs = options.logs;
  std::string out, err;
  SUBCASE("rank 0 by default") {
    out = "o0\n";
    err = "e0\n";
  }
  SUBCASE("nobody") {
    logs.console_default = 0;
  }
  SUBCASE("everybody's stdout") {
    logs.console_default = 1;
    out = "o0\no1\no2\n";
  }
  SUBCASE("tee adds a prefix and rank 0 stays as it is") {
    logs.console = {{1, 3}, {2, 2}};
    out = "o0\nrank 1| o1\n";
    err = "e0\nrank 1| e1\nrank 2| e2\n";
  }
  SUBCASE("redirected is in the file only") {
    logs.console_default = 3;
    logs.redirected = {{0, 3}, {1, 1}};
    out = "o2\n";
    err = "e1\ne2\n";
  }
  SUBCASE("tee wins over redirects as in torchrun") {
    logs.console_default = 3;
    logs.redirected = {{0, 3}, {1, 3}, {2, 3}};
    logs.console = {{2, 1}};
    out = "rank 2| o2\n";
  }
  SUBCASE("the filter wins over both and shows whom it names") {
    logs.only_local_ranks = {1};
    logs.console = {{2, 3}};
    out = "o1\n";
    err = "e1\n";
  }
  SUBCASE("a prefix for all with the host") {
    logs.prefix = true;
    logs.host = "m3";
    logs.console_default = 3;
    out = "m3:0| o0\nm3:1| o1\nm3:2| o2\n";
    err = "m3:0| e0\nm3:1| e1\nm3:2| e2\n";
  }
  SUBCASE("a process with several ranks") {
    logs.prefix = true;
    options.workers.resize(1);
    options.workers[0].ranks = 4;
    out = "ranks 0-3| o0\n";
    err = "ranks 0-3| e0\n";
  }
  const Shown shown = shown_by(options);
  CHECK(shown.code == 0);
  CHECK(sorted(shown.out) == out);
  CHECK(sorted(shown.err) == err);
}

TEST_CASE("a callback gets the prefixed lines of every shown rank") {
  AgentOptions options = three();
  options.logs.console_default = 1;
  options.logs.prefix = true;
  std::vector<std::string> lines;
  options.on_output = [&](int rank, bool is_stderr, std::string_view line) {
    CHECK(!is_stderr);
    CHECK(line.find("o" + std::to_string(rank)) != std::string::npos);
    lines.emplace_back(line);
  };
  CHECK(run_agent(options).exit_code == 0);
  std::sort(lines.begin(), lines.end());
  REQUIRE(lines.size() == 3);
  CHECK(lines[2].find("rank 2| ") != std::string::npos);
}

TEST_CASE("lines of many ranks do not mix on the console") {
  AgentOptions options;
  for (int rank = 0; rank < 4; ++rank) {
    options.workers.push_back(shell(
        rank,
        "for i in $(seq 1 300); do printf \"$RANK$RANK$RANK\"; echo \" $i$RANK$RANK\"; done"));
  }
  options.logs.console_default = 3;
  options.logs.prefix = true;
  const Shown shown = shown_by(options);
  const std::vector<std::string> lines = lines_in(shown.out);
  CHECK(lines.size() == 1'200);
  int next[4] = {1, 1, 1, 1};
  for (const std::string& line : lines) {
    const int rank = line.size() > 5 ? line[5] - '0' : -1;
    REQUIRE((rank >= 0 && rank < 4));
    REQUIRE(line == fmt::format("rank {0}| {0}{0}{0} {1}{0}{0}", rank, next[rank]++));
  }
}

TEST_CASE("colour is for terminals") {
  TempDir folder;
  const NewTerminal terminal;
  const Fd held(open(terminal.name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  for (const char* no_color : {"", "1"}) {
    Child agent([&] {
      setenv("TERM", "xterm", 1);
      setenv("NO_COLOR", no_color, 1);
      dup2(held.get(), 1);
      AgentOptions options = shells({"echo hello"});
      options.logs.console_default = 1;
      options.logs.prefix = true;
      return run_agent(options).exit_code;
    });
    CHECK(agent.wait() == 0);
    char text[200] = {};
    CHECK(read(terminal.master.get(), text, sizeof text - 1) > 0);
    CHECK(std::string(text) ==
          (*no_color ? "rank 0| hello\r\n" : "\x1b[31mrank 0| \x1b[0mhello\r\n"));
  }
}

TEST_CASE("files get every byte whatever the console makes of it") {
  TempDir folder;
  const std::string odd("\r10%\r20%\r\n\xff\xfe\0\x1b[31mred\n", 22);
  write(folder / "odd", odd);
  AgentOptions options =
      shells({"cat " + (folder / "odd").string(), "head -c 1048576 /dev/zero | tr '\\0' x; echo"});
  options.logs.dir = folder / "logs";
  options.logs.console_default = 3;
  options.logs.prefix = true;
  const Shown shown = shown_by(options);
  CHECK(file_text(folder / "logs/rank-00000.log") == odd);
  const std::string line(1'048'576, 'x');
  CHECK(file_text(folder / "logs/rank-00001.log") == line + "\n");
  CHECK(shown.out.find("rank 1| " + line + "\n") != std::string::npos);
}

TEST_CASE("a disk that stands still does not hold the workers") {
  TempDir folder;
  REQUIRE(mkfifo((folder / "rank-00000.log").c_str(), 0600) == 0);
  Fd reader(open((folder / "rank-00000.log").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  fcntl(reader.get(), F_SETFL, 0);
  // 140 MB into a pipe that nobody reads: more than the queue takes.
  AgentOptions options =
      shells({"head -c 140000000 /dev/zero | tr '\\0\\n' 'x\\n' | fold -w 99; echo $$ > " +
              (folder / "done").string()});
  options.logs.dir = folder.path();
  std::string notices;
  options.on_notice = [&](std::string_view line) { notices += line; };
  std::string text;
  std::thread late([&] {
    pid_in(folder / "done");  // it has written all of it
    char buffer[1 << 16];
    ssize_t got;
    while ((got = read(reader.get(), buffer, sizeof buffer)) > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
  });
  const AgentResult result = run_agent(options);
  late.join();
  CHECK(result.exit_code == 0);
  REQUIRE(result.warnings.size() == 1);
  CHECK(result.warnings[0].find("bytes of rank 0's output are missing in rank-00000.log") !=
        std::string::npos);
  CHECK(notices.find("does not keep up") != std::string::npos);
  const std::vector<std::string> lines = lines_in(text);
  // Whole lines only; what is there and what the gaps name makes up what was written.
  const int64_t folds = (140'000'000 + 98) / 99;  // the last without its newline: the log adds it
  int64_t there = 0, missing = 0, torn = 0;
  for (const std::string& line : lines) {
    if (line.starts_with("[mtl: ")) {
      missing += std::atoll(line.c_str() + 6);
    } else {
      there += static_cast<int64_t>(line.size()) + 1;
      torn += line.size() != 99;
    }
  }
  CHECK(missing > 0);
  CHECK(torn <= 1);
  CHECK(there + missing == 140'000'000 + folds);
  CHECK(there > 100'000'000);
}
