// vocab.json with merges.txt: which tokenizer they are is said by the files beside them.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/tokenizer_reference.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::check_expected;
using test::reference;
using test::TempDir;

// The two files of a tokenizer, in a folder whose other files say the rest.
void write_bpe_folder(const TempDir& folder, const json& file) {
  write_file_atomic(folder / "vocab.json", file.at("model").at("vocab").dump());
  std::string merges = "#version: 0.2\n";
  for (const json& merge : file.at("model").at("merges")) merges += merge.get<std::string>() + "\n";
  write_file_atomic(folder / "merges.txt", merges);
}

json added_tokens_decoder(const json& file) {
  json by_id = json::object();
  for (json token : file.at("added_tokens")) {
    const int64_t id = token.at("id");
    token.erase("id");
    by_id[std::to_string(id)] = token;
  }
  return by_id;
}

TEST_CASE("vocab.json with merges.txt is the tokenizer that the files beside it name") {
  const json& all = reference().at("tokenizers");
  for (const char* name : {"gpt2", "gpt2_prefix", "qwen2"}) {
    CAPTURE(std::string(name));
    const TempDir folder;
    const json& sample = all.at(name);
    write_bpe_folder(folder, sample.at("file"));
    const bool qwen2 = std::string(name) == "qwen2";
    json config = {{"tokenizer_class", qwen2 ? "Qwen2Tokenizer" : "GPT2Tokenizer"},
                   {"added_tokens_decoder", added_tokens_decoder(sample.at("file"))},
                   {"add_prefix_space", std::string(name) == "gpt2_prefix"},
                   {"eos_token", "<|im_start|>"}};
    write_file_atomic(folder / "tokenizer_config.json", config.dump());
    write_file_atomic(folder / "config.json", R"({"model_type": "llama"})");
    check_expected(*load_bpe_folder(folder.path()), sample.at("expected"));
    CHECK(load_bpe_folder(folder.path())->eod() == 331);
    // Without a class it is the model's.
    config.erase("tokenizer_class");
    write_file_atomic(folder / "tokenizer_config.json", config.dump());
    write_file_atomic(folder / "config.json",
                      qwen2 ? R"({"model_type": "qwen3"})" : R"({"model_type": "gpt2"})");
    check_expected(*load_bpe_folder(folder.path()), sample.at("expected"));
  }
}

TEST_CASE(
    "older folders name their added tokens in added_tokens.json and special_tokens_map.json") {
  for (const char* name : {"gpt2", "qwen2"}) {
    CAPTURE(std::string(name));
    const TempDir folder;
    const json& sample = reference().at("tokenizers").at(name);
    write_bpe_folder(folder, sample.at("file"));
    write_file_atomic(folder / "config.json", json{{"model_type", name}}.dump());
    write_file_atomic(folder / "added_tokens.json",
                      R"({"<|im_start|>": 331, "<plain>": 332, "<|endoftext|>": 330})");
    write_file_atomic(folder / "special_tokens_map.json",
                      R"({"eos_token": {"content": "<|endoftext|>", "normalized": true},)"
                      R"( "additional_special_tokens": ["<|im_start|>"]})");
    const auto tokenizer = load_tokenizer({.file = folder.path().string()});
    // What transformers makes of the same folder.
    CHECK(tokenizer->encode_with_special("hi <|im_start|> there <plain> x<|endoftext|>") ==
          std::vector<int32_t>{71, 72, 220, 331, 303, 299, 220, 332, 220, 87, 330});
    CHECK(tokenizer->eod() == 330);
    CHECK(tokenizer->vocab_size() == 333);
    // Special tokens in a text are text, others are looked for.
    const auto ids = tokenizer->encode("<|im_start|><plain>");
    CHECK(ids.back() == 332);
    CHECK(std::count(ids.begin(), ids.end(), 331) == 0);
    CHECK(load_tokenizer({.file = folder.path().string(), .eod = "<plain>"})->eod() == 332);
    for (const char* bad : {"[]", R"({"<a>": "x"})", R"({"<a>": -1})", R"({"<a>": 5})"}) {
      CAPTURE(std::string(bad));
      write_file_atomic(folder / "added_tokens.json", bad);
      CHECK_THROWS_AS(load_bpe_folder(folder.path()), Error);
    }
    // A special token that the vocabulary itself has.
    fs::remove(folder / "added_tokens.json");
    write_file_atomic(folder / "special_tokens_map.json",
                      R"({"eos_token": "!", "sep_token": {"content": "#", "lstrip": true}})");
    if (std::string(name) == "qwen2") {
      CHECK_THROWS_AS(load_bpe_folder(folder.path()), Error);
      continue;
    }
    const json& vocab = sample.at("file").at("model").at("vocab");
    const int32_t bang = vocab.at("!"), hash = vocab.at("#");
    const auto named = load_bpe_folder(folder.path());
    CHECK(named->eod() == bang);
    CHECK(named->encode_with_special("!  #") == std::vector<int32_t>{bang, hash});
    CHECK(named->encode("!  #").size() > 2);
  }
}

TEST_CASE("vocab.json with merges.txt of another tokenizer are refused, of nobody's are GPT-2's") {
  const TempDir folder;
  write_bpe_folder(folder, reference().at("tokenizers").at("gpt2").at("file"));
  check_expected(*load_bpe_folder(folder.path()),
                 reference().at("tokenizers").at("gpt2").at("expected"));
  const auto refused = [&](const char* name, const char* text) {
    write_file_atomic(folder / name, text);
    std::string said;
    try {
      load_bpe_folder(folder.path());
    } catch (const Error& error) {
      const Diagnostic& first = error.diagnostics().front();
      said = first.code + ": " + first.what + " | " + first.help;
    }
    fs::remove(folder / name);
    CAPTURE(said);
    CHECK(said.starts_with("data.tokenizer: " + (folder / name).string()));
    CHECK(said.find("AutoTokenizer") != std::string::npos);
  };
  refused("config.json", R"({"model_type": "llama"})");
  refused("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
  refused("tokenizer_config.json",
          R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true})");
  // Which tokens are special, only tokenizer_config.json could say.
  write_file_atomic(folder / "config.json", R"({"model_type": "qwen2"})");
  refused("tokenizer_config.json", "{}");
  write_file_atomic(
      folder / "tokenizer_config.json",
      R"({"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"x1": {"content": "a"}}})");
  CHECK_THROWS_AS(load_bpe_folder(folder.path()), Error);
  write_file_atomic(
      folder / "tokenizer_config.json",
      R"({"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"998": {}, "999": {}}})");
  CHECK_THROWS_AS(load_bpe_folder(folder.path()), Error);
}

TEST_CASE("the token that ends a document comes from the files beside, or is named") {
  const TempDir dir;
  const auto write = [&](const char* name, const json& content) {
    write_file_atomic(dir.path() / name, content.dump());
  };
  const auto eod = [&](const std::string& wanted = "") {
    const auto id = load_tokenizer({.type = "hf", .file = dir.path(), .eod = wanted})->eod();
    return id ? *id : -1;
  };
  json file = reference().at("tokenizers").at("gpt2").at("file");
  const int32_t endoftext = file["model"]["vocab"].size();
  write("tokenizer.json", file);
  CHECK(eod() == endoftext);
  write("special_tokens_map.json", {{"eos_token", {{"content", "<|im_start|>"}}}});
  CHECK(eod() == endoftext + 1);
  write("tokenizer_config.json", {{"eos_token", "<|endoftext|>"}});
  CHECK(eod() == endoftext);
  CHECK(eod("!") == file["model"]["vocab"]["!"]);
  CHECK_THROWS_AS(eod("nosuchtoken"), Error);
  write("tokenizer_config.json", {{"eos_token", "</s>"}});
  CHECK_THROWS_AS(eod(), Error);
}

}  // namespace
}  // namespace mtl
