#include "runtime/interchange/hf_tokenizer.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/data/chat/encoder.h"
#include "runtime/data/chat/jinja.h"
#include "runtime/data/load_tokenizer.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

using OrderedJson = nlohmann::ordered_json;

// A token that begins a text has no name in the format; these are what it is called.
const char* const kBegin[] = {"<|begin_of_text|>",       "<s>",  "<bos>", "<|startoftext|>",
                              "<｜begin▁of▁sentence｜>", "[BOS]"};

// Tokens that were added to a SentencePiece model are in added_tokens.json: without them the
// model's last rows would be padding, and a prompt's special tokens words. Some folders list there
// what the model itself has (<s>, </s>), which adds nothing.
std::unique_ptr<Tokenizer> load_sentencepiece_folder(const fs::path& folder) {
  const fs::path model = folder / "tokenizer.model", listed = folder / "added_tokens.json";
  auto tokenizer = load_tokenizer({.type = "sentencepiece", .file = model.string()});
  if (!fs::exists(listed)) return tokenizer;
  const auto added = nlohmann::json::parse(read_file(listed), nullptr, false);
  const auto is_known = [&](const nlohmann::json& id) {
    return id.is_number_unsigned() &&
           id.get<uint64_t>() < static_cast<uint64_t>(tokenizer->vocab_size());
  };
  if (added.is_object() && std::all_of(added.begin(), added.end(), is_known)) return tokenizer;
  throw Error(
      Exit::data,
      {.code = "data.tokenizer",
       .what = listed.string() + " adds tokens to tokenizer.model, which mtl reads as it is",
       .help = "save it with the fast tokenizer, which writes tokenizer.json with all of them: "
               "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER); or leave them out: "
               "--tokenizer " +
               model.string()});
}

}  // namespace

HfChat hf_chat(const std::string& name, const nlohmann::json& json) {
  if (name.empty()) return {};
  const chat::Format format = chat::load_format(name);
  if (json.is_null()) {
    throw Error(Exit::data, {.code = "data.chat",
                             .what = "the checkpoint has no tokenizer, whose chat template it is",
                             .help = "leave --chat out"});
  }
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_from_json(json);
  const std::optional<int32_t> eod = tokenizer->eod();
  return {chat::jinja_template(format, eod ? tokenizer->decode({&*eod, 1}) : ""),
          chat::Encoder(format, *tokenizer).end()};
}

HfTokens write_hf_tokenizer(const nlohmann::json& json, const ModelShape& shape, const HfChat& chat,
                            const NewFolder& folder, std::vector<Diagnostic>& warnings) {
  HfTokens tokens;
  const auto warn = [&](const std::string& what) {
    warnings.push_back({.code = "export.tokenizer",
                        .what = "the folder has no tokenizer: " + what,
                        .help = "put the tokenizer's own files beside the model",
                        .severity = Diagnostic::Severity::warning});
    return tokens;
  };
  if (json.is_null()) return warn("the checkpoint has none");
  nlohmann::json written;
  try {
    const std::unique_ptr<Tokenizer> tokenizer = tokenizer_from_json(json);
    if (const auto eod = tokenizer->eod()) tokens.eos = *eod;
    written = to_hf_tokenizer(*tokenizer);
  } catch (const Error& error) {
    return warn(error.diagnostics()[0].what);
  }
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"model_max_length", shape.max_seq},
                        {"clean_up_tokenization_spaces", false}};
  OrderedJson special = OrderedJson::object();
  const auto name = [&](const char* key, const nlohmann::json& token) {
    config[key] = special[key] = token.at("content");
  };
  if (const auto added = written.find("added_tokens"); added != written.end()) {
    for (const nlohmann::json& token : *added) {
      const int64_t id = token.at("id").get<int64_t>();
      for (const char* begin : kBegin) {
        if (token.at("content") == begin && !tokens.bos) tokens.bos = id;
      }
      if (tokens.eos == id) name("eos_token", token);
    }
    // GPT-2 has one token for both ends.
    if (!tokens.bos && shape.family() == Family::gpt2) tokens.bos = tokens.eos;
    for (const nlohmann::json& token : *added) {
      if (tokens.bos == token.at("id").get<int64_t>()) name("bos_token", token);
    }
  }
  if (!chat.text.empty()) config["chat_template"] = chat.text;
  folder.write("tokenizer.json", written.dump(2) + "\n");
  folder.write("tokenizer_config.json", config.dump(2) + "\n");
  folder.write("special_tokens_map.json", special.dump(2) + "\n");
  return tokens;
}

std::vector<int64_t> hf_ends(const fs::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::error_code ignored;
    if (!fs::exists(folder / name, ignored)) continue;
    const nlohmann::json config = nlohmann::json::parse(read_file(folder / name), nullptr, false);
    if (!config.is_object() || !config.contains("eos_token_id")) continue;
    const nlohmann::json& said = config.at("eos_token_id");
    std::vector<int64_t> ids;
    for (const nlohmann::json& id : said.is_array() ? said : nlohmann::json::array({said})) {
      if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
    }
    return ids;
  }
  return {};
}

std::unique_ptr<Tokenizer> find_tokenizer(const fs::path& folder, const std::string& given) {
  if (given == "bytes") return make_byte_tokenizer();
  const auto from_folder = [](const fs::path& dir) -> std::unique_ptr<Tokenizer> {
    if (fs::exists(dir / "tokenizer.json")) {
      return load_tokenizer({.file = (dir / "tokenizer.json").string()});
    }
    if (fs::exists(dir / "vocab.json") && fs::exists(dir / "merges.txt")) {
      return load_bpe_folder(dir);
    }
    if (fs::exists(dir / "tokenizer.model")) return load_sentencepiece_folder(dir);
    return nullptr;
  };
  if (given.empty()) return from_folder(folder);
  if (!fs::is_directory(given)) return load_tokenizer({.file = given});
  if (auto tokenizer = from_folder(given)) return tokenizer;
  throw Error(Exit::data, {.code = "data.missing",
                           .what = given + " has no tokenizer.json, vocab.json with merges.txt, "
                                           "or tokenizer.model",
                           .help = "give a file, or a folder with one"});
}

}  // namespace mtl
