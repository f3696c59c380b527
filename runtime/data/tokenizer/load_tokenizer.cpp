// Which tokenizer a person means, and the files that belong to it.
#include "runtime/data/load_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "common/refused_path.h"
#include "common/text.h"
#include "common/utf8.h"
#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/tokenizer/hf_file.h"
#include "runtime/data/tokenizer/hf_tokenizer.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/data/tokenizer/scan.h"

namespace mtl {

namespace fs = std::filesystem;
using tokenizer::refuse;
using tokenizer::shown;

namespace {

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr size_t kMaxFile = size_t{1} << 30;

std::string read(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  const auto fail = [&](const char* code, std::string what, std::string help) {
    throw Error(Exit::data,
                Diagnostic{.code = code, .what = std::move(what), .help = std::move(help)});
  };
  // It may be there, in a folder that is not for us.
  if (error) {
    fail("data.unreadable", refused_path("", "access", path, error.value()).what,
         "make the file readable for this user on every node");
  }
  if (!there) {
    fail("data.missing", fmt::format("the tokenizer file '{}' does not exist", path.string()),
         "relative paths start at the directory where the command runs");
  }
  if (!fs::is_regular_file(path, error)) {
    fail("data.unreadable", fmt::format("'{}' is not a regular file", path.string()),
         "give the path of a tokenizer file");
  }
  if (fs::file_size(path, error) > kMaxFile) {
    fail(
        "data.unreadable",
        fmt::format("'{}' is larger than {} bytes, which no tokenizer is", path.string(), kMaxFile),
        "give the path of a tokenizer file");
  }
  try {
    return read_file(path);
  } catch (const Error& failed) {
    fail("data.unreadable", failed.diagnostics().front().what,
         "make the file readable for this user on every node");
  }
  return {};
}

// A token as the configuration files name it: "</s>" or {"content": "</s>", ...}.
std::string token_name(const nlohmann::json& config, const char* key) {
  const nlohmann::json* value = tokenizer::optional_member(config, key);
  if (value != nullptr && value->is_object()) {
    value = tokenizer::optional_member(*value, "content");
  }
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// What ends a text, by the files beside tokenizer.json.
std::string eos_beside(const fs::path& folder) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    std::error_code ignored;
    const fs::path path = folder / name;
    if (!fs::is_regular_file(path, ignored)) continue;
    const auto config = tokenizer::parse_json(read(path), path.string());
    if (std::string eos = token_name(config, "eos_token"); !eos.empty()) return eos;
  }
  return "";
}

std::unique_ptr<Tokenizer> with_eod(nlohmann::json json, const TokenizerOptions& options) {
  if (!options.eod.empty()) json["eod"] = options.eod;
  return tokenizer_from_json(json);
}

bool is_bpe_folder(const fs::path& folder) {
  std::error_code ignored;
  return !fs::exists(folder / "tokenizer.json", ignored) &&
         fs::exists(folder / "vocab.json", ignored) && fs::exists(folder / "merges.txt", ignored);
}

std::unique_ptr<Tokenizer> load_json(fs::path path, const TokenizerOptions& options) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (options.type != "mtl" && is_bpe_folder(path)) return load_bpe_folder(path, options.eod);
    path /= "tokenizer.json";
  }
  const nlohmann::json json = tokenizer::parse_json(read(path), path.string());
  const bool ours = json.is_object() && json.contains("format");
  // Also where `hf` is said: the tokenizer.json of a run is one of ours.
  if (ours) return with_eod(json, options);
  if (!ours && options.type == "mtl") {
    refuse(path.string(), "is not a tokenizer that mtl wrote",
           "for Hugging Face's tokenizer.json use data.tokenizer.type: hf");
  }
  const std::string eod = options.eod.empty() ? eos_beside(path.parent_path()) : options.eod;
  return tokenizer::make_hf_tokenizer(json, eod, path.string());
}

std::unique_ptr<Tokenizer> load_gpt2(const TokenizerOptions& options) {
  if (options.vocab.empty() || options.merges.empty()) {
    refuse("", "gpt2-bpe needs two files, vocab.json and merges.txt",
           "give them as data.tokenizer.vocab and data.tokenizer.merges");
  }
  const auto vocab = tokenizer::parse_json(read(options.vocab), options.vocab);
  const nlohmann::json file = tokenizer::gpt2_as_hf(vocab, read(options.merges));
  return tokenizer::make_hf_tokenizer(file, options.eod, options.vocab + " and " + options.merges);
}

// What a folder of Hugging Face's says of its vocab.json and merges.txt.
struct BpeFolder {
  nlohmann::json config;  // tokenizer_config.json; null if there is none
  std::string place;      // which file says the class
  std::string type;       // a class of transformers' or a type of model; empty: nobody says
};

BpeFolder inspect_bpe_folder(const fs::path& folder) {
  BpeFolder found;
  // In the order in which transformers asks.
  const std::pair<const char*, const char*> kAsked[] = {
      {"tokenizer_config.json", "tokenizer_class"},
      {"config.json", "tokenizer_class"},
      {"config.json", "model_type"}};
  for (const auto& [name, key] : kAsked) {
    std::error_code ignored;
    const fs::path path = folder / name;
    if (!fs::is_regular_file(path, ignored)) continue;
    const auto json = tokenizer::parse_json(read(path), path.string());
    if (path.filename() == "tokenizer_config.json") found.config = json;
    const nlohmann::json* const type = tokenizer::optional_member(json, key);
    if (type == nullptr || !found.type.empty()) continue;
    found.place = path.string();
    found.type = tokenizer::string_member(json, key, found.place);
  }
  return found;
}

constexpr const char* kSaveFast =
    "save it with the fast tokenizer, which writes tokenizer.json: "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)";

// Where there is a token of that text already, this one says more of it.
void add_or_replace(const nlohmann::json& token, nlohmann::json& added) {
  std::erase_if(added.get_ref<nlohmann::json::array_t&>(), [&](const nlohmann::json& known) {
    return known.value("content", nlohmann::json()) == token.value("content", nlohmann::json());
  });
  added.push_back(token);
}

// {"50256": {"content": "<|endoftext|>", ...}, ...}, as tokenizer.json has it.
void take_added_tokens(const nlohmann::json& listed, const std::string& place,
                       nlohmann::json& added) {
  if (!listed.is_object()) refuse(place, "'added_tokens_decoder' has to be an object");
  std::map<int64_t, nlohmann::json> by_id;
  for (const auto& [key, token] : listed.items()) {
    const auto id = to_number<int64_t>(key);
    if (!id || !token.is_object()) {
      refuse(place,
             fmt::format("'added_tokens_decoder' has {}, which is no id with a token", shown(key)));
    }
    nlohmann::json& taken = by_id[*id] = token;
    taken["id"] = *id;
  }
  for (const auto& entry : by_id) add_or_replace(entry.second, added);
}

// The special tokens that a file names, each with what it says of it: "eos_token": "</s>" or
// {"content": "</s>", ...}, and lists of such.
void take_special_names(const nlohmann::json& file, nlohmann::json& special) {
  const auto take = [&](const nlohmann::json& value) {
    if (value.is_string()) {
      special[value.get<std::string>()] = nlohmann::json::object();
    } else if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      special[value["content"].get<std::string>()] = value;
    }
  };
  if (!file.is_object()) return;
  for (const auto& [key, value] : file.items()) {
    if (key == "additional_special_tokens" || key == "extra_special_tokens") {
      for (const nlohmann::json& one : value) take(one);
    } else if (key.ends_with("_token")) {
      take(value);
    }
  }
}

// What folders had before tokenizer_config.json listed the added tokens: added_tokens.json has
// their ids, and special is what special_tokens_map.json or tokenizer_config.json names. False if
// the folder has no added_tokens.json.
bool take_old_added_tokens(const fs::path& folder, const nlohmann::json& config,
                           const nlohmann::json& vocab, nlohmann::json& added) {
  std::error_code ignored;
  const fs::path map = folder / "special_tokens_map.json", listed = folder / "added_tokens.json";
  nlohmann::json special = nlohmann::json::object();
  take_special_names(config, special);
  if (fs::is_regular_file(map, ignored)) {
    take_special_names(tokenizer::parse_json(read(map), map.string()), special);
  }
  for (const auto& [content, says] : special.items()) {
    const nlohmann::json* const id = tokenizer::optional_member(vocab, content.c_str());
    if (id == nullptr) continue;
    nlohmann::json taken = tokenizer::hf_added_token(content, *id, true);
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) {
      if (says.contains(key)) taken[key] = says[key];
    }
    // GPT-2's own end of text is there as it has always been.
    if (content != kEndOfText) add_or_replace(taken, added);
  }
  if (!fs::is_regular_file(listed, ignored)) return false;
  const nlohmann::json ids = tokenizer::parse_json(read(listed), listed.string());
  if (!ids.is_object()) refuse(listed.string(), "has to be an object of tokens and their ids");
  for (const auto& [content, id] : ids.items()) {
    if (!id.is_number_unsigned()) {
      refuse(listed.string(),
             fmt::format("{} has no id, but {}", shown(content), shown(id.dump())));
    }
    add_or_replace(tokenizer::hf_added_token(content, id, special.contains(content)), added);
  }
  return true;
}

}  // namespace

namespace tokenizer {

nlohmann::json gpt2_as_hf(const nlohmann::json& vocab, std::string_view merges) {
  nlohmann::json file = hf_bpe_file(vocab, hf_byte_level(true), hf_byte_level(true));
  file["post_processor"] = hf_byte_level(true);
  nlohmann::json& list = file["model"]["merges"];
  for (size_t begin = 0; begin < merges.size();) {
    const size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string_view line = merges.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with("#version")) list.push_back(std::string(line));
    begin = end + 1;
  }
  const nlohmann::json* end_of_text = optional_member(vocab, kEndOfText);
  if (end_of_text != nullptr) {
    file["added_tokens"].push_back(hf_added_token(kEndOfText, *end_of_text, true));
  }
  return file;
}

}  // namespace tokenizer

std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerOptions& options) {
  const std::string& type = options.type;
  if (type == "bytes") return make_byte_tokenizer();
  if (type == "gpt2-bpe") return load_gpt2(options);
  const bool by_content = type.empty();
  if (by_content && options.file.empty() && !options.vocab.empty()) return load_gpt2(options);
  if (type != "hf" && type != "sentencepiece" && type != "mtl" && !by_content) {
    refuse("", fmt::format("{} is not a tokenizer that mtl has", shown(type)),
           "use bytes, chars, gpt2-bpe, hf or sentencepiece as data.tokenizer.type");
  }
  if (options.file.empty()) {
    refuse("", fmt::format("the tokenizer {} needs a file", type),
           "give it as data.tokenizer.file");
  }
  if (type == "sentencepiece" || (by_content && options.file.ends_with(".model"))) {
    return tokenizer::make_sentencepiece_tokenizer(read(options.file), options.eod, options.file);
  }
  return load_json(options.file, options);
}

std::unique_ptr<Tokenizer> load_bpe_folder(const fs::path& folder, const std::string& eod) {
  const BpeFolder found = inspect_bpe_folder(folder);
  const auto is_one_of = [&](std::initializer_list<std::string_view> types) {
    return std::find(types.begin(), types.end(), found.type) != types.end();
  };
  const bool qwen2 = is_one_of({"Qwen2Tokenizer", "Qwen2TokenizerFast", "qwen2", "qwen3"});
  if (!qwen2 && !found.type.empty() && !is_one_of({"GPT2Tokenizer", "GPT2TokenizerFast", "gpt2"})) {
    refuse(
        found.place,
        fmt::format("the tokenizer is that of {}; from vocab.json and merges.txt alone mtl makes "
                    "GPT-2's and Qwen2's",
                    shown(found.type)),
        kSaveFast);
  }
  const fs::path vocab = folder / "vocab.json";
  const nlohmann::json words = tokenizer::parse_json(read(vocab), vocab.string());
  nlohmann::json file = tokenizer::gpt2_as_hf(words, read(folder / "merges.txt"));
  const std::string config = (folder / "tokenizer_config.json").string();
  const nlohmann::json* const added =
      tokenizer::optional_member(found.config, "added_tokens_decoder");
  bool any_added = added != nullptr;
  if (any_added) {
    take_added_tokens(*added, config, file["added_tokens"]);
  } else {
    any_added = take_old_added_tokens(folder, found.config, words, file["added_tokens"]);
  }
  if (found.config.is_object() &&
      tokenizer::bool_member(found.config, "add_bos_token", config, false)) {
    refuse(config, "'add_bos_token' puts a token before every text", kSaveFast);
  }
  if (qwen2) {
    // Its vocab.json has none of them.
    if (!any_added) {
      refuse(config,
             "there is no 'added_tokens_decoder' and no added_tokens.json beside it, so that "
             "Qwen2's special tokens are unknown",
             kSaveFast);
    }
    file["normalizer"] = {{"type", "NFC"}};
    file["pre_tokenizer"] = tokenizer::hf_split_to_bytes(std::string(tokenizer::kQwen2Pattern));
  } else if (found.config.is_object()) {
    file["pre_tokenizer"]["add_prefix_space"] =
        tokenizer::bool_member(found.config, "add_prefix_space", config, false);
  }
  return tokenizer::make_hf_tokenizer(file, eod.empty() ? eos_beside(folder) : eod,
                                      vocab.string() + " and merges.txt");
}

std::unique_ptr<Tokenizer> tokenizer_from_json(const nlohmann::json& json) {
  const std::string place = "not a tokenizer that mtl can read";
  if (!json.is_object()) refuse(place, "it is not a JSON object");
  if (!json.contains("format") && json.contains("model")) {
    return tokenizer::make_hf_tokenizer(json, "", "the tokenizer");
  }
  if (tokenizer::string_member(json, "format", place) != tokenizer::kFormat) {
    refuse(place, fmt::format("'format' has to be \"{}\"", tokenizer::kFormat));
  }
  const nlohmann::json& version = tokenizer::member(json, "version", place);
  if (!version.is_number_integer()) refuse(place, "'version' has to be a number");
  if (version != tokenizer::kVersion) {
    refuse(place, fmt::format("version {} is unknown; this mtl reads version {}", version.dump(),
                              tokenizer::kVersion));
  }
  const std::string& type = tokenizer::string_member(json, "type", place);
  if (type == "bytes") return make_byte_tokenizer();
  if (type == "chars") return tokenizer::chars_from_json(json);
  if (type == "ids") {
    const nlohmann::json& vocab = tokenizer::member(json, "vocab", place);
    if (!vocab.is_number_unsigned() || vocab < 1 || vocab > 2147483647) {
      refuse(place, "'vocab' has to be a number from 1 to 2147483647");
    }
    return make_id_tokenizer(vocab.get<int64_t>());
  }
  if (type == "sentencepiece") return tokenizer::sentencepiece_from_json(json);
  if (type == "hf") {
    return tokenizer::make_hf_tokenizer(tokenizer::member(json, "tokenizer", place),
                                        tokenizer::string_member(json, "eod", place, ""),
                                        "the tokenizer");
  }
  refuse(place, fmt::format("type {} is unknown", shown(type)),
         "use the tokenizer.json that mtl wrote beside the run or into the checkpoint");
}

nlohmann::json to_hf_tokenizer(const Tokenizer& tokenizer) {
  const nlohmann::json json = tokenizer.to_json();
  const std::string type = json.at("type");
  if (type == "hf") return json.at("tokenizer");
  nlohmann::json vocab;
  if (type == "bytes") {
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char one = static_cast<char>(byte);
      vocab[tokenizer::to_byte_characters({&one, 1})] = byte;
    }
    return tokenizer::hf_bpe_file(std::move(vocab), tokenizer::hf_byte_level(false),
                                  tokenizer::hf_byte_level(false));
  }
  if (type == "chars") {
    const std::string characters = json.at("characters");
    for (size_t at = 0; at < characters.size();) {
      const size_t begin = at;
      char32_t ignored = 0;
      read_utf8(characters, at, ignored);
      vocab[characters.substr(begin, at - begin)] = vocab.size();
    }
    return tokenizer::hf_bpe_file(std::move(vocab), nullptr, {{"type", "Fuse"}});
  }
  refuse("", fmt::format("a tokenizer of type {} cannot be written as tokenizer.json", type),
         "keep the *.model file beside the model: Hugging Face reads it as it is");
}

}  // namespace mtl
