// Loading a text: the splits are the text, and every problem says what and where.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/stat.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/data/data.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/token_array.h"
#include "support/temp_dir.h"
#include "support/text.h"

namespace mtl {
namespace {

using test::TempDir;

std::vector<int32_t> all(const TokenSource& source) {
  std::vector<int32_t> ids(source.size());
  source.read(0, ids);
  return ids;
}

Corpus load(const TextCorpusOptions& options) {
  Diagnostics diagnostics;
  Corpus corpus = load_text_corpus(options, {}, diagnostics);
  for (const auto& diagnostic : diagnostics.all()) MESSAGE(render(diagnostic));
  REQUIRE(diagnostics.all().empty());
  REQUIRE(corpus.tokenizer);
  REQUIRE(corpus.train);
  REQUIRE(corpus.valid);
  return corpus;
}

// The problems of a text that cannot be used.
std::vector<Diagnostic> refused(const TextCorpusOptions& options) {
  Diagnostics diagnostics;
  const Corpus corpus = load_text_corpus(options, Place{"train.yaml", 3, 5}, diagnostics);
  CHECK(!corpus.tokenizer);
  CHECK(!corpus.train);
  CHECK(!corpus.valid);
  CHECK(diagnostics.has_errors());
  for (const auto& diagnostic : diagnostics.all()) {
    REQUIRE(diagnostic.place);
    CHECK(diagnostic.place->line == 3);
    CHECK(!diagnostic.help.empty());
  }
  return diagnostics.all();
}

using mtl::test::has;

TEST_CASE("splits are contiguous: train, then valid, then what is left aside") {
  TempDir dir;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7 % 251);
  const std::string path = dir.file("a.txt", text);
  const auto bytes = make_byte_tokenizer();
  for (const auto& [split, train, valid] :
       std::vector<std::tuple<std::vector<double>, int64_t, int64_t>>{
           {{90, 10}, 900, 100},
           {{0.5, 0.5}, 500, 500},
           {{1}, 1000, 0},
           {{1, 0}, 1000, 0},
           {{8, 1, 1}, 800, 100},
           {{1, 0, 1}, 500, 0},
           {{1, 1, 1}, 333, 333},
           {{1.0 / 3, 2.0 / 3}, 333, 667}}) {
    const Corpus corpus = load({.path = path, .split = split, .seq_len = 10});
    CHECK(corpus.train->size() == train);
    CHECK(corpus.valid->size() == valid);
    CHECK(bytes->decode(all(*corpus.train)) + bytes->decode(all(*corpus.valid)) ==
          text.substr(0, train + valid));
  }
}

TEST_CASE("characters survive block boundaries, at each width of storage") {
  TempDir dir;
  // More than one block, with multi-byte characters at every alignment to its end.
  for (int shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'x');
    while (text.size() < (size_t{1} << 20) + 100) text += "\xF0\x9F\x98\x80\xE2\x82\xAC\xC3\xA4";
    const Corpus corpus =
        load({.path = dir.file("a.txt", text), .tokenizer = "chars", .split = {1}, .seq_len = 10});
    CHECK(corpus.tokenizer->decode(all(*corpus.train)) == text);
  }
  // Bytes may be anything, also nothing but continuation bytes.
  const std::string noise((size_t{1} << 20) + 7, '\x80');
  const Corpus bytes = load({.path = dir.file("b.bin", noise), .split = {1}, .seq_len = 10});
  CHECK(bytes.tokenizer->decode(all(*bytes.train)) == noise);
  for (const int64_t vocab : {256, 257, 65536, 65537, 1114112}) {
    TokenArray tokens(vocab);
    const auto last = static_cast<int32_t>(vocab - 1);
    tokens.append(std::vector<int32_t>{0, last, 1});
    tokens.append(std::vector<int32_t>{last});
    std::vector<int32_t> out(3);
    tokens.read(1, out);
    CHECK(out == std::vector<int32_t>{last, 1, last});
  }
}

TEST_CASE("a byte order mark is not text") {
  TempDir dir;
  const std::string path = dir.file("bom.txt",
                                    "\xEF\xBB\xBF"
                                    "abcabcabcabcabcabc");
  for (const char* tokenizer : {"chars", "bytes"}) {
    const Corpus corpus = load({.path = path, .tokenizer = tokenizer, .split = {1}, .seq_len = 4});
    CHECK(corpus.tokenizer->decode(all(*corpus.train)) == "abcabcabcabcabcabc");
  }
}

TEST_CASE("fingerprint: of the tokens, not of how they are stored") {
  const std::vector<int32_t> ids = {5, 0, 255, 7, 7, 1};
  std::set<uint64_t> prints;
  for (const int64_t vocab : {256, 300, 70000}) {
    auto tokens = std::make_shared<TokenArray>(vocab);
    tokens->append(ids);
    prints.insert(make_token_range(tokens, 0, 6)->fingerprint());
  }
  CHECK(prints.size() == 1);
  auto tokens = std::make_shared<TokenArray>(256);
  for (int i = 0; i < 100000; ++i) tokens->append(std::vector<int32_t>{i % 251 * (i % 97) % 256});
  const uint64_t whole = make_token_range(tokens, 0, 100000)->fingerprint();
  CHECK(whole == make_token_range(tokens, 0, 100000)->fingerprint());
  CHECK(whole != make_token_range(tokens, 0, 99999)->fingerprint());
  CHECK(whole != make_token_range(tokens, 1, 99999)->fingerprint());
  auto changed = std::make_shared<TokenArray>(256);
  for (int i = 0; i < 100000; ++i) {
    changed->append(std::vector<int32_t>{i == 77777 ? 3 : i % 251 * (i % 97) % 256});
  }
  CHECK(whole != make_token_range(changed, 0, 100000)->fingerprint());
}

TEST_CASE("paths that are no text") {
  TempDir dir;
  dir.file("corpus.txt", "text");
  const auto one = [&](const std::string& path) {
    const auto problems = refused({.path = path, .seq_len = 1});
    REQUIRE(problems.size() == 1);
    return problems[0];
  };
  const Diagnostic missing = one((dir.path() / "corpsu.txt").string());
  CHECK(missing.code == "data.missing");
  CHECK(has(missing.help, "corpus.txt"));
  CHECK(one((dir.path() / "no" / "such").string()).code == "data.missing");
  CHECK(one((dir.path() / "corpus.txt" / "x").string()).code == "data.missing");
  CHECK(one("").code == "data.missing");
  CHECK(one("no-such-text-of-mtl.txt").notes.size() == 1);
  const Diagnostic directory = one(dir.path().string());
  CHECK(directory.code == "data.unreadable");
  CHECK(has(directory.what, "directory"));
  CHECK(one(dir.file("empty.txt", "")).code == "data.empty");
  const std::string fifo = (dir.path() / "fifo").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(one(fifo).code == "data.unreadable");
  if (::geteuid() != 0) {
    const std::string locked = dir.file("locked.txt", "text");
    REQUIRE(::chmod(locked.c_str(), 0) == 0);
    CHECK(one(locked).code == "data.unreadable");
  }
}

TEST_CASE("a text that is too short says what would fit") {
  TempDir dir;
  const std::string path = dir.file("a.txt", std::string(100, 'x'));
  const auto problems = refused({.path = path, .split = {90, 10}, .seq_len = 16});
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].code == "data.too_short");
  CHECK(has(problems[0].what, "90 for train"));
  CHECK(has(problems[0].what, "10 for valid"));
  CHECK(has(problems[0].what, "at least 17"));
  CHECK(has(problems[0].help, "train.seq_len <= 9"));
  CHECK(has(problems[0].help, "another data.split"));
  // Of a text that is not split: data.valid's.
  CHECK(refused({.path = path, .split = {1}, .seq_len = 100})[0].help ==
        "use train.seq_len <= 99 or a longer text");
  // The bound is exact.
  load({.path = path, .split = {90, 10}, .seq_len = 9});
  refused({.path = path, .split = {90, 10}, .seq_len = 10});
  load({.path = path, .split = {1}, .seq_len = 99});
  refused({.path = path, .split = {1}, .seq_len = 100});
  // A split that was asked for and rounds to nothing is not an empty one.
  CHECK(refused({.path = path, .split = {1e6, 1}, .seq_len = 1})[0].code == "data.too_short");
}

TEST_CASE("weights that split nothing, together with the file's problems") {
  TempDir dir;
  const std::string path = dir.file("a.txt", std::string(100, 'x'));
  const double inf = std::numeric_limits<double>::infinity();
  const double huge = std::numeric_limits<double>::max();
  for (const std::vector<double>& split : std::vector<std::vector<double>>{{},
                                                                           {0},
                                                                           {0, 1},
                                                                           {-1, 2},
                                                                           {1, -1},
                                                                           {std::nan(""), 1},
                                                                           {inf, 1},
                                                                           {1, 1, 1, 1},
                                                                           {huge, huge}}) {
    const auto problems = refused({.path = path, .split = split, .seq_len = 1});
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].code == "data.split");
  }
  CHECK(refused({.path = path + "x", .split = {}, .seq_len = 1}).size() == 2);
  CHECK(refused({.path = path, .tokenizer = "bpe", .seq_len = 1})[0].code == "data.tokenizer");
}

TEST_CASE("damaged UTF-8 is found with its offset, but bytes take it") {
  TempDir dir;
  const std::string path = dir.file("a.txt", "good text\xFF and more");
  const auto problems = refused({.path = path, .tokenizer = "chars", .seq_len = 1});
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].code == "data.utf8");
  CHECK(has(problems[0].what, "offset 9"));
  CHECK(has(problems[0].what, "a.txt"));
  load({.path = path, .tokenizer = "bytes", .split = {1}, .seq_len = 1});
}

TEST_CASE("a text is tokenized with the files of others, and its ids do not depend on blocks") {
  const TempDir dir;
  // Longer than a block of 1 MB, and a word lies across its end.
  std::string text;
  while (text.size() < (1 << 20) + 5000) text += "some words \n\n";
  const auto tokenizer = make_byte_tokenizer();
  nlohmann::json file = to_hf_tokenizer(*tokenizer);
  file["pre_tokenizer"]["use_regex"] = true;
  file["model"]["vocab"]["wo"] = 256;
  file["model"]["vocab"]["words"] = 257;
  file["model"]["vocab"]["rds"] = 258;
  file["model"]["vocab"]["ds"] = 259;
  file["model"]["merges"] = {"w o", "d s", "r ds", "wo rds"};
  const std::string path = dir.file("tokenizer.json", file.dump());
  const auto given = load_tokenizer({.type = "hf", .file = path});
  Diagnostics diagnostics;
  const Corpus corpus = load_text_corpus(
      {.path = dir.file("a.txt", text), .given = given.get(), .split = {1}, .seq_len = 4}, {},
      diagnostics);
  REQUIRE(diagnostics.all().empty());
  const auto ids = all(*corpus.train);
  CHECK(ids == given->encode(text));
  CHECK(given->decode(ids) == text);
  CHECK(std::count(ids.begin(), ids.end(), 257) > 70'000);
}

}  // namespace
}  // namespace mtl
