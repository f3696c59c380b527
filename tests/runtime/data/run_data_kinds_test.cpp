// What data.train may name and mean something else: files that are no texts, and corpora of another
// tokenizer than the run's.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/data/corpus_meta.h"
#include "runtime/data/tokenize_corpus.h"
#include "runtime/run_data.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

ResolvedSpec trains_on(const std::string& path) {
  ResolvedSpec resolved;
  resolved.spec.data.train = path;
  resolved.spec.train.seq_len = 16;
  return resolved;
}

std::string why_not(const ResolvedSpec& resolved) {
  Diagnostics diagnostics;
  load_run_data(resolved, diagnostics);
  if (diagnostics.all().empty()) return "";
  return diagnostics.all().front().code + ": " + diagnostics.all().front().what;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("run data: what is no plain text is not trained on as one, unless data.format says so") {
  const test::TempDir dir;
  const auto file = [&](const std::string& name, const std::string& content) {
    std::ofstream(dir.path() / name, std::ios::binary) << content;
    return trains_on((dir.path() / name).string());
  };
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"a document of some words\"}\n";
  const std::string filling(4000, 'x');
  const std::string zeros = filling + '\0' + filling;
  const struct {
    const char* name;
    std::string content;
    const char* why;
  } cases[] = {{"a.jsonl", lines, "a.jsonl' is JSON Lines by its name"},
               {"a.json", lines, "a.json' is JSON Lines by its name"},
               {"a.ndjson", lines, "a.ndjson' is JSON Lines by its name"},
               {"a.jsonl.gz", "\x1f\x8b" + filling, "a.jsonl.gz' is packed by gzip"},
               {"a.txt", "\x1f\x8b" + filling, "a.txt' is packed by gzip"},
               {"b.txt", "\x28\xb5\x2f\xfd" + filling, "b.txt' is packed by zstd"},
               {"c.txt", zeros, "c.txt' has a zero byte at offset 4000"}};
  for (const auto& one : cases) {
    CAPTURE(std::string(one.name));
    ResolvedSpec resolved = file(one.name, one.content);
    CHECK(why_not(resolved).starts_with("data.not_text: "));
    CHECK(contains(why_not(resolved), one.why));
    resolved.spec.data.format = "text";
    CHECK(why_not(resolved).empty());
  }
  CHECK(why_not(file("lines.txt", lines)).empty());
  ResolvedSpec valid = file("text.txt", lines);
  valid.spec.data.valid = (dir.path() / "a.jsonl").string();
  CHECK(why_not(valid).starts_with("data.not_text: "));
}

TEST_CASE("run data: a pattern of texts is not read as token ids") {
  const test::TempDir dir;
  // As ids of two bytes these texts lie in GPT-2's vocabulary.
  dir.file("1.txt", std::string(4000, 'x'));
  dir.file("2.txt", std::string(4000, 'y'));
  dir.file("3.bin", std::string(4000, 'y'));
  ResolvedSpec resolved = trains_on((dir / "*.txt").string());
  resolved.spec.data.vocab = 50257;
  CHECK(why_not(resolved).starts_with("data.not_ids: '" + (dir / "*.txt").string() + "' names " +
                                      (dir / "1.txt").string()));
  resolved.spec.data.train = (dir / "*").string();
  CHECK(why_not(resolved).starts_with("data.not_ids: "));
  resolved.spec.data.train = (dir / "*.bin").string();
  CHECK(why_not(resolved).empty());
  resolved.spec.data.train = dir.path().string();
  CHECK(why_not(resolved).empty());
  dir.file("3.idx", "");
  CHECK(contains(why_not(resolved), "3.bin, which belongs to a corpus"));
  resolved.spec.data.train = (dir / "*.txt").string();
  resolved.spec.data.format = "nanogpt";
  CHECK(why_not(resolved).empty());
}

TEST_CASE("run data: of two readings of a name the one that is taken is told") {
  const test::TempDir dir;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "words and w\xc3\xb6rter, \xe2\x82\xac\n\t";
  const std::string bin = (dir.path() / "x.bin").string();
  dir.file("x.bin", text);
  // Its ids, of two characters each, may lie in the vocabulary or not.
  ResolvedSpec resolved = trains_on(bin);
  resolved.spec.data.tokenizer.type = "bytes";
  CHECK(why_not(resolved) ==
        "data.reading: " + bin +
            " is read as token ids, as files *.bin are, and looks like a text");
  resolved.spec.data.format = "text";
  CHECK(why_not(resolved).empty());
  resolved.spec.data.format = "nanogpt";
  CHECK(why_not(resolved).starts_with("data.token_range: "));
  resolved.spec.data.format = "auto";
  dir.file("x.bin", std::string(4000, '\0'));
  CHECK(why_not(resolved).empty());
  dir.file("x.bin", text);
  resolved.spec.data.tokenizer.type = "auto";
  resolved.spec.data.vocab = 65536;
  CHECK(why_not(resolved).empty());

  TokenizeOptions options;
  options.inputs = {(dir.path() / "a.txt").string()};
  options.prefix = dir.path() / "a.txt";
  dir.file("a.txt", text);
  tokenize_corpus(*make_byte_tokenizer(), options, {});
  const std::string a = options.prefix.string();
  CHECK(why_not(trains_on(a)) == "data.reading: '" + a + "' is the corpus " + a + ".bin and " + a +
                                     ".idx here, and not the file " + a);
  CHECK(why_not(trains_on(a + ".bin")).empty());
  resolved = trains_on(a);
  for (const char* format : {"text", "megatron"}) {
    resolved.spec.data.format = format;
    CHECK(why_not(resolved).empty());
  }
}

TEST_CASE("run data: a corpus of another tokenizer is refused, of another file of the same not") {
  const test::TempDir dir;
  std::ofstream(dir.path() / "text.txt") << "words " + std::string(3000, 'x');
  const auto corpus = [&](const char* name, const std::unique_ptr<Tokenizer>& tokenizer) {
    TokenizeOptions options;
    options.inputs = {(dir.path() / "text.txt").string()};
    options.prefix = dir.path() / name;
    tokenize_corpus(*tokenizer, options, {});
    return options.prefix.string();
  };
  const std::string bytes = corpus("bytes", make_byte_tokenizer());
  const std::string chars = corpus("chars", make_char_tokenizer(" dorswx"));
  const std::string others = corpus("others", make_char_tokenizer(" abcdorswx"));
  const std::string more = corpus("more", make_char_tokenizer(" dorswxyz"));
  const auto blend = [](const std::string& one, const std::string& two) {
    return trains_on(one + " " + two);
  };
  ResolvedSpec resolved = trains_on(bytes);
  CHECK(why_not(resolved).empty());
  resolved.spec.data.tokenizer.type = "bytes";
  CHECK(why_not(resolved).empty());
  // A run has the tokenizer of its first corpus.
  CHECK(why_not(blend(bytes, chars)).starts_with("data.tokenizer: '" + chars + "' was made with"));
  CHECK(contains(why_not(blend(bytes, chars)), "it begins with \"words xxx"));
  CHECK(contains(why_not(blend(others, chars)), "which is \""));
  CHECK(contains(why_not(blend(chars, bytes)), "and the run's has 7 tokens only"));
  CHECK(why_not(blend(more, chars)).empty());  // its ids mean the same there
  resolved = trains_on(bytes);
  resolved.spec.data.valid = chars;
  CHECK(why_not(resolved).starts_with("data.tokenizer: '" + chars + "' was made with"));
  // Ids without text: the size of the vocabulary is all that can be compared.
  resolved = trains_on(bytes);
  resolved.spec.data.vocab = 100;
  CHECK(why_not(resolved) == "data.token_range: '" + bytes +
                                 "' was made with a vocabulary of 256, and data.vocab is 100");
  resolved.spec.data.vocab = 300;
  CHECK(why_not(resolved).empty());
  // A corpus that has lost its tokenizer is taken at the run's word.
  resolved = trains_on(chars);
  resolved.spec.data.tokenizer.type = "bytes";
  CHECK(why_not(resolved).starts_with("data.tokenizer: "));
  std::filesystem::remove(tokenizer_path(chars));
  CHECK(why_not(resolved).empty());
}

TEST_CASE("run data: a text that no memory holds is refused before it is read") {
  const test::TempDir dir;
  const std::string path = (dir.path() / "large.txt").string();
  std::ofstream(path) << std::string(1 << 17, 'x');
  std::filesystem::resize_file(path, uintmax_t{1} << 42);  // of holes
  CHECK(why_not(trains_on(path)).starts_with("data.too_large: '" + path + "' has 4.00 TiB"));
}

TEST_CASE("run data: a corpus may have spaces in its path") {
  const test::TempDir dir;
  std::filesystem::create_directory(dir.path() / "my data");
  const std::filesystem::path prefix = dir.path() / "my data" / "a corpus";
  IndexedDatasetWriter writer(prefix, TokenType::u16);
  const std::vector<int32_t> ids(100, 7);
  writer.add_sequence(ids);
  writer.end_document();
  writer.finish();
  ResolvedSpec resolved = trains_on(prefix.string());
  resolved.spec.data.vocab = 100;
  CHECK(why_not(resolved).empty());
}

TEST_CASE("run data: a corpus without tokens is empty, whatever is split") {
  const test::TempDir dir;
  IndexedDatasetWriter writer(dir.path() / "none", TokenType::u16);
  writer.end_document();
  writer.finish();
  ResolvedSpec resolved = trains_on((dir.path() / "none").string());
  resolved.spec.data.vocab = 100;
  CHECK(why_not(resolved) == "data.empty: '" + (dir.path() / "none").string() + "' has no tokens");
}

}  // namespace
}  // namespace mtl
