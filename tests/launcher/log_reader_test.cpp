// Reading logs while they are written and moved aside.
#include "launcher/output/log_reader.h"

#include <atomic>
#include <thread>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "launcher/output/log_file.h"
#include "launcher/processes.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::string rest_of(LogReader& reader) {
  std::string text;
  while (reader.read(text)) {
  }
  return text;
}

std::string last(const std::filesystem::path& path, int64_t lines) {
  LogReader reader(path);
  reader.skip_to_last(lines);
  return rest_of(reader);
}

}  // namespace

TEST_CASE("logs are found by their number") {
  TempDir folder;
  for (const char* name : {"rank-00000.log", "rank-12.log", "rank-00003.log.1", "rank-x.log",
                           "rank-.log", "node-00002.log", "rank-1-2.log"}) {
    write(folder / name, "");
  }
  const auto ranks = numbered_logs(folder.path(), "rank");
  REQUIRE(ranks.size() == 2);
  CHECK(ranks.at(12) == folder / "rank-12.log");
  CHECK(ranks.contains(0));
  CHECK(numbered_logs(folder.path(), "node").contains(2));
  CHECK(numbered_logs(folder / "none", "rank").empty());
}

TEST_CASE("a log is read with the parts that were moved aside") {
  TempDir folder;
  const std::filesystem::path path = folder / "log";
  CHECK(last(path, 3).empty());
  write(path, "e\nf\n");
  write(path.string() + ".1", "c\nd\n");
  write(path.string() + ".2", "a\nb\n");
  LogReader reader(path);
  CHECK(rest_of(reader) == "a\nb\nc\nd\ne\nf\n");
  const char* ends[] = {"f\n",
                        "e\nf\n",
                        "d\ne\nf\n",
                        "c\nd\ne\nf\n",
                        "b\nc\nd\ne\nf\n",
                        "a\nb\nc\nd\ne\nf\n",
                        "a\nb\nc\nd\ne\nf\n"};
  for (int64_t lines = 1; lines <= 7; ++lines) CHECK(last(path, lines) == ends[lines - 1]);
  write(path, "");
  CHECK(last(path, 1) == "d\n");
  write(path, "e\nunfinished");
  CHECK(last(path, 1) == "unfinished");
  CHECK(last(path, 2) == "e\nunfinished");
  write(path, std::string(200'000, 'x') + "\ny\n");  // more than one piece
  CHECK(last(path, 1) == "y\n");
  CHECK(last(path, 2).size() == 200'003);
  CHECK(last(path, 3).starts_with("d\nxx"));
}

TEST_CASE("what is added is read and a file that comes later") {
  TempDir folder;
  const std::filesystem::path path = folder / "log";
  LogReader reader(path);
  CHECK(rest_of(reader).empty());
  LogFile log(path, 0, 1);
  log.write("one\n");
  CHECK(rest_of(reader) == "one\n");
  CHECK(rest_of(reader).empty());
  log.write("two\n");
  CHECK(rest_of(reader) == "two\n");
}

TEST_CASE("several rotations between two looks lose nothing that is kept") {
  TempDir folder;
  const std::filesystem::path path = folder / "log";
  LogFile log(path, 10, 4);
  LogReader reader(path);
  log.write("line 0\n");
  CHECK(rest_of(reader) == "line 0\n");
  log.write("line 1\nline 2\nline 3\n");
  CHECK(rest_of(reader) == "line 1\nline 2\nline 3\n");
  // Ours is deleted meanwhile: on with the oldest that is there.
  log.write("line 4\nline 5\nline 6\nline 7\nline 8\nline 9\n");
  CHECK(rest_of(reader) == "line 5\nline 6\nline 7\nline 8\nline 9\n");
}

TEST_CASE("a log is followed while somebody writes and rotates it") {
  TempDir folder;
  const std::filesystem::path path = folder / "log";
  constexpr int kLines = 20'000;
  constexpr int kKeep = 60;
  std::atomic<int> seen = 0;
  std::thread writer([&] {
    LogFile log(path, 4'000, kKeep);
    for (int i = 0; i < kLines; ++i) {
      log.write(fmt::format("line {}\n", i));
      // Never further ahead than what is kept holds.
      wait_until([&] { return i - seen < kKeep * 4'000 / 11 / 2; });
    }
  });
  LogReader reader(path);
  std::string text;
  size_t start = 0;
  bool in_order = true;
  const bool all = wait_until([&] {
    while (reader.read(text)) {
    }
    for (size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
      in_order &= text.compare(start, end - start, fmt::format("line {}", seen.load())) == 0;
      ++seen;
    }
    return seen == kLines || !in_order;
  });
  seen = kLines;
  writer.join();
  CHECK(all);
  CHECK(in_order);
  CHECK(start == text.size());
}
