// Making a corpus may be interrupted anywhere: it goes on and gives the same bytes, with the same
// inputs and settings alone.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/files.h"
#include "runtime/data/corpus_case.h"
#include "runtime/data/text_units.h"
#include "support/sanitized.h"
#include "support/text.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using namespace test;

TEST_CASE("tokenize: interrupted anywhere it goes on and gives the same bytes") {
  std::string lines, plain;
  for (int i = 0; i < 30'000; ++i) lines += json_line("document " + std::to_string(i * 7919));
  while (plain.size() < 3 * kTextPieceBytes) plain += "word " + std::to_string(plain.size()) + "\n";
  CorpusCase whole;
  const std::vector<std::string> inputs = {
      whole.dir.file("a.jsonl", lines), whole.dir.file("b.txt", plain),
      whole.dir.file("c.jsonl.gz", gzip(lines)), whole.dir.file("d.jsonl.zst", zstd(lines))};
  whole.options.inputs = inputs;
  whole.options.append_eod = true;
  const BytesWithEnds tokenizer;
  tokenize_corpus(tokenizer, whole.options, {});
  struct Stop {};
  for (const int64_t every : {1, 2, 5}) {
    if (kSanitized && every == 1) continue;
    CorpusCase c;
    c.options.inputs = inputs;
    c.options.append_eod = true;
    c.options.workers = 2;
    c.options.journal_every_s = 0;
    int stops = 0;
    for (bool done = false; !done;) {
      int64_t steps = 0;
      int64_t last = -1;
      const auto stop = [&](const TokenizeProgress& progress) {
        if (progress.tokens != last && ++steps > every) {
          ++stops;
          throw Stop();
        }
        last = progress.tokens;
      };
      try {
        const TokenizeReport report = tokenize_corpus(tokenizer, c.options, {stop, {}});
        CHECK(report.resumed_at > 0);
        done = true;
      } catch (const Stop&) {
        CHECK(!fs::exists(c.dir / "out.idx"));
      }
      REQUIRE(stops < 1000);
    }
    CHECK(stops > 1);
    CHECK((read_file(c.dir / "out.bin") == read_file(whole.dir / "out.bin")));
    CHECK((read_file(c.dir / "out.idx") == read_file(whole.dir / "out.idx")));
    CHECK((read_file(c.dir / "out.meta.json") == read_file(whole.dir / "out.meta.json")));
  }
}

TEST_CASE("tokenize: a command that is wrong from its first line on leaves nothing in the way") {
  CorpusCase c;
  c.options.inputs = {c.dir.file("in.jsonl", "{\"body\": \"one\"}\n")};
  CHECK(has(c.refused("data.line").what, "--json_keys"));
  for (const auto& entry : fs::directory_iterator(c.dir.path())) {
    CAPTURE(entry.path());
    CHECK(entry.path().extension() != ".part");
  }
  c.options.json_keys = {"body"};
  CHECK(c.made() == Lines{"one"});
}

TEST_CASE("tokenize: it goes on only with the same inputs and tokenizer and settings") {
  CorpusCase c;
  const std::string input =
      c.dir.file("in.jsonl", json_line("one") + std::string(kUnitBytes, ' ') + "\n{");
  c.options.inputs = {input};
  c.refused("data.line");
  CHECK(fs::exists(c.dir / "out.journal.json"));
  c.options.append_eod = true;
  CHECK(has(c.refused("data.resume").what, "end of document: no"));
  c.options.append_eod = false;
  c.tokenizer = BytesWithEod(300);
  CHECK(has(c.refused("data.resume").what, "tokenizer"));
  c.tokenizer = BytesWithEod();
  c.dir.file("in.jsonl", json_line("two"));
  CHECK(has(c.refused("data.resume").what, "inputs"));
  write_file_atomic(c.dir / "out.journal.json", "{");
  CHECK(has(c.refused("data.resume").what, "damaged"));
  c.options.fresh = true;
  CHECK(c.made() == Lines{"two"});
  c.options.fresh = false;
  c.refused("data.exists");
  CHECK(documents_of(c.dir / "out") == Lines{"two"});
}

TEST_CASE("tokenize: a crash while the files get their names is completed") {
  CorpusCase c;
  c.options.inputs = {c.dir.file("in.jsonl", "{\"a\": \"1\", \"b\": \"2\"}\n")};
  c.options.json_keys = {"a", "b"};
  struct Stop {};
  // Everything is in and the journal says so, then one of two is finished by hand.
  try {
    tokenize_corpus(c.tokenizer, c.options,
                    {[](const TokenizeProgress& progress) {
                       if (progress.documents > 0) throw Stop();
                     },
                     {}});
  } catch (const Stop&) {
  }
  c.options.journal_every_s = 0;
  c.run();
  CHECK(documents_of(c.dir / "out_a_document") == Lines{"1"});
  CHECK(documents_of(c.dir / "out_b_document") == Lines{"2"});
}

}  // namespace
}  // namespace mtl
