// Files: what is promised when all goes well, and what stays intact when it does not.
#include <fcntl.h>
#include <functional>
#include <thread>
#include <unistd.h>
#include <vector>

#include <sys/stat.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "common/files.h"
#include "support/temp_dir.h"

using namespace mtl;
namespace fs = std::filesystem;

namespace {

// Code and text of the one error that `action` must throw.
Diagnostic error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::environment);
    REQUIRE(error.diagnostics().size() == 1);
    return error.diagnostics()[0];
  }
  FAIL("nothing was thrown");
  return {};
}

size_t entries(const fs::path& directory) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a file comes back byte for byte") {
  using namespace std::string_literals;
  const test::TempDir dir;
  std::string content = "a\0b\r\n\xff"s;
  content.resize(300'000, 'x');
  write_file_atomic(dir.path() / "f", content);
  CHECK(read_file(dir.path() / "f") == content);
  CHECK(read_file(dir.path() / "f", 7) == content.substr(0, 7));
  write_file_atomic(dir.path() / "f", "");
  CHECK(read_file(dir.path() / "f").empty());
  CHECK(entries(dir.path()) == 1);  // no temporary file is left
}

TEST_CASE("permissions of what is replaced stay, and who is not to read cannot") {
  const test::TempDir dir;
  const std::string file = dir.file("f", "old");
  const auto mode = [](const fs::path& path) { return fs::status(path).permissions(); };
  fs::permissions(file, fs::perms(0754));
  write_file_atomic(file, "new");
  CHECK(mode(file) == fs::perms(0754));
  write_file_atomic(file, "secret", Readers::owner);
  CHECK(mode(file) == fs::perms(0700));
  write_file_atomic(dir.path() / "g", "secret", Readers::owner);
  CHECK(mode(dir.path() / "g") == fs::perms(0600));
}

TEST_CASE("endless files are read up to the limit") {
  CHECK(read_file("/dev/zero", 100'000) == std::string(100'000, '\0'));
}

TEST_CASE("what cannot be read says which file and why") {
  const test::TempDir dir;
  const std::string path = (dir.path() / "absent").string();
  const Diagnostic missing = error_of([&] { read_file(path); });
  CHECK(missing.code == "file.missing");
  CHECK(missing.what == "cannot read " + path + ": No such file or directory");
  CHECK_FALSE(missing.help.empty());
  const std::string file = dir.file("f", "x");
  CHECK(error_of([&] { read_file(file + "/below"); }).code == "file.missing");
  CHECK(error_of([&] { read_file(dir.path()); }).code == "file.unreadable");
}

TEST_CASE("a failed atomic write leaves the old content and no rubbish") {
  const test::TempDir dir;
  const std::string file = dir.file("f", "old");
  // The parent of the target is a file.
  const Diagnostic error = error_of([&] { write_file_atomic(file + "/below", "new"); });
  CHECK(error.code == "file.write");
  CHECK(error.what.find("Not a directory") != std::string::npos);
  CHECK(read_file(file) == "old");
  // The target is a directory: the rename would fail after everything was written.
  fs::create_directory(dir.path() / "d");
  CHECK(error_of([&] { write_file_atomic(dir.path() / "d", "new"); }).code == "file.write");
  CHECK(fs::is_directory(dir.path() / "d"));
  CHECK(entries(dir.path()) == 2);
  CHECK(error_of([&] { write_file_atomic(dir.path() / "no" / "f", "new"); }).code == "file.write");
}

TEST_CASE("an atomic write keeps permissions and writes through a link") {
  const test::TempDir dir;
  const std::string file = dir.file("f", "old");
  REQUIRE(::chmod(file.c_str(), 0640) == 0);
  fs::create_symlink("f", dir.path() / "link");
  write_file_atomic(dir.path() / "link", "new");
  CHECK(fs::is_symlink(dir.path() / "link"));
  CHECK(read_file(file) == "new");
  struct stat info {};
  REQUIRE(::stat(file.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0640);
}

TEST_CASE("a link is followed to where nothing is yet, and one that leads in a circle is told") {
  const test::TempDir dir;
  fs::create_symlink("g", dir.path() / "f");
  fs::create_symlink("f", dir.path() / "link");
  write_file_atomic(dir.path() / "link", "new");
  CHECK(fs::is_symlink(dir.path() / "f"));
  CHECK(read_file(dir.path() / "g") == "new");
  fs::create_symlink("b", dir.path() / "a");
  fs::create_symlink("a", dir.path() / "b");
  const Diagnostic circle = error_of([&] { write_file_atomic(dir.path() / "a", "new"); });
  CHECK(circle.code == "file.write");
  CHECK(circle.help.find("circle") != std::string::npos);
  CHECK(fs::is_symlink(dir.path() / "a"));
}

TEST_CASE("a pipe is written to and not replaced") {
  const test::TempDir dir;
  const fs::path pipe = dir.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(error_of([&] { write_file_atomic(pipe, "x"); }).code == "file.write");  // nobody reads
  const Fd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(bool(reader));
  write_file_atomic(pipe, "new");
  char got[8] = {};
  CHECK(::read(reader.get(), got, sizeof got) == 3);
  CHECK(std::string(got) == "new");
  CHECK(fs::is_fifo(pipe));
  CHECK(error_of([&] { const Replacement none(pipe); }).what.ends_with("it is no file"));
  CHECK(fs::is_fifo(pipe));
}

TEST_CASE("what is not finished replaces nothing and is gone") {
  const test::TempDir dir;
  const std::string file = dir.file("f", "old");
  {
    const Replacement replacement(file);
    append_line(replacement.written(), "half");
    CHECK(entries(dir.path()) == 2);
  }
  CHECK(read_file(file) == "old");
  CHECK(entries(dir.path()) == 1);
}

TEST_CASE("atomic writers of one file do not disturb each other") {
  const test::TempDir dir;
  const fs::path file = dir.path() / "f";
  write_file_atomic(file, std::string(10'000, 'a'));
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'd'; ++c) {
    writers.emplace_back([&file, c] {
      for (int i = 0; i < 20; ++i) write_file_atomic(file, std::string(10'000, c));
    });
  }
  for (int i = 0; i < 50; ++i) {
    const std::string content = read_file(file);
    CHECK(content == std::string(10'000, content.empty() ? '?' : content[0]));
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(entries(dir.path()) == 1);
}

TEST_CASE("lines are appended, and a full disk is told") {
  const test::TempDir dir;
  append_line(dir.path() / "f", "one");
  append_line(dir.path() / "f", "");
  append_line(dir.path() / "f", "two");
  CHECK(read_file(dir.path() / "f") == "one\n\ntwo\n");
  const Diagnostic full = error_of([] { append_line("/dev/full", "x"); });
  CHECK(full.code == "file.write");
  CHECK(full.what == "cannot append to /dev/full: No space left on device");
  CHECK(full.help.find("df -h") != std::string::npos);
}

TEST_CASE("directories are made with their parents, but not over a file") {
  const test::TempDir dir;
  make_directories(dir.path() / "a" / "b");
  make_directories(dir.path() / "a" / "b");
  CHECK(fs::is_directory(dir.path() / "a" / "b"));
  sync_directory(dir.path() / "a");
  const std::string file = dir.file("f", "x");
  CHECK(error_of([&] { make_directories(file); }).code == "file.directory");
  CHECK(error_of([&] { make_directories(file + "/below"); }).code == "file.directory");
  CHECK(error_of([&] { sync_directory(dir.path() / "absent"); }).code == "file.directory");
}

TEST_CASE("a descriptor has one owner") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Fd read_end(ends[0]);
  {
    Fd first(ends[1]);
    Fd second = std::move(first);
    CHECK_FALSE(first);
    CHECK(second.get() == ends[1]);
    first = std::move(second);
    CHECK(first.get() == ends[1]);
  }
  char byte = 0;
  CHECK(::read(read_end.get(), &byte, 1) == 0);  // the write end is closed
}
