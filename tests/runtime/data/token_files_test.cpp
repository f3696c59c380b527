// Token files of nanoGPT and llm.c, and what tells one corpus from another.
#include "runtime/data/token_files.h"

#include <cstring>
#include <fstream>

#include <doctest/doctest.h>

#include "support/temp_dir.h"

namespace mtl {
namespace {

using test::TempDir;
namespace fs = std::filesystem;

template <typename T>
void write(const fs::path& path, const std::vector<T>& values, std::ios::openmode mode = {}) {
  std::ofstream out(path, std::ios::binary | mode);
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
}

template <typename Id>
std::vector<Id> ids(int64_t count, int64_t first) {
  std::vector<Id> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<Id>((first + i) % 50'000));
  return values;
}

template <typename Id>
void write_llmc(const fs::path& path, int32_t magic, int32_t version, int64_t count,
                int64_t first) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<int32_t>(count);
  write(path, header);
  write(path, ids<Id>(count, first), std::ios::app);
}

std::vector<int32_t> read(const TokenSource& row, int64_t first, int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  row.read(first, out);
  return out;
}

TEST_CASE("token files: shards of every format are one row") {
  const TempDir dir;
  write(dir.path() / "a_000.bin", ids<uint16_t>(1000, 0));
  write(dir.path() / "a_001.bin", ids<uint16_t>(1, 1000));
  write(dir.path() / "a_002.bin", ids<uint16_t>(0, 0));
  write(dir.path() / "a_003.bin", ids<uint16_t>(500, 1001));
  write_llmc<uint16_t>(dir.path() / "b_0.bin", 20240520, 1, 700, 0);
  write_llmc<uint16_t>(dir.path() / "b_1.bin", 20240520, 1, 801, 700);
  fs::create_directory(dir.path() / "c");
  write_llmc<uint32_t>(dir.path() / "c" / "0.bin", 20240801, 7, 1501, 0);
  write(dir.path() / "c" / "notes.txt", std::vector<char>{'x'});
  struct Case {
    std::string path;
    size_t shards;
    TokenFileFormat format;
  };
  for (const Case& c : {Case{(dir.path() / "a_*.bin").string(), 4, TokenFileFormat::nanogpt},
                        Case{(dir.path() / "b_?.bin").string(), 2, TokenFileFormat::llmc},
                        Case{(dir.path() / "c").string(), 1, TokenFileFormat::llmc}}) {
    CAPTURE(c.path);
    const std::vector<fs::path> shards = shards_of(c.path);
    REQUIRE(shards.size() == c.shards);
    CHECK(token_file_format(shards.front()) == c.format);
    const auto row = open_token_files(shards, c.format, 50'000);
    REQUIRE(row->size() == 1501);
    for (int64_t first = 0; first < 1501; first += 13) {
      const int64_t count = std::min<int64_t>(1501 - first, 600);
      const std::vector<int32_t> got = read(*row, first, count);
      for (int64_t i = 0; i < count; ++i) REQUIRE(got[static_cast<size_t>(i)] == first + i);
    }
  }
}

TEST_CASE("token files: what is wrong with a file is said with its name") {
  const TempDir dir;
  const auto refuses = [&](const std::string& name, TokenFileFormat format, const char* text) {
    CHECK_THROWS_WITH_AS(open_token_files({dir.path() / name}, format, 50'000),
                         doctest::Contains(text), Error);
  };
  write(dir.path() / "odd.bin", std::vector<char>{1, 2, 3});
  refuses("odd.bin", TokenFileFormat::nanogpt, "odd.bin' has 3 bytes");
  refuses("odd.bin", TokenFileFormat::llmc, "no header of llm.c");
  refuses("none.bin", TokenFileFormat::nanogpt, "data.missing");
  refuses("none.bin", TokenFileFormat::nanogpt, "check the spelling");
  write_llmc<uint16_t>(dir.path() / "short.bin", 20240520, 1, 100, 0);
  fs::resize_file(dir.path() / "short.bin", 1024 + 150);
  refuses("short.bin", TokenFileFormat::llmc, "its header says 100 tokens");
  write_llmc<uint16_t>(dir.path() / "version.bin", 20240520, 2, 100, 0);
  refuses("version.bin", TokenFileFormat::llmc, "begins with 20240520 and 2");
  write_llmc<uint16_t>(dir.path() / "negative.bin", 20240520, 1, 10, 0);
  {
    std::fstream file(dir.path() / "negative.bin", std::ios::in | std::ios::out | std::ios::binary);
    const int32_t count = -1;
    file.seekp(8);
    file.write(reinterpret_cast<const char*>(&count), 4);
  }
  refuses("negative.bin", TokenFileFormat::llmc, "says -1 tokens");
  CHECK_THROWS_WITH_AS(shards_of((dir.path() / "z_*.bin").string()),
                       doctest::Contains("names no *.bin file"), Error);

  // Ids beyond the vocabulary, and a file that becomes shorter, when they are read.
  write(dir.path() / "good.bin", ids<uint16_t>(100, 0));
  const auto row = open_token_files({dir.path() / "good.bin"}, TokenFileFormat::nanogpt, 50);
  CHECK(read(*row, 0, 50).back() == 49);
  CHECK_THROWS_WITH_AS(read(*row, 20, 40), doctest::Contains("good.bin': token 50 is 50"), Error);
  fs::resize_file(dir.path() / "good.bin", 60);
  CHECK_THROWS_WITH_AS(read(*row, 20, 20), doctest::Contains("has become shorter"), Error);
  write_llmc<uint32_t>(dir.path() / "large.bin", 20240801, 7, 3, 0);
  {
    std::fstream file(dir.path() / "large.bin", std::ios::in | std::ios::out | std::ios::binary);
    const uint32_t id = 4'000'000'000u;
    file.seekp(1024 + 4);
    file.write(reinterpret_cast<const char*>(&id), 4);
  }
  const auto large = open_token_files({dir.path() / "large.bin"}, TokenFileFormat::llmc, 50);
  CHECK_THROWS_WITH_AS(read(*large, 0, 3), doctest::Contains("token 1 is 4000000000"), Error);
}

TEST_CASE("content hash: every byte of a small file, and size and pieces of a large one") {
  const TempDir dir;
  const fs::path path = dir.path() / "f.bin";
  std::vector<char> bytes(300'000, 'a');
  write(path, bytes);
  const uint64_t whole = content_hash(path);
  CHECK(content_hash(path) == whole);
  bytes[123'456] = 'b';
  write(path, bytes);
  CHECK(content_hash(path) != whole);
  // Three pieces of 64 KiB of a larger file: its begin, its middle and its end.
  std::vector<char> large(1'000'000, 'a');
  write(path, large);
  const uint64_t sampled = content_hash(path, 1);
  for (const size_t at : {size_t{0}, size_t{500'000}, size_t{999'999}}) {
    large[at] = 'b';
    write(path, large);
    CHECK(content_hash(path, 1) != sampled);
    large[at] = 'a';
  }
  large.push_back('a');
  write(path, large);
  CHECK(content_hash(path, 1) != sampled);
}

}  // namespace
}  // namespace mtl
