// What a corpus says about itself survives writing and reading, and nothing else is believed.
#include "runtime/data/corpus_meta.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using nlohmann::json;
using test::TempDir;

CorpusMeta sample() {
  const auto tokenizer = make_byte_tokenizer();
  CorpusMeta meta;
  meta.tokenizer_hash = hash_of(*tokenizer);
  meta.vocab_size = 256;
  meta.eod = 0;
  meta.tokenizer_file = "corpus.tokenizer.json";
  meta.documents_end_in_eod = true;
  meta.sequences = 3;
  meta.documents = 2;
  meta.tokens = 12;
  meta.json_key = "text";
  meta.inputs = {{"a b.jsonl.gz", 17}, {"-", 0}, {"caf\xe9", 1}};
  return meta;
}

std::string refused(const json& object) {
  try {
    parse_corpus_meta(object.dump(), "x.meta.json");
  } catch (const Error& error) {
    CHECK(error.diagnostics().front().code == "data.meta");
    return error.diagnostics().front().what;
  }
  FAIL("accepted: " << object.dump());
  return {};
}

TEST_CASE("corpus meta: written and read again it is the same") {
  TempDir dir;
  CHECK(!read_corpus_meta(dir / "corpus"));
  const CorpusMeta meta = sample();
  write_corpus_meta(dir / "corpus", meta);
  const auto back = read_corpus_meta(dir / "corpus.idx");
  REQUIRE(back);
  CHECK(back->tokenizer_hash == meta.tokenizer_hash);
  CHECK(back->vocab_size == 256);
  CHECK(back->eod == 0);
  CHECK(back->tokenizer_file == meta.tokenizer_file);
  CHECK(back->documents_end_in_eod);
  CHECK(back->type == TokenType::u16);
  CHECK(back->sequences == 3);
  CHECK(back->documents == 2);
  CHECK(back->tokens == 12);
  CHECK(back->json_key == "text");
  REQUIRE(back->inputs.size() == 3);
  CHECK(back->inputs[0].path == "a b.jsonl.gz");
  CHECK(back->inputs[0].bytes == 17);
}

TEST_CASE("corpus meta: the tokenizer comes with the corpus and is the one that made it") {
  TempDir dir;
  const CorpusMeta meta = sample();
  CHECK_THROWS_AS(load_corpus_tokenizer(dir / "corpus", meta), Error);
  write_corpus_tokenizer(dir / "corpus", *make_byte_tokenizer());
  const auto tokenizer = load_corpus_tokenizer(dir / "corpus", meta);
  REQUIRE(tokenizer);
  CHECK(tokenizer->encode("ab") == std::vector<int32_t>{'a', 'b'});
  write_corpus_tokenizer(dir / "corpus", *make_char_tokenizer("abc"));
  CHECK_THROWS_WITH_AS(load_corpus_tokenizer(dir / "corpus", meta),
                       doctest::Contains("its hash is another"), Error);
  dir.file("corpus.tokenizer.json", "{");
  CHECK_THROWS_WITH_AS(load_corpus_tokenizer(dir / "corpus", meta), doctest::Contains("not JSON"),
                       Error);
}

TEST_CASE("corpus meta: each member is checked") {
  const json good = json::parse(corpus_meta_json(sample()));
  CHECK_NOTHROW(parse_corpus_meta(good.dump(), "x"));
  for (const auto& [name, value] : good.items()) {
    CAPTURE(name);
    json missing = good;
    missing.erase(name);
    CHECK(refused(missing).find(name) != std::string::npos);
    json wrong = good;
    wrong[name] = json::array({1.5});
    CHECK(refused(wrong).find(name == "inputs" ? "not an object" : name) != std::string::npos);
  }
  for (const auto& [name, value] : good["tokenizer"].items()) {
    CAPTURE(name);
    json wrong = good;
    wrong["tokenizer"][name] = -1;
    CHECK(refused(wrong).find(name) != std::string::npos);
  }
  const auto with = [&](const char* pointer, const json& value) {
    json wrong = good;
    wrong[json::json_pointer(pointer)] = value;
    return refused(wrong);
  };
  CHECK(with("/version", 2).find("version 2") != std::string::npos);
  CHECK(with("/tokenizer/eod", 256).find("vocabulary") != std::string::npos);
  CHECK(with("/tokenizer/eod", nullptr).find("is null") != std::string::npos);
  CHECK(with("/tokenizer/hash", "0x23456789abcdef").find("hexa") != std::string::npos);
  CHECK(with("/tokenizer/file", "../../etc/passwd").find("beside") != std::string::npos);
  CHECK(with("/tokens", uint64_t{1} << 63).find("tokens") != std::string::npos);
  CHECK(with("/tokens", -1).find("tokens") != std::string::npos);
  CHECK(with("/inputs/0", 1).find("inputs") != std::string::npos);
  CHECK_THROWS_AS(parse_corpus_meta(std::string(100'000, '['), "x"), Error);
  CHECK_THROWS_AS(parse_corpus_meta("", "x"), Error);
  CHECK_THROWS_AS(parse_corpus_meta("{\"format\": \"mtl.corpus\"", "x"), Error);
}

TEST_CASE("corpus meta: the counts are those of the corpus") {
  TempDir dir;
  IndexedDatasetWriter writer(dir / "x", TokenType::u16);
  writer.add_sequence(std::vector<int32_t>{1, 2});
  writer.finish();
  const IndexedDataset dataset(dir / "x");
  CorpusMeta meta = sample();
  meta.sequences = meta.documents = 1;
  meta.tokens = 2;
  CHECK_NOTHROW(check_corpus_meta(meta, dataset));
  meta.tokens = 3;
  CHECK_THROWS_WITH_AS(check_corpus_meta(meta, dataset), doctest::Contains("3 tokens"), Error);
  meta.tokens = 2;
  meta.type = TokenType::i32;
  CHECK_THROWS_AS(check_corpus_meta(meta, dataset), Error);
}

}  // namespace
}  // namespace mtl
