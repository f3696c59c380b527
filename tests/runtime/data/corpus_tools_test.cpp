// Statistics are those of the ids, verification names the first thing that is wrong, and a merge is
// Megatron's.
#include "runtime/data/corpus_tools.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

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

CorpusMeta write_corpus(const fs::path& prefix, const IdsOfDocuments& documents,
                        const Tokenizer& tokenizer) {
  IndexedDatasetWriter writer(prefix, TokenType::u16);
  for (const auto& document : documents) {
    for (const auto& ids : document) writer.add_sequence(ids);
    writer.end_document();
  }
  const auto position = writer.position();
  writer.finish();
  CorpusMeta meta;
  meta.tokenizer_hash = hash_of(tokenizer);
  meta.vocab_size = tokenizer.vocab_size();
  meta.tokenizer_file = tokenizer_path(prefix).filename().string();
  meta.sequences = position.sequences;
  meta.documents = position.documents;
  meta.tokens = position.tokens;
  meta.inputs = {{prefix.filename().string() + ".jsonl", 5}};
  write_corpus_tokenizer(prefix, tokenizer);
  write_corpus_meta(prefix, meta);
  return meta;
}

TEST_CASE("corpus stats: lengths and frequencies are those of the ids") {
  TempDir dir;
  write_corpus(dir / "x", {{{7, 7, 7, 0}}, {}, {{1}, {7, 0}}, {{5}}, {{0}}},
               *make_byte_tokenizer());
  int64_t seen = 0;
  const CorpusStats stats =
      corpus_stats(open_corpus(dir / "x", false), 0, 2, [&](int64_t tokens) { seen = tokens; });
  CHECK(seen == 9);
  CHECK(stats.documents == 5);
  CHECK(stats.empty_documents == 1);
  CHECK(stats.sequences == 5);
  CHECK(stats.tokens == 9);
  CHECK(stats.shortest == 1);
  CHECK(stats.longest == 4);
  CHECK(stats.median == 3);  // of 1 1 3 4
  CHECK(stats.by_length == std::vector<int64_t>{2, 1, 1});
  CHECK(stats.distinct == 4);
  CHECK(stats.most_frequent == std::vector<std::pair<int32_t, int64_t>>{{7, 4}, {0, 3}});
  CHECK(*stats.eod_share == doctest::Approx(3.0 / 9));
  const CorpusStats empty =
      corpus_stats(open_corpus(kIndexed / "empty", false), std::nullopt, 10, {});
  CHECK(empty.tokens == 0);
  CHECK(empty.most_frequent.empty());
  CHECK(!empty.eod_share);
  // An id far above any vocabulary does not cost a table of that size.
  CHECK(corpus_stats(open_corpus(kIndexed / "plain_i32", false), std::nullopt, 10, {}).distinct ==
        4);
}

TEST_CASE("corpus verify: the first wrong sequence is named") {
  TempDir dir;
  const auto tokenizer = make_byte_tokenizer();
  CorpusMeta meta = write_corpus(dir / "x", {{{1, 2}}, {{3, 255}, {4, 9}}, {}, {{9}}}, *tokenizer);
  const IndexedDataset dataset(dir / "x");
  VerifyReport report = verify_corpus(dataset, meta, std::nullopt, {});
  CHECK(report.ids_checked);
  CHECK(!report.ends_checked);
  CHECK(report.largest_id == 255);
  CHECK(!verify_corpus(dataset, std::nullopt, std::nullopt, {}).ids_checked);
  const std::string what = error_of([&] { verify_corpus(dataset, meta, 255, {}); }, "data.verify");
  CHECK(has(what, "sequence 1 (document 1) has the id 255 as its token 1"));
  // Document 0 ends in 2, the others in 9.
  meta.documents_end_in_eod = true;
  meta.eod = 9;
  CHECK(has(error_of([&] { verify_corpus(dataset, meta, std::nullopt, {}); }, "data.verify"),
            "sequence 0 is the end of document 0 and ends in the id 2"));
  write_corpus(dir / "y", {{{1, 9}}, {{3}, {4, 9}}, {}, {{9}}}, *tokenizer);
  meta.tokens = 6;
  CHECK(verify_corpus(IndexedDataset(dir / "y"), meta, std::nullopt, {}).ends_checked);
  meta.tokens = 8;
  error_of([&] { verify_corpus(dataset, meta, std::nullopt, {}); }, "data.meta");
}

TEST_CASE("corpus merge: Megatron's bytes for Megatron's corpora") {
  TempDir dir;
  merge_corpora({kIndexed / "plain_u16", kIndexed / "empty.idx", kIndexed / "plain_u16.bin"},
                dir / "merged", false);
  CHECK(read_file(dir / "merged.bin") == read_file(kIndexed / "merged.bin"));
  CHECK(read_file(dir / "merged.idx") == read_file(kIndexed / "merged.idx"));
  CHECK(!fs::exists(dir / "merged.meta.json"));
}

TEST_CASE("corpus merge: what the parts say of themselves the whole says too") {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  write_corpus(dir / "a", {{{1, 2}}}, *bytes);
  write_corpus(dir / "b", {{{3}}, {}}, *bytes);
  merge_corpora({dir / "a", dir / "b"}, dir / "ab", false);
  const OpenedCorpus merged = open_corpus(dir / "ab", true);
  REQUIRE(merged.meta);
  REQUIRE(merged.tokenizer);
  CHECK(merged.meta->documents == 3);
  CHECK(merged.meta->tokens == 3);
  REQUIRE(merged.meta->inputs.size() == 2);
  CHECK(merged.meta->inputs[1].path == "b.jsonl");
  CHECK_NOTHROW(verify_corpus(*merged.dataset, merged.meta, std::nullopt, {}));

  const auto merge = [&](const std::vector<fs::path>& from, const fs::path& to) {
    return [=] { merge_corpora(from, to, false); };
  };
  error_of(merge({dir / "a"}, dir / "ab"), "data.exists");
  CHECK_NOTHROW(merge_corpora({dir / "a"}, dir / "ab", true));
  CHECK(IndexedDataset(dir / "ab").documents() == 1);
  error_of(merge({dir / "a", dir / "b"}, dir / "b"), "data.merge");
  error_of(merge({dir / "a", kIndexed / "plain_i32"}, dir / "c"), "data.merge");
  write_corpus(dir / "chars", {{{1}}}, *make_char_tokenizer("abc"));
  CHECK(has(error_of(merge({dir / "a", dir / "chars"}, dir / "c"), "data.merge"),
            "different tokenizers"));
  CHECK(has(
      error_of(merge({kIndexed / "plain_u16", dir / "a", dir / "chars"}, dir / "c"), "data.merge"),
      "different tokenizers"));
  CHECK(!fs::exists(dir / "c.bin"));
  // One part that says nothing: nothing is said of the whole.
  merge_corpora({dir / "a", kIndexed / "plain_u16"}, dir / "c", false);
  CHECK(!fs::exists(dir / "c.meta.json"));
}

}  // namespace
}  // namespace mtl
