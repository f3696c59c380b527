// tokenizer.json and GPT-2's files: the ids of Hugging Face's `tokenizers` and of tiktoken
// (tests/reference/tokenizers_reference.py), and what is refused.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "common/utf8.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/text_units.h"
#include "runtime/data/token_text.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer/unicode.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TempDir;

const fs::path kShared = fs::path(MTL_SOURCE_DIR) / "../shared/data";

const json& reference() {
  static const json made =
      json::parse(read_file(fs::path(MTL_SOURCE_DIR) / "tests/reference/tokenizers.json"));
  return made;
}

std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return bytes;
}

std::vector<std::string> texts() {
  std::vector<std::string> decoded;
  for (const json& text : reference().at("texts")) decoded.push_back(from_base64(text));
  return decoded;
}

std::string fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

void check_expected(const Tokenizer& tokenizer, const json& expected) {
  const auto all = texts();
  REQUIRE(all.size() == expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i]);
    const auto ids = tokenizer.encode(all[i]);
    REQUIRE(ids.size() == expected[i][0]);
    CHECK(fnv1a64({reinterpret_cast<const char*>(ids.data()), ids.size() * 4}) ==
          expected[i][1].get<std::string>());
    std::string buffer;
    CHECK(fnv1a64(tokenizer::whole_utf8(tokenizer.decode(ids), buffer)) ==
          expected[i][2].get<std::string>());
  }
}

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

TEST_CASE("Metaspace first: what follows text that a normalizer took away does not begin a text") {
  const json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const json remove = {{"type", "Replace"}, {"pattern", {{"Regex", "^#+"}}}, {"content", ""}};
  const json accents = {{"type", "StripAccents"}};
  const json small_letters = {{"type", "Lowercase"}};
  json file = reference().at("tokenizers").at("metaspace").at("file");
  const auto begins = [&](const json& normalizer, const std::string& text) {
    file["normalizer"] = normalizer;
    const auto tokenizer = tokenizer_from_json(file);
    const auto ids = tokenizer->encode(text);
    REQUIRE(!ids.empty());
    const json& vocab = file.at("model").at("vocab");
    for (const auto& [token, id] : vocab.items()) {
      if (id == ids.front()) return token.starts_with("\u2581");
    }
    return false;
  };
  for (const json& all : {strip, remove, accents, small_letters}) CHECK(begins(all, "the"));
  CHECK(!begins(strip, " the"));
  CHECK(!begins(remove, "##the"));
  CHECK(!begins(accents, "\u0301the"));
  CHECK(begins(small_letters, "The"));
  CHECK(!begins({{"type", "Sequence"}, {"normalizers", {strip, small_letters}}}, "\tThe"));
}

// The ids of a text that is encoded in parts of about so many bytes.
std::vector<int32_t> ids_in_parts(const Tokenizer& tokenizer, std::string_view text, size_t bytes) {
  std::vector<int32_t> ids;
  const auto add = [&](std::string_view piece, TextPart part) {
    const auto more = tokenizer.encode_part(piece, part);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  TextPart part;
  for (size_t most = bytes; text.size() > most + 1;) {
    bool forced = false;
    const size_t cut = cut_point(text, most, forced);
    if (forced) {  // a longer part has a place where words end
      most *= 2;
      continue;
    }
    part.ends = false;
    add(text.substr(0, cut), part);
    text.remove_prefix(cut);
    part = {.begins = false};
    most = bytes;
  }
  part.ends = true;
  add(text, part);
  return ids;
}

std::string mixed_text() {
  std::string text;
  for (const std::string& one : texts()) {
    std::string buffer;
    text += tokenizer::whole_utf8(one, buffer);
    // (At a cut, a token does not take the white space on the other side.)
    text += "and, then\nmore,[MASK], words <|endoftext|> of it\nso\n\n ends";
  }
  return text;
}

TEST_CASE("a text in parts has the ids of the whole, whatever is put before a text") {
  json files;
  for (const auto& [name, sample] : reference().at("tokenizers").items()) {
    files[name] = sample.at("file");
  }
  // The forms that converted SentencePiece models have.
  const json prepend = {{"type", "Prepend"}, {"prepend", "\u2581"}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  files["llama2"] = files["metaspace"];
  files["llama2"]["pre_tokenizer"] = nullptr;
  files["llama2"]["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  for (const char* scheme : {"always", "never"}) {
    for (const bool split : {false, true}) {
      json& file = files[fmt::format("{} {}", scheme, split)] = files["metaspace"];
      file["pre_tokenizer"]["prepend_scheme"] = scheme;
      file["pre_tokenizer"]["split"] = split;
    }
  }
  // Words are cut before something is put before each of them.
  for (const json& cut : std::vector<json>{{{"type", "WhitespaceSplit"}},
                                           {{"type", "Whitespace"}},
                                           {{"type", "Split"},
                                            {"pattern", {{"Regex", "\\s"}}},
                                            {"behavior", "MergedWithPrevious"},
                                            {"invert", false}},
                                           {{"type", "Split"},
                                            {"pattern", {{"String", "e"}}},
                                            {"behavior", "MergedWithNext"},
                                            {"invert", false}}}) {
    json& file = files[cut.dump()] = files["metaspace"];
    json last = file["pre_tokenizer"];
    last["prepend_scheme"] = "always";
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {cut, last}}};
  }
  files["strip"] = files["gpt2"];
  files["strip"]["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const std::string text = mixed_text();
  for (const std::string& whole : {text, " " + text, "<|endoftext|>" + text + "\n"}) {
    for (const auto& file : files.items()) {
      CAPTURE(file.key());
      const auto tokenizer = tokenizer_from_json(file.value());
      const auto ids = tokenizer->encode(whole);
      CHECK(ids_in_parts(*tokenizer, whole, 64) == ids);
      CHECK(ids_in_parts(*tokenizer, whole, 1000) == ids);
    }
  }
}

// A field of Protocol Buffers: text or message, and number.
std::string field(int number, const std::string& content) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(content.size())} +
         content;
}
std::string field(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}

TEST_CASE("SentencePiece: a text in parts has the ids of the whole") {
  const auto piece = [](const std::string& text, float score, int type) {
    std::string scored = field(1, text) + "\x15";
    scored.append(reinterpret_cast<const char*>(&score), sizeof score);
    return field(1, scored + field(3, type));
  };
  std::string pieces = piece("<unk>", 0, 2);
  for (const char c : std::string("abc\n.")) pieces += piece({c}, -4, 1);
  for (const char* word : {"\u2581", "\u2581a", "\u2581b", "ab", "\u2581\u2581"}) {
    pieces += piece(word, -3, 1);
  }
  std::string text;
  for (int i = 0; i < 600; ++i) {
    text += "abc"[i * i % 3];
    if (i % 4 == 1) text += i % 7 == 0 ? "\n" : i % 5 == 0 ? " .  " : " ";
  }
  for (const bool prefix : {false, true}) {
    for (const bool no_extra : {false, true}) {
      CAPTURE(prefix);
      CAPTURE(no_extra);
      const TempDir folder;
      const fs::path path = folder / "tokenizer.model";
      write_file_atomic(
          path, pieces + field(3, field(1, "identity") + field(3, prefix) + field(4, no_extra)));
      std::unique_ptr<Tokenizer> tokenizer;
      try {
        tokenizer = load_tokenizer({.type = "sentencepiece", .file = path.string()});
      } catch (const Error& error) {
        MESSAGE(error.diagnostics().front().what);  // built without it
        return;
      }
      for (const std::string& whole : {text, " " + text}) {
        CHECK(ids_in_parts(*tokenizer, whole, 40) == tokenizer->encode(whole));
      }
    }
  }
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

TEST_CASE("the token that ends a document comes from the files beside, or is named") {
  const TempDir dir;
  const auto write = [&](const char* name, const json& content) {
    write_file_atomic(dir.path() / name, content.dump());
  };
  const auto eod = [&](const std::string& wanted = "") {
    const auto id = load_tokenizer({.type = "hf", .file = dir.path(), .eod = wanted})->eod();
    return id ? *id : -1;
  };
  json file = small();
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

TEST_CASE("text of tokens that come one by one is whole characters") {
  const std::string text = "né \u4e2d\u6587 \U0001F600!";
  for (const char* name : {"gpt2", "metaspace"}) {
    CAPTURE(name);
    const auto tokenizer = tokenizer_from_json(reference().at("tokenizers").at(name).at("file"));
    const auto prompt = tokenizer->encode("the ");
    auto ids = tokenizer->encode("the " + text);
    TokenText stream(*tokenizer, {});
    std::string shown, buffer;
    for (const int32_t id : ids) {
      const std::string piece = stream.add(id);
      CHECK(tokenizer::whole_utf8(piece, buffer).data() == piece.data());
      shown += piece;
    }
    CHECK(shown + stream.rest() == tokenizer->decode(ids));
  }
  // A text whose characters are bytes of three tokens each, and broken ones between them.
  const auto spelled = tokenizer_from_json(reference().at("tokenizers").at("metaspace").at("file"));
  for (const bool broken : {false, true}) {
    CAPTURE(broken);
    std::vector<int32_t> ids;
    const json& vocab =
        reference().at("tokenizers").at("metaspace").at("file").at("model").at("vocab");
    const auto add = [&](std::string_view bytes) {
      for (const char byte : bytes) {
        ids.push_back(vocab.at(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte))));
      }
    };
    std::string expected;
    for (int i = 0; i < 12; ++i) {
      add("\u4e2d\u00e9");
      expected += "\u4e2d\u00e9";
      if (!broken || i % 4 != 3) continue;
      add("\xff");
      ids.push_back(vocab.at("a"));
      expected += "\ufffda";
    }
    TokenText stream(*spelled, spelled->encode("the"));
    std::string shown;
    for (const int32_t id : ids) shown += stream.add(id);
    CHECK(shown + stream.rest() == expected);
  }
  // What never becomes whole is shown at the end.
  const auto bytes = make_byte_tokenizer();
  TokenText stream(*bytes, {'a'});
  CHECK(stream.add(0xE4) == "");
  CHECK(stream.add(0xB8) == "");
  CHECK(stream.rest() == "\xE4\xB8");
}

// The message that a changed tokenizer is refused with.
std::string refusal(const std::function<void(json&)>& change) {
  json file = small();
  change(file);
  try {
    tokenizer_from_json(file);
  } catch (const Error& error) {
    REQUIRE(error.diagnostics().size() == 1);
    CHECK(error.exit() == Exit::data);
    CHECK(error.diagnostics()[0].code == "data.tokenizer");
    CHECK(!error.diagnostics()[0].help.empty());
    return error.diagnostics()[0].what;
  }
  return "";
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

TEST_CASE("every character is to us what it is to tokenizers 0.19.1") {
  // tests/reference/tokenizers_reference.py ages
  struct Class {
    const char* name;
    std::function<bool(char32_t)> holds;
    int64_t count;
    const char* hash;
  };
  std::vector<std::unique_ptr<tokenizer::Normalizer>> forms;
  for (const char* form : {"NFC", "NFD", "NFKC", "NFKD"}) {
    const json description = {{"type", form}};
    forms.push_back(tokenizer::make_normalizer(&description, "normalizer"));
  }
  const auto changes = [&](char32_t code) {
    std::string one;
    append_utf8(one, code);
    return std::any_of(forms.begin(), forms.end(), [&](const auto& form) {
      std::string normal = one;
      form->apply(normal);
      return normal != one;
    });
  };
  for (const Class& one :
       std::vector<Class>{{"marks", tokenizer::is_mark, 2097, "951a09a95873d60a"},
                          {"punctuation", tokenizer::is_punctuation, 726, "4f002fa25a3e6bb0"},
                          {"numbers", tokenizer::is_numeric, 1831, "6576eb4622b530ea"},
                          {"words", tokenizer::is_word, 139612, "664a0f1197b9864e"},
                          {"changed by normal forms", changes, 16894, "8e6a2020aa8eb9c5"}}) {
    CAPTURE(one.name);
    std::string all;
    int64_t count = 0;
    for (char32_t code = 0; code < 0x110000; ++code) {
      if ((code >= 0xD800 && code <= 0xDFFF) || !one.holds(code)) continue;
      all += fmt::format("{}{:x}", count++ > 0 ? "," : "", static_cast<uint32_t>(code));
    }
    CHECK(count == one.count);
    CHECK(fnv1a64(all) == one.hash);
  }
}

TEST_CASE("normal forms: characters that are younger than the peer's tables stay") {
  // What tokenizers 0.19.1 makes of them.
  for (const auto& [form, text, expected] : std::vector<std::array<std::string, 3>>{
           {"NFD", "a\u0345\u0898\u0334", "a\u0345\u0898\u0334"},
           {"NFD", "a\u0345\u0898\u0345\u0334", "a\u0345\u0898\u0334\u0345"},
           {"NFD", "a\u0345\U0001133b\u0334\u0323", "a\u0345\U0001133b\u0334\u0323"},
           {"NFKD", "\U00010796\u0345\u0334", "\U00010796\u0334\u0345"},
           {"NFKC", "\u32ff\u0301 \u212b", "\u32ff\u0301 \u00c5"},
           {"NFC", "\U00011935\U00011930 e\u0301", "\U00011935\U00011930 \u00e9"}}) {
    CAPTURE(form);
    const json description = {{"type", form}};
    std::string normal = text;
    tokenizer::make_normalizer(&description, "normalizer")->apply(normal);
    CHECK(normal == expected);
  }
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
