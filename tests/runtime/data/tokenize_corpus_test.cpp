// Text becomes the corpus that Megatron's preprocess_data.py would make of it, from any packing,
// with any number of threads; and what cannot be used is named with its line.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/corpus_case.h"
#include "runtime/data/encode_pipeline.h"
#include "runtime/data/indexed.h"
#include "runtime/data/text_input.h"
#include "runtime/data/text_units.h"
#include "support/no_threads.h"
#include "support/text.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace test;

// Gives the ids that GPT-2's tokenizer gave for a few texts.
class TableTokenizer : public Tokenizer {
 public:
  void add(const std::string& text, std::vector<int32_t> ids) { table_[text] = std::move(ids); }
  int64_t vocab_size() const override { return 50257; }
  std::optional<int32_t> eod() const override { return 50256; }
  std::vector<int32_t> encode(std::string_view text) const override {
    return table_.at(std::string(text));
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  json to_json() const override { return {{"table", table_}}; }

 private:
  std::map<std::string, std::vector<int32_t>> table_;
};

TEST_CASE("tokenize: what Megatron makes of the same lines byte for byte") {
  TableTokenizer tokenizer;
  const json reference = json::parse(read_file(kIndexed / "gpt2.json"));
  std::string lines = read_file(kIndexed / "gpt2.jsonl");
  size_t begin = 0;
  for (const json& document : reference.at("documents")) {
    const size_t end = lines.find('\n', begin);
    const json line = json::parse(lines.substr(begin, end - begin));
    begin = end + 1;
    std::vector<int32_t> ids;
    if (!document.empty()) ids = document[0].get<std::vector<int32_t>>();
    if (!ids.empty()) ids.pop_back();  // the end of the document, added by Megatron
    tokenizer.add(line.at("text"), ids);
  }
  for (const int64_t workers : {1, 3}) {
    TempDir dir;
    TokenizeOptions options;
    options.inputs = {(kIndexed / "gpt2.jsonl").string()};
    options.prefix = dir / "gpt2";
    options.append_eod = true;
    options.workers = workers;
    const TokenizeReport report = tokenize_corpus(tokenizer, options, {});
    CHECK(read_file(dir / "gpt2.bin") == read_file(kIndexed / "gpt2.bin"));
    CHECK(read_file(dir / "gpt2.idx") == read_file(kIndexed / "gpt2.idx"));
    const auto meta = read_corpus_meta(dir / "gpt2");
    REQUIRE(meta);
    CHECK(meta->documents == 4);
    CHECK(meta->sequences == 3);
    CHECK(meta->eod == 50256);
    CHECK(meta->documents_end_in_eod);
    CHECK(meta->tokenizer_hash == hash_of(tokenizer));
    CHECK_NOTHROW(check_corpus_meta(*meta, IndexedDataset(dir / "gpt2")));
    CHECK(report.outputs.at(0).meta.tokens == meta->tokens);
    // The pair, what it says of itself and its tokenizer: nothing else is left.
    CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 4);
  }
}

TEST_CASE("tokenize: any packing, directories and globs, in a stable order") {
  CorpusCase c;
  std::string big;
  Lines expected;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = "line " + std::to_string(i * 7919) + std::string(i % 97, 'x');
    expected.push_back(text + "|");
    big += json_line(text);
  }
  const std::string first = big.substr(0, 300'001), rest = big.substr(300'001);
  fs::create_directories(c.dir / "in/sub");
  c.dir.file("in/a.jsonl.gz", gzip(first) + gzip(rest) + std::string(512, '\0'));
  c.dir.file("in/b.jsonl", big);
  c.dir.file("in/c.json.zst", zstd(first) + zstd(rest));
  c.dir.file("in/.hidden.jsonl", "{");
  c.dir.file("in/readme.pdf", "{");
  c.dir.file("in/sub/d.ndjson", big.substr(0, big.size() - 1));  // no newline at the end
  Lines four;
  for (int i = 0; i < 4; ++i) four.insert(four.end(), expected.begin(), expected.end());
  c.options.append_eod = true;
  c.options.workers = 3;
  c.options.inputs = {(c.dir / "in").string()};
  CHECK(c.made() == four);
  c.options.fresh = true;
  CHECK(c.run().passed_over == 1);
  c.options.inputs = {(c.dir / "in/*.js*").string(), (c.dir / "in/s*").string()};
  c.options.workers = 1;
  CHECK(c.made() == four);
  // A wrong name changes nothing about the packing.
  c.dir.file("packed.jsonl", gzip(big));
  c.options.inputs = {(c.dir / "packed.jsonl").string()};
  CHECK(c.made() == expected);
}

TEST_CASE("tokenize: directories behind links, once each, and nothing hidden") {
  CorpusCase c;
  fs::create_directories(c.dir / "in/sub/.cache");
  fs::create_directories(c.dir / "elsewhere");
  c.dir.file("in/a.txt", "a");
  c.dir.file("in/sub/.cache/b.txt", "b");
  c.dir.file("elsewhere/c.txt", "c");
  fs::create_directory_symlink(c.dir / "elsewhere", c.dir / "in/linked");
  fs::create_directory_symlink(c.dir / "elsewhere", c.dir / "in/sub/again");
  fs::create_directory_symlink("..", c.dir / "in/sub/round");
  fs::create_symlink(c.dir / "nowhere", c.dir / "in/dangling.txt");
  c.options.inputs = {(c.dir / "in").string()};
  CHECK(c.made() == Lines{"a", "c"});
}

TEST_CASE("tokenize: what others have packed is refused with what unpacks it") {
  CorpusCase c;
  for (const auto& [bytes, help] : {std::pair<std::string, const char*>{"\xFD"
                                                                        "7zXZ",
                                                                        "xz -d"},
                                    {"BZh91AY&SY", "bzip2 -d"},
                                    {"PK\x03\x04", "unzip"},
                                    {"PAR1", "JSON Lines"},
                                    {"%PDF-1.7", "pdftotext"}}) {
    CAPTURE(bytes);
    c.options.inputs = {c.dir.file("a.txt", bytes + "\n")};
    CHECK(has(c.refused("data.line").what, help));
  }
  c.options.inputs = {c.dir.file("a.txt", "BZhe is a text")};
  c.options.fresh = true;
  c.run();
  CHECK(documents_of(c.options.prefix) == Lines{"BZhe is a text"});
}

TEST_CASE("tokenize: what is no text is refused, or passed over as a whole") {
  CorpusCase c;
  const std::string utf16("\xFF\xFEw\0i\0d\0e\0", 10), zero("binary\0\n\n", 9);
  for (const bool lines : {false, true}) {
    for (const std::string& bytes : {utf16, zero, gzip(zero), "\xEF\xBB\xBF" + zero}) {
      CAPTURE(bytes);
      c.options.fresh = true;
      c.options.skip_bad = false;
      c.options.format = "";
      c.options.lines_are_documents = lines;
      c.options.inputs = {c.dir.file("a.txt", "good"), c.dir.file("b.txt", bytes),
                          c.dir.file("c.txt", "too")};
      const Diagnostic refused = c.refused("data.line");
      CHECK(refused.place->file == (c.dir / "b.txt").string());
      CHECK(has(refused.what, bytes == utf16 ? "iconv -f UTF-16" : "zero byte"));
      // The same command goes on from there.
      c.options.fresh = false;
      c.options.skip_bad = true;
      CHECK(c.run().bad_lines == 1);
      CHECK(documents_of(c.options.prefix) == Lines{"good", "too"});
      c.options.fresh = true;
      c.options.format = "text";
      CHECK(c.run().bad_lines == 0);
    }
  }
}

TEST_CASE("tokenize: damaged packing is an error that names the file") {
  CorpusCase c;
  std::string text;
  for (int i = 0; i < 5'000; ++i) text += json_line(std::to_string(i * 7919));
  const auto refused = [&](const std::string& name, const std::string& content) {
    c.options.fresh = true;
    c.options.inputs = {c.dir.file(name, content)};
    const Diagnostic diagnostic = c.refused("data.compressed");
    CHECK(has(diagnostic.what, name));
    CHECK(!fs::exists(c.dir / "out.idx"));
  };
  const std::string gz = gzip(text), zst = zstd(text);
  refused("cut.gz", gz.substr(0, gz.size() / 2));
  refused("cut2.gz", gz.substr(0, gz.size() - 3));
  refused("tail.gz", gz + "garbage");
  std::string flipped = gz;
  flipped[gz.size() / 2] ^= 0x10;
  refused("flip.gz", flipped);
  refused("cut.zst", zst.substr(0, zst.size() / 2));
  refused("cut2.zst", zst.substr(0, zst.size() - 1));
  refused("tail.zst", zst + "garbage");
}

TEST_CASE("tokenize: lists of texts and several keys and empty documents") {
  CorpusCase c;
  c.options.inputs = {c.dir.file("in.jsonl",
                                 "{\"a\": [\"x\", \"\", \"yz\"], \"b\": \"1\"}\n"
                                 "\n"
                                 "{\"b\": \"\\u00e9\", \"a\": \"\", \"c\": 3}\r\n"
                                 "{\"a\": \"first\", \"a\": \"last\", \"b\": []}\n")};
  c.options.json_keys = {"b", "a"};
  c.options.append_eod = true;
  const TokenizeReport report = c.run();
  CHECK(report.blank_lines == 1);
  REQUIRE(report.outputs.size() == 2);
  CHECK(report.outputs[0].prefix == c.dir / "out_b_document");
  CHECK(documents_of(c.dir / "out_b_document") == Lines{"1|", "\u00e9|", ""});
  CHECK(documents_of(c.dir / "out_a_document") == Lines{"x/yz|", "", "last|"});
  CHECK(read_corpus_meta(c.dir / "out_a_document")->json_key == "a");
}

TEST_CASE("tokenize: a bad line is named and can be passed over") {
  const std::pair<const char*, const char*> kBad[] = {
      {"{\"text\": \"a\"", "not JSON"},
      {"{\"text\": \"a\"} x", "not JSON"},
      {"[\"text\"]", "jq -c"},
      {" [", "jq -c"},
      {"3", "not a JSON object"},
      {"{\"txt\": \"a\"}", "no 'text' among its keys: 'txt'"},
      {"{\"text\": 1}", "neither a string"},
      {"{\"text\": null}", "neither a string"},
      {"{\"text\": [\"a\", 1]}", "an element"},
      {"{\"text\": \"\xff\"}", "not JSON"},
      {"{\"text\": \"\\u0001\"}", "spell"},
      {"{}", "it has none"},
      {"{\"text\": \"\\ud800\"}", "not JSON"}};
  for (const auto& [line, reason] : kBad) {
    CAPTURE(line);
    CorpusCase c;
    c.options.inputs = {
        c.dir.file("in.jsonl", json_line("one") + "\n" + line + "\n" + json_line("two"))};
    const Diagnostic diagnostic = c.refused("data.line");
    CHECK(has(diagnostic.what, reason));
    REQUIRE(diagnostic.place);
    CHECK(diagnostic.place->file == c.options.inputs[0]);
    CHECK(diagnostic.place->line == 3);
    CHECK(!fs::exists(c.dir / "out.bin"));
    // The same command goes on with it.
    c.options.skip_bad = true;
    const TokenizeReport report = c.run();
    CHECK(report.bad_lines == 1);
    REQUIRE(c.warnings.size() == 1);
    CHECK(c.warnings[0].place->line == 3);
    CHECK(documents_of(c.dir / "out") == Lines{"one", "two"});
  }
}

TEST_CASE("tokenize: a line that is too long for memory is a bad line") {
  CorpusCase c;
  c.options.inputs = {c.dir.file(
      "in.jsonl",
      json_line("one") + json_line(std::string(kLongestLine + 5, 'x')) + json_line("two"))};
  CHECK(has(c.refused("data.line").what, "16777"));
  c.options.skip_bad = true;
  CHECK(c.made() == Lines{"one", "two"});
  CHECK(c.warnings.at(0).place->line == 2);
  // One that just fits is encoded in pieces.
  CorpusCase fits;
  const std::string text(kLongestLine - 100, 'y');
  fits.options.inputs = {fits.dir.file("in.jsonl", json_line(text))};
  CHECK(fits.made() == Lines{text});
}

TEST_CASE("tokenize: plain text by files and by lines") {
  CorpusCase c;
  c.options.append_eod = true;
  const std::string a = c.dir.file("a.txt", "\xEF\xBB\xBFone\n\ntwo\r\n"), b = c.dir.file("b", ""),
                    d = c.dir.file("d.txt", "three");
  c.options.inputs = {a, b, d};
  CHECK(c.made() == Lines{"one\n\ntwo\r\n|", "", "three|"});
  CHECK(read_corpus_meta(c.options.prefix)->json_key.empty());
  c.options.fresh = true;
  c.options.lines_are_documents = true;
  CHECK(c.made() == Lines{"one|", "two|", "three|"});
  // What a name says can be overruled.
  c.options.inputs = {c.dir.file("e.jsonl", "{\n}")};
  c.options.format = "text";
  CHECK(c.made() == Lines{"{|", "}|"});
}

TEST_CASE("tokenize: where no thread can be started that is said, and later it is done") {
  CorpusCase c;
  c.options.inputs = {c.dir.file("a.txt", "one")};
  {
    const NoThreads poor;
    CHECK(code_of([&] { c.made(); }) == "machine.no_thread");
  }
  CHECK(c.made() == Lines{"one"});
  // Who reads is there and nobody who encodes.
  CHECK(code_of([&] {
          const BytesWithEod tokenizer;
          const std::vector<TextInput> files = find_inputs(c.options.inputs, "").files;
          EncodePipeline(tokenizer, {}, {}, files, 0, 0, {});
        }) == "machine.no_thread");
}

TEST_CASE("tokenize: a text larger than a piece is one document all the same") {
  std::string text;
  while (text.size() < 5 * kTextPieceBytes) {
    text += "some words, \xc3\xa9 and number " + std::to_string(text.size());
    text += text.size() % 5 == 0 ? "\n\n  " : "\n";
  }
  for (const bool lines : {false, true}) {
    for (const bool no_space : {false, true}) {
      CAPTURE(lines);
      CAPTURE(no_space);
      CorpusCase c;
      std::string content = text;
      if (lines) std::replace(content.begin(), content.end(), '\n', ' ');
      if (no_space) content.assign(text.size(), 'z');
      c.options.inputs = {c.dir.file("a.txt", lines ? content + "\r\nlast\n" : content)};
      c.options.lines_are_documents = lines;
      c.options.workers = 2;
      c.options.append_eod = true;
      const TokenizeReport report = c.run();
      CHECK((report.forced_cuts > 0) == no_space);
      const Lines expected = lines ? Lines{content + "|", "last|"} : Lines{content + "|"};
      CHECK((documents_of(c.dir / "out") == expected));
    }
  }
}

TEST_CASE("tokenize: what a tokenizer puts at the ends of a text stands there once") {
  const BytesWithEnds tokenizer;
  std::string text;
  while (text.size() < 3 * kTextPieceBytes) text += "words of " + std::to_string(text.size()) + " ";
  CorpusCase c;
  const auto made = [&](const std::string& name, const std::string& content) {
    c.options.inputs = {c.dir.file(name, content)};
    c.options.fresh = true;
    tokenize_corpus(tokenizer, c.options, {});
    return documents_of(c.options.prefix);
  };
  CHECK((made("a.txt", text) == Lines{"<" + text + ">"}));
  CHECK((made("a.jsonl", json_line(text) + json_line("x")) == Lines{"<" + text + ">", "<x>"}));
  c.options.lines_are_documents = true;
  CHECK((made("b.txt", "x\n" + text + "\n" + text) ==
         Lines{"<x>", "<" + text + ">", "<" + text + ">"}));
  // A document of exactly the bytes at which the next piece begins.
  c.options.lines_are_documents = false;
  for (const size_t size :
       {kTextPieceBytes - 1, kTextPieceBytes, kTextPieceBytes + 1, kTextPieceBytes + 2}) {
    const std::string part = text.substr(0, size);
    CHECK((made("c.txt", part) == Lines{"<" + part + ">"}));
  }
}

TEST_CASE("tokenize: cuts never split a character and prefer places between words") {
  bool forced = false;
  CHECK(cut_point("aaa bbb\nccc ddd", 12, forced) == 11);
  CHECK(cut_point("aaa bbb cccc\nddd eee", 15, forced) == 13);
  CHECK(!forced);
  CHECK(cut_point("aaaaaaaaaaaaaaaaaaaaaaaa", 16, forced) == 16);
  CHECK(forced);
  // Characters of several bytes beside it, if they are no white space and whole.
  forced = false;
  CHECK(cut_point("aaaaaaaaaaéé дaaaa", 17, forced) == 14);
  CHECK(cut_point("aaaaaaaaaéé\nдaaaa", 16, forced) == 14);
  CHECK(cut_point("aaaaaaaaaaaaa\r\nb", 15, forced) == 13);
  CHECK(cut_point("aaaaaaaaaaaд\r\nb", 15, forced) == 13);
  CHECK_FALSE(forced);
  for (const char* text : {"aaaaaaaaaé\u00a0 дaaaaa", "aaaaaaaaaaa \u3000aaaaa",
                           "aaaaaaaaaaa\x84 aaaaaaa", "aaaaaaaaaaaa.\r\nbaa"}) {
    CAPTURE(std::string(text));
    forced = false;
    CHECK(cut_point(text, 16, forced) >= 15);
    CHECK(forced);
  }
  // Nor are two spaces such a place.
  forced = false;
  CHECK(cut_point("aaaaaaaaaaaaaa  aaaaaa", 16, forced) == 16);
  CHECK(forced);
  const std::string e = "\xf0\x9f\x98\x80";
  for (size_t most = 8; most < 16; ++most) {
    CHECK(cut_point(e + e + e + e + e, most, forced) == most / 4 * 4);
  }
}

TEST_CASE("tokenize: what it is asked for must be possible") {
  CorpusCase c;
  c.options.inputs = {c.dir.file("in.jsonl", json_line("one"))};
  c.options.append_eod = true;
  const auto bytes = make_byte_tokenizer();
  CHECK_THROWS_WITH_AS(tokenize_corpus(*bytes, c.options, {}), doctest::Contains("append_eod"),
                       Error);
  c.options.inputs = {(c.dir / "none.jsonl").string()};
  c.refused("data.missing");
  c.options.inputs = {(c.dir / "none*.jsonl").string()};
  c.refused("data.missing");
  fs::create_directory(c.dir / "empty");
  c.options.inputs = {(c.dir / "empty").string()};
  c.refused("data.empty");
}

}  // namespace
}  // namespace mtl
