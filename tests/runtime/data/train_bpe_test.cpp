// A tokenizer made from a text: the tokens of Hugging Face's trainer, whatever the threads and
// blocks.
#include "runtime/data/tokenizer/train_bpe.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/data/corpus_case.h"
#include "runtime/data/load_tokenizer.h"
#include "support/errors.h"
#include "support/no_threads.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TempDir;

TEST_CASE("train-tokenizer learns what Hugging Face's trainer learns") {
  const fs::path prose = fs::path(MTL_SOURCE_DIR) / "../shared/data/tinyshakespeare.txt";
  if (!fs::exists(prose)) return;
  const json reference =
      json::parse(read_file(fs::path(MTL_SOURCE_DIR) / "tests/reference/tokenizers.json"))
          .at("trained");
  const TempDir dir;
  const std::string text = read_file(prose).substr(0, reference.at("text_bytes").get<size_t>());
  TokenizerTraining training{.vocab = 500, .threads = 3};
  const auto words = count_words({dir.file("a.txt", text)}, training);
  const json file = train_tokenizer(words, training);
  CHECK(file.at("model").at("merges") == reference.at("merges"));
  CHECK(file.at("model").at("vocab").size() == 500);
  const auto tokenizer = tokenizer_from_json(file);
  CHECK(tokenizer->eod() == 0);
  CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
}

TEST_CASE("train-tokenizer merges the most frequent pair and of equal ones the first") {
  TokenizerTraining training{.vocab = 260, .special = {}};
  const auto merges = [&](const WordCounts& words) {
    return train_tokenizer(words, training)
        .at("model")
        .at("merges")
        .get<std::vector<std::string>>();
  };
  CHECK(merges({{"abab", 3}, {"bc", 4}}) == std::vector<std::string>{"a b", "b c", "ab ab"});
  CHECK(merges({{"cd", 2}, {"ab", 2}}) == std::vector<std::string>{"a b", "c d"});
  CHECK(merges({{"aaaa", 2}}) == std::vector<std::string>{"a a", "aa aa"});
  CHECK(merges({{"xy", 1}}).empty());  // once is too rare
  training.min_count = 1;
  CHECK(merges({{"xy", 1}}) == std::vector<std::string>{"x y"});
}

TEST_CASE("train-tokenizer counts the same words from any number of blocks and threads") {
  const TempDir dir;
  std::string text;
  // More than one block of 4 MB, with runs of blank lines and what is no UTF-8.
  while (text.size() < 9'000'000) {
    text += "The quick\n\n  brown fox's 123 jumps\n";
    text += text.size() % 3 == 0 ? "Over\xff the\n" : "\n\nlazy dog\r\n";
  }
  const std::string path = dir.file("a.txt", text);
  const auto one = count_words({path}, {.threads = 1});
  CHECK(one == count_words({path}, {.threads = 4}));
  uint64_t bytes = 0;
  for (const auto& [word, count] : one) bytes += word.size() * count;
  uint64_t broken = 0;
  for (const char c : text) broken += c == '\xff';
  CHECK(bytes == text.size() + 2 * broken);  // each broken byte is U+FFFD
  CHECK(one.at("\n\n") > 0);
  // The same text as a line of JSON.
  const std::string small = text.substr(0, 10'000);
  const auto lines =
      count_words({dir.file("b.jsonl", json{{"text", std::string(small.begin(), small.end())}}.dump(
                                           -1, ' ', false, json::error_handler_t::replace) +
                                           "\n\n")},
                  {});
  CHECK(lines == count_words({dir.file("c.txt", small)}, {}));
}

TEST_CASE("train-tokenizer: where no thread can be started that is said") {
  const TempDir dir;
  const std::string path = dir.file("a.txt", "one two");
  const test::NoThreads poor;
  CHECK(test::code_of([&] { count_words({path}, {}); }) == "machine.no_thread");
}

TEST_CASE("train-tokenizer reads what mtl data tokenize reads") {
  const TempDir dir;
  const auto words = count_words({dir.file("a.txt", "one two")}, {});
  REQUIRE(words.size() == 2);
  const std::string line = "{\"text\": \"one two\"}\n";
  CHECK(count_words({dir.file("a.json", line)}, {}) == words);
  CHECK(count_words({dir.file("b.ndjson", line)}, {}) == words);
  CHECK(count_words({dir.file("c.jsonl", "\xEF\xBB\xBF" + line)}, {}) == words);
  CHECK(count_words({dir.file("d.txt", "\xEF\xBB\xBFone two")}, {}) == words);
  CHECK(count_words({dir.file("e.jsonl.gz", test::gzip(line))}, {}) == words);
  CHECK(count_words({dir.file("f.jsonl", "{\"text\": [\"one\", \" two\"]}\n")}, {}) == words);
  fs::create_directories(dir / "folder");
  dir.file("folder/a.txt", "one");
  dir.file("folder/b.jsonl", "{\"text\": \" two\"}");
  CHECK(count_words({(dir / "folder").string()}, {}) == words);
}

TEST_CASE("train-tokenizer says what is wrong with its files") {
  const TempDir dir;
  const TokenizerTraining training;
  const auto code = [&](const fs::path& path) {
    return test::code_of([&] { count_words({path.string()}, training); });
  };
  CHECK(code(dir / "none.txt") == "data.missing");
  CHECK(code(dir.path()) == "data.empty");
  CHECK(code(dir.file("cut.txt.gz", test::gzip("text").substr(0, 12))) == "data.compressed");
  CHECK(code(dir.file("a.txt.xz", std::string("\xFD\x37zXZ\0", 6))) == "data.not_text");
  CHECK(code(dir.file("utf16.txt", std::string("\xFF\xFE"
                                               "a\0",
                                               4))) == "data.not_text");
  CHECK(code(dir.file("empty.txt", "")) == "data.empty");
  CHECK(code(dir.file("a.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n")) == "data.json");
  CHECK(code(dir.file("b.jsonl", "{\"other\": \"a\"}\n")) == "data.json");
  CHECK(code(dir.file("c.jsonl", "not json\n")) == "data.json");
}

}  // namespace
}  // namespace mtl
