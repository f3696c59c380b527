// Megatron's own files against the reader and the writer, byte for byte, and files that lie.
#include "runtime/data/indexed_dataset.h"

#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/indexed.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/text.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::has;
using test::IdsOfDocuments;
using test::kIndexed;
using test::TempDir;

IdsOfDocuments read_all(const IndexedDataset& dataset) {
  IdsOfDocuments documents;
  for (int64_t d = 0; d < dataset.documents(); ++d) {
    auto& document = documents.emplace_back();
    for (int64_t s = dataset.document_begin(d); s < dataset.document_begin(d + 1); ++s) {
      auto& ids = document.emplace_back(dataset.length(s));
      dataset.read(s, 0, ids);
    }
  }
  return documents;
}

void write_all(IndexedDatasetWriter& writer, const IdsOfDocuments& documents) {
  for (const auto& document : documents) {
    for (const auto& ids : document) writer.add_sequence(ids);
    writer.end_document();
  }
}

TokenType type_named(const std::string& name) {
  if (name == "uint8") return TokenType::u8;
  if (name == "uint16") return TokenType::u16;
  if (name == "int64") return TokenType::i64;
  REQUIRE(name == "int32");
  return TokenType::i32;
}

// A good pair of files, to be damaged: 4 sequences, 3 documents, tokens u16.
struct Sample {
  explicit Sample(const TempDir& dir) : prefix(dir / "sample") {
    IndexedDatasetWriter writer(prefix, TokenType::u16);
    write_all(writer, {{{1, 2, 3}}, {{4}, {5, 6}}, {{7}}});
    writer.finish();
    idx = read_file(prefix.string() + ".idx");
    bin = read_file(prefix.string() + ".bin");
  }
  template <typename Number>
  void put(size_t offset, Number value) {
    std::memcpy(idx.data() + offset, &value, sizeof value);
  }
  void store() const {
    write_file_atomic(prefix.string() + ".idx", idx);
    write_file_atomic(prefix.string() + ".bin", bin);
  }
  std::string refused() const {
    store();
    return error_of([&] { IndexedDataset dataset(prefix); }, "data.index");
  }
  fs::path prefix;
  std::string idx, bin;
};

TEST_CASE("indexed dataset: what Megatron wrote is read and written again byte for byte") {
  for (const char* name :
       {"plain_u16", "plain_i32", "plain_u8", "plain_i64", "empty", "gpt2", "modes"}) {
    CAPTURE(name);
    const auto reference =
        nlohmann::json::parse(read_file(kIndexed / (std::string(name) + ".json")));
    const IdsOfDocuments documents = reference.at("documents");
    const TokenType type = type_named(reference.at("dtype"));
    const IndexedDataset dataset(kIndexed / name);
    CHECK(dataset.type() == type);
    CHECK(dataset.documents() == static_cast<int64_t>(documents.size()));
    CHECK(read_all(dataset) == documents);
    CHECK(dataset.has_modalities() == (std::string(name) == "modes"));

    TempDir dir;
    IndexedDatasetWriter writer(dir / "copy", type);
    write_all(writer, documents);
    CHECK(!is_indexed_dataset(dir / "copy"));
    writer.finish();
    CHECK(is_indexed_dataset(dir / "copy"));
    CHECK(read_file(dir / "copy.bin") == read_file(kIndexed / (std::string(name) + ".bin")));
    std::string expected = read_file(kIndexed / (std::string(name) + ".idx"));
    if (dataset.has_modalities()) expected.resize(expected.size() - dataset.sequences());
    CHECK(read_file(dir / "copy.idx") == expected);
    CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 2);
  }
}

TEST_CASE("indexed dataset: appending is Megatron's merge byte for byte") {
  TempDir dir;
  IndexedDatasetWriter writer(dir / "merged", TokenType::u16);
  for (const char* name : {"plain_u16", "empty", "plain_u16"}) {
    writer.append(IndexedDataset(kIndexed / name));
  }
  writer.finish();
  CHECK(read_file(dir / "merged.bin") == read_file(kIndexed / "merged.bin"));
  CHECK(read_file(dir / "merged.idx") == read_file(kIndexed / "merged.idx"));

  IndexedDatasetWriter other(dir / "other", TokenType::u16);
  CHECK(has(error_of([&] { other.append(IndexedDataset(kIndexed / "plain_i32")); }, "data.merge"),
            "plain_i32"));
  CHECK(has(error_of([&] { other.append(IndexedDataset(kIndexed / "modes")); }, "data.merge"),
            "multimodal"));
}

TEST_CASE("indexed dataset: names with dots and with endings") {
  CHECK(indexed_prefix("a/b.v1.bin") == "a/b.v1");
  CHECK(indexed_prefix("a/b.v1.idx") == "a/b.v1");
  CHECK(indexed_prefix("a/b.v1") == "a/b.v1");
  TempDir dir;
  IndexedDatasetWriter writer(dir / "c4.v1.2", TokenType::u16);
  writer.add_sequence(std::vector<int32_t>{7});
  writer.finish();  // a document that was not ended is ended
  for (const char* name : {"c4.v1.2", "c4.v1.2.idx", "c4.v1.2.bin"}) {
    CHECK(is_indexed_dataset(dir / name));
    CHECK(IndexedDataset(dir / name).documents() == 1);
  }
}

TEST_CASE("indexed dataset: parts of sequences in every type") {
  TempDir dir;
  for (const TokenType type : {TokenType::u8, TokenType::i8, TokenType::i16, TokenType::u16,
                               TokenType::i32, TokenType::i64}) {
    const fs::path prefix = dir / std::to_string(static_cast<int>(type));
    IndexedDatasetWriter writer(prefix, type);
    std::vector<int32_t> ids(20'000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 128);
    writer.add_sequence(std::vector<int32_t>{1});  // what follows is not aligned
    writer.add_sequence(ids);
    writer.end_document();
    writer.finish();
    const IndexedDataset dataset(prefix);
    CHECK(dataset.tokens() == 20'001);
    std::vector<int32_t> part(9'000);
    dataset.read(1, 10'001, part);
    CHECK(std::equal(part.begin(), part.end(), ids.begin() + 10'001));
  }
}

TEST_CASE("indexed dataset: ids that no type or no reader takes") {
  TempDir dir;
  const auto refused = [&](TokenType type, int32_t id) {
    IndexedDatasetWriter writer(dir / "x", type);
    error_of([&] { writer.add_sequence(std::vector<int32_t>{0, id}); }, "data.token");
  };
  refused(TokenType::u8, 256);
  refused(TokenType::i8, 128);
  refused(TokenType::i16, 32768);
  refused(TokenType::u16, 65536);
  refused(TokenType::i32, -1);
  refused(TokenType::u16, -1);
  CHECK(fs::is_empty(dir.path()));  // what is not finished leaves nothing

  IndexedDatasetWriter writer(dir / "wide", TokenType::i64);
  writer.add_sequence(std::vector<int32_t>{1, 2, 3});
  writer.finish();
  const int64_t values[] = {1, int64_t{1} << 31, 3};
  write_file_atomic(dir / "wide.bin", {reinterpret_cast<const char*>(values), sizeof values});
  const IndexedDataset dataset(dir / "wide");
  std::vector<int32_t> ids(3);
  CHECK(has(error_of([&] { dataset.read(0, 0, ids); }, "data.token"), "sequence 0"));
  ids.resize(1);
  dataset.read(0, 2, ids);
  CHECK(ids[0] == 3);
}

TEST_CASE("indexed dataset: files that lie are refused with the place") {
  TempDir dir;
  const Sample good(dir);
  {
    const IndexedDataset dataset(good.prefix);
    REQUIRE(dataset.sequences() == 4);
    REQUIRE(dataset.documents() == 3);
  }
  const size_t pointers = 34 + 4 * 4, documents = 34 + 4 * 12;
  const auto with = [&](const std::function<void(Sample&)>& damage) {
    Sample sample = good;
    damage(sample);
    return sample.refused();
  };
  CHECK(has(with([](Sample& s) { s.idx.clear(); }), "header"));
  CHECK(has(with([](Sample& s) { s.idx.resize(33); }), "header"));
  CHECK(has(with([](Sample& s) { s.idx[3] = 'x'; }), "at byte 0"));
  CHECK(has(with([](Sample& s) { s.put<uint64_t>(9, 2); }), "version 2"));
  CHECK(has(with([](Sample& s) { s.put<uint8_t>(17, 6); }), "floating"));
  CHECK(has(with([](Sample& s) { s.put<uint8_t>(17, 9); }), "type 9"));
  CHECK(has(with([](Sample& s) { s.put<uint8_t>(17, 0); }), "type 0"));
  // Counts that overflow in some product or sum, or only in this file.
  for (const uint64_t count : {uint64_t{5}, uint64_t{3}, uint64_t{1} << 32, uint64_t{1} << 62,
                               ~uint64_t{0}, ~uint64_t{0} / 12 + 1, uint64_t{1} << 63}) {
    CHECK(has(with([&](Sample& s) { s.put(18, count); }), "at byte 18"));
    CHECK(has(with([&](Sample& s) { s.put(26, count); }), "at byte 18"));
    CHECK(has(with([&](Sample& s) {
                s.put(18, count);
                s.put(26, ~count + 1);
              }),
              "at byte 18"));
  }
  CHECK(has(with([](Sample& s) { s.put<uint64_t>(26, 0); }), "at byte 26"));
  CHECK(has(with([](Sample& s) { s.idx.pop_back(); }), "4 sequences"));
  for (const size_t more : {1, 3, 5, 8}) {
    CHECK(has(with([&](Sample& s) { s.idx.append(more, '\0'); }), "sequences"));
  }
  CHECK(has(with([](Sample& s) { s.put<int32_t>(34, -1); }), "at byte 34"));
  CHECK(has(with([](Sample& s) { s.put<int32_t>(34 + 12, 1 << 30); }), "sequence 3 ends"));
  CHECK(has(with([&](Sample& s) { s.put<int64_t>(pointers, 2); }), "sequence 0 begins"));
  CHECK(has(with([&](Sample& s) { s.put<int64_t>(pointers + 8, -6); }), "sequence 1 begins"));
  CHECK(has(with([&](Sample& s) { s.put<int64_t>(pointers + 24, int64_t{1} << 62); }),
            "sequence 3 begins"));
  CHECK(has(with([&](Sample& s) { s.put<int64_t>(documents, 1); }), "first document"));
  CHECK(has(with([&](Sample& s) { s.put<int64_t>(documents + 16, 0); }), "document 2 begins"));
  CHECK(has(with([&](Sample& s) { s.put<int64_t>(documents + 8, 99); }), "document 1 begins"));
  CHECK(has(with([&](Sample& s) { s.put<int64_t>(documents + 24, 3); }), "end at sequence 3"));
  CHECK(has(with([](Sample& s) { s.bin.pop_back(); }), "ends at byte 14"));
  CHECK(has(with([](Sample& s) { s.bin += "xx"; }), "goes on to byte 16"));
  CHECK(has(with([](Sample& s) { s.bin.clear(); }), "which has 0"));
  // One byte for each sequence more is what a multimodal corpus has.
  Sample modes = good;
  modes.idx.append(4, '\1');
  modes.store();
  CHECK(IndexedDataset(modes.prefix).has_modalities());
}

TEST_CASE("indexed dataset: a file that is not there or not a file") {
  TempDir dir;
  const Sample sample(dir);
  CHECK(has(error_of([&] { IndexedDataset dataset(dir / "none"); }, "data.missing"), ".idx"));
  fs::remove(dir / "sample.bin");
  CHECK(has(error_of([&] { IndexedDataset dataset(sample.prefix); }, "data.missing"), ".bin"));
  fs::create_directory(dir / "sample.bin");
  error_of([&] { IndexedDataset dataset(sample.prefix); }, "data.unreadable");
  fs::remove(dir / "sample.bin");
  REQUIRE(::mkfifo((dir / "sample.bin").c_str(), 0600) == 0);
  error_of([&] { IndexedDataset dataset(sample.prefix); }, "data.unreadable");
}

TEST_CASE("indexed dataset: a file that shrinks while it is mapped is an error") {
  TempDir dir;
  for (const char* which : {".bin", ".idx"}) {
    CAPTURE(which);
    const fs::path prefix = dir / "shrinks";
    {
      IndexedDatasetWriter writer(prefix, TokenType::u16);
      writer.add_sequence(std::vector<int32_t>(100'000, 5));
      writer.finish();
    }
    const IndexedDataset dataset(prefix);
    std::vector<int32_t> ids(100'000);
    dataset.read(0, 0, ids);
    const fs::path file = prefix.string() + which;
    REQUIRE(::truncate(file.c_str(), static_cast<off_t>(fs::file_size(file) - 10)) == 0);
    CHECK(has(error_of([&] { dataset.read(0, 0, ids); }, "data.index"), which));
    CHECK(has(error_of([&] { dataset.read(0, 0, std::span(ids).first(1)); }, "data.index"),
              "when it was opened"));
  }
  // Replacing a file by another is no change of the one that is mapped.
  const Sample sample(dir);
  const IndexedDataset dataset(sample.prefix);
  write_file_atomic(sample.prefix.string() + ".bin", "");
  std::vector<int32_t> ids(3);
  dataset.read(0, 0, ids);
  CHECK(ids == std::vector<int32_t>{1, 2, 3});
}

TEST_CASE("indexed dataset: a writer goes on where another one was at its last sync") {
  TempDir dir;
  const IdsOfDocuments first = {{{1, 2}}, {}, {{3}, {4, 5}}}, second = {{{6}}, {{7, 8}}};
  IndexedDatasetWriter::Position position;
  {
    IndexedDatasetWriter writer(dir / "x", TokenType::u16);
    writer.keep_parts(true);
    write_all(writer, first);
    position = writer.sync();
    CHECK(position.tokens == 5);
    CHECK(position.sequences == 3);
    CHECK(position.documents == 3);
    // Lost: written, but never synced as part of a position.
    write_all(writer, {{{9, 9, 9}}, {{9}}});
    writer.sync();
  }
  {
    IndexedDatasetWriter writer(dir / "x", TokenType::u16, position);
    write_all(writer, second);
    writer.finish();
  }
  IdsOfDocuments expected = first;
  expected.insert(expected.end(), second.begin(), second.end());
  CHECK(read_all(IndexedDataset(dir / "x")) == expected);
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 2);
  error_of([&] { IndexedDatasetWriter writer(dir / "x", TokenType::u16, position); },
           "data.resume");
}

TEST_CASE("indexed dataset: an interrupted finish is completed") {
  TempDir dir;
  const Sample sample(dir);
  const auto at = [&](const char* name) { return sample.prefix.string() + name; };
  CHECK(IndexedDatasetWriter::complete_finish(sample.prefix));  // nothing was missing
  fs::rename(at(".idx"), at(".idx.part"));
  CHECK(IndexedDatasetWriter::complete_finish(sample.prefix));
  CHECK(read_file(at(".idx")) == sample.idx);
  fs::rename(at(".idx"), at(".idx.part"));
  fs::rename(at(".bin"), at(".bin.part"));
  CHECK(!IndexedDatasetWriter::complete_finish(sample.prefix));
}

TEST_CASE("indexed dataset: one writer at a time and the old corpus stays until the new one is") {
  TempDir dir;
  const Sample sample(dir);
  {
    IndexedDatasetWriter writer(sample.prefix, TokenType::i32);
    error_of([&] { IndexedDatasetWriter second(sample.prefix, TokenType::i32); }, "data.busy");
    write_all(writer, {{{100'000}}});
    CHECK(IndexedDataset(sample.prefix).type() == TokenType::u16);
  }
  CHECK(IndexedDataset(sample.prefix).sequences() == 4);
  IndexedDatasetWriter writer(sample.prefix, TokenType::i32);
  write_all(writer, {{{100'000}}});
  writer.finish();
  CHECK(read_all(IndexedDataset(sample.prefix)) == IdsOfDocuments{{{100'000}}});
}

TEST_CASE("indexed dataset: what cannot be written says why") {
  TempDir dir;
  CHECK(has(error_of([&] { IndexedDatasetWriter writer(dir / "no/such/x", TokenType::u16); },
                     "data.write"),
            "No such file"));
  // A limit on file sizes stands for a full disk: the write is cut short and then refused.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{3'000'000, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  const std::string what = error_of(
      [&] {
        IndexedDatasetWriter writer(dir / "y", TokenType::u16);
        for (int i = 0; i < 3; ++i) writer.add_sequence(std::vector<int32_t>(1'000'000, i));
        writer.finish();
      },
      "data.write");
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(has(what, "too large"));
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("indexed dataset: the type is that of Megatron") {
  CHECK(token_type_for(65'499) == TokenType::u16);
  CHECK(token_type_for(65'500) == TokenType::i32);
}

}  // namespace
}  // namespace mtl
