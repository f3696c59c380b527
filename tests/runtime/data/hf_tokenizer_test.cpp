// tokenizer.json and GPT-2's files: the ids of Hugging Face's `tokenizers` and of tiktoken, and
// what is refused.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer_reference.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::check_expected;
using test::kShared;
using test::reference;
using test::TempDir;
using test::texts;

TEST_CASE("tokenizer.json: the ids and texts of Hugging Face's tokenizers") {
  const auto all = texts();
  for (const auto& [name, sample] : reference().at("tokenizers").items()) {
    CAPTURE(name);
    const auto tokenizer = tokenizer_from_json(sample.at("file"));
    check_expected(*tokenizer, sample.at("expected"));
    // Special tokens are text unless they are asked for.
    const json& special = sample.at("with_special_last");
    for (size_t i = 0; i < special.size(); ++i) {
      const auto ids = tokenizer->encode_with_special(all[all.size() - special.size() + i]);
      CHECK(ids == special[i].get<std::vector<int32_t>>());
    }
    // What mtl keeps is the file, and what it writes for itself reads as the same.
    CHECK(to_hf_tokenizer(*tokenizer) == sample.at("file"));
    const auto again = tokenizer_from_json(json::parse(tokenizer->to_json().dump()));
    check_expected(*again, sample.at("expected"));
    CHECK(again->to_json() == tokenizer->to_json());
    CHECK(again->eod() == tokenizer->eod());
  }
}

TEST_CASE("gpt2-bpe: the ids of tiktoken") {
  if (!fs::exists(kShared / "gpt2-vocab.json")) return;
  const auto tokenizer = load_tokenizer({.type = "gpt2-bpe",
                                         .vocab = kShared / "gpt2-vocab.json",
                                         .merges = kShared / "gpt2-merges.txt"});
  CHECK(tokenizer->vocab_size() == 50257);
  CHECK(tokenizer->eod() == 50256);
  check_expected(*tokenizer, reference().at("gpt2"));
  CHECK(tokenizer->encode("Hello, world!") == std::vector<int32_t>{15496, 11, 995, 0});
  CHECK(tokenizer->encode("a<|endoftext|>").size() > 2);
  CHECK(tokenizer->encode_with_special("a<|endoftext|>") == std::vector<int32_t>{64, 50256});
}

// A small byte-level tokenizer that a test changes.
json small() {
  return reference().at("tokenizers").at("gpt2").at("file");
}

TEST_CASE("a long word takes no longer per byte than a short one, and has the same tokens") {
  const auto tokenizer = tokenizer_from_json(small());
  // Merges of a row of one letter depend on where it begins only: compare with the words that the
  // quadratic way still reaches.
  std::string word;
  for (int i = 0; i < 100'000; ++i) word += "thethat"[i % 7];
  const auto ids = tokenizer->encode(word);
  CHECK(tokenizer->decode(ids) == word);
  const auto shorter = tokenizer->encode(word.substr(0, 60));
  CHECK(std::equal(shorter.begin(), shorter.end() - 4, ids.begin()));
}

TEST_CASE("a tokenizer is used by several threads at once") {
  const auto tokenizer = tokenizer_from_json(small());
  const auto all = texts();
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : all) expected.push_back(tokenizer->encode(text));
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < all.size(); ++i) {
        const size_t at = (i * (t + 1)) % all.size();
        wrong[t] += tokenizer->encode(all[at]) != expected[at];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("bytes and chars as tokenizer.json have the same ids") {
  const std::string text = "aé\n\u4e2d \U0001F600b";
  for (const auto& tokenizer : {make_byte_tokenizer(), make_char_tokenizer(text)}) {
    const auto other = tokenizer_from_json(to_hf_tokenizer(*tokenizer));
    CHECK(other->vocab_size() == tokenizer->vocab_size());
    CHECK(other->encode(text) == tokenizer->encode(text));
    CHECK(other->decode(other->encode(text)) == text);
  }
}

// The message that a changed tokenizer is refused with.
std::string refusal(const std::function<void(json&)>& change) {
  json file = small();
  change(file);
  return test::error_of([&] { tokenizer_from_json(file); }, "data.tokenizer", Exit::data);
}

TEST_CASE("tokenizer.json: what mtl has not and what cannot be is refused by name") {
  const auto says = [](const std::string& part, const std::function<void(json&)>& change) {
    const std::string what = refusal(change);
    CAPTURE(what);
    CHECK(what.find(part) != std::string::npos);
  };
  says("model: is \"WordPiece\"", [](json& f) { f["model"]["type"] = "WordPiece"; });
  says("model: is \"Unigram\"", [](json& f) { f["model"]["type"] = "Unigram"; });
  says("model.dropout: is 0.1", [](json& f) { f["model"]["dropout"] = 0.1; });
  says("normalizer \"Precompiled\"", [](json& f) { f["normalizer"] = {{"type", "Precompiled"}}; });
  says("normalizers[1]: the normalizer \"Nmt\"", [](json& f) {
    f["normalizer"] = {{"type", "Sequence"},
                       {"normalizers", {{{"type", "NFC"}}, {{"type", "Nmt"}}}}};
  });
  says("pre-tokenizer \"UnicodeScripts\"", [](json& f) {
    f["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
  });
  says("stands behind ByteLevel", [](json& f) {
    const json byte_level = f["pre_tokenizer"];
    f["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {byte_level, {{"type", "Whitespace"}}}}};
  });
  says("decoder \"CTC\"", [](json& f) { f["decoder"] = {{"type", "CTC"}}; });
  says("post-processor \"X\"", [](json& f) { f["post_processor"] = {{"type", "X"}}; });
  says("'vocab' is missing", [](json& f) { f["model"].erase("vocab"); });
  says("vocab: is empty", [](json& f) { f["model"]["vocab"] = json::object(); });
  says("it has to be a whole number below",
       [](json& f) { f["model"]["vocab"]["!"] = 2'000'000'000; });
  says("it has to be a whole number below", [](json& f) { f["model"]["vocab"]["!"] = -1; });
  says("have the same id", [](json& f) { f["model"]["vocab"]["!"] = 5; });
  says("merges[0]: the token \"zzz\" is not in the vocabulary",
       [](json& f) { f["model"]["merges"][0] = "zzz a"; });
  says("merges[1]: \"a b c\" is not two tokens",
       [](json& f) { f["model"]["merges"][1] = "a b c"; });
  says("merges[2]: has to be", [](json& f) { f["model"]["merges"][2] = 7; });
  says("added_tokens[0]: 'id' has to be",
       [](json& f) { f["added_tokens"][0]["id"] = 1'000'000'000; });
  says("have the same id", [](json& f) { f["added_tokens"][0]["id"] = 3; });
  says("in the vocabulary", [](json& f) { f["added_tokens"][0]["content"] = "!"; });
  says("unk_token", [](json& f) { f["model"]["unk_token"] = "<nothing>"; });
  // Merges as pairs are the same tokenizer.
  json pairs = small();
  for (json& merge : pairs["model"]["merges"]) {
    if (merge.is_array()) continue;
    const std::string text = merge;
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  CHECK(tokenizer_from_json(pairs)->encode("the that") ==
        tokenizer_from_json(small())->encode("the that"));
}

TEST_CASE("the tokenizer.json of a run is read whatever type is said") {
  const TempDir dir;
  const json ours = make_char_tokenizer("abc")->to_json();
  const std::string path = dir.file("tokenizer.json", ours.dump());
  for (const char* type : {"", "hf", "mtl"}) {
    CAPTURE(std::string(type));
    CHECK(load_tokenizer({.type = type, .file = path})->to_json() == ours);
  }
}

TEST_CASE("tokenizer files that are damaged or hostile are refused with the reason") {
  const TempDir dir;
  const fs::path path = dir.path() / "tokenizer.json";
  const auto says = [&](const std::string& part, const std::string& content) {
    write_file_atomic(path, content);
    std::string what = "nothing";
    try {
      load_tokenizer({.type = "hf", .file = path});
    } catch (const Error& error) {
      what = error.diagnostics()[0].what;
      CHECK(error.exit() == Exit::data);
    }
    CAPTURE(what);
    CHECK(what.find(part) != std::string::npos);
    CHECK(what.find(path.string()) != std::string::npos);
  };
  says("not valid JSON", "{\"model\": ");
  says("nested deeper than 64", std::string(100'000, '['));
  says("has the key \"a\" twice", "{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}}}");
  says("'model' is missing", "{}");
  says("has to be an object", "[]");
  try {
    load_tokenizer({.type = "hf", .file = dir.path() / "none.json"});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.diagnostics()[0].code == "data.missing");
  }
  CHECK_THROWS_AS(load_tokenizer({.type = "gpt2-bpe"}), Error);
  CHECK_THROWS_AS(load_tokenizer({.type = "hf"}), Error);
  CHECK_THROWS_AS(load_tokenizer({.type = "nonsense", .file = path}), Error);
}

TEST_CASE("a character that no token spells is an error, not a gap") {
  json file = small();
  file["model"]["vocab"] = {{"a", 0}, {"b", 1}};
  file["model"]["merges"] = json::array();
  file["added_tokens"] = json::array();
  const auto tokenizer = tokenizer_from_json(file);
  CHECK(tokenizer->encode("ab") == std::vector<int32_t>{0, 1});
  try {
    tokenizer->encode("abc");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.diagnostics()[0].code == "data.token");
  }
}

}  // namespace
}  // namespace mtl
