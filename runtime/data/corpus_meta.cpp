#include "runtime/data/corpus_meta.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>
#include <xxhash.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/indexed_files.h"

namespace mtl {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr size_t kLargestMeta = size_t{256} << 20;
constexpr int kDeepest = 8;

struct TypeName {
  TokenType type;
  const char* name;
};
constexpr TypeName kTypes[] = {{TokenType::u8, "u8"},   {TokenType::i8, "i8"},
                               {TokenType::i16, "i16"}, {TokenType::u16, "u16"},
                               {TokenType::i32, "i32"}, {TokenType::i64, "i64"}};

class Reader {
 public:
  explicit Reader(const fs::path& file) : file_(file) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Exit::data,
                {.code = "data.meta",
                 .what = fmt::format("{}: {}", file_.string(), what),
                 .place = Place{file_.string()},
                 .help = "make the corpus again, or remove the file: the corpus is then one "
                         "without a tokenizer, as Megatron's are"});
  }

  json parse(std::string_view text) const {
    const auto shallow = [this](int depth, json::parse_event_t, json&) {
      if (depth > kDeepest) fail(fmt::format("is nested more than {} deep", kDeepest));
      return true;
    };
    json value = json::parse(text, shallow, false);
    if (value.is_discarded()) fail("is not JSON, or is cut off");
    if (!value.is_object()) fail("is not an object");
    return value;
  }

  const json& member(const json& object, const char* name) const {
    const auto it = object.find(name);
    if (it == object.end()) fail(fmt::format("has no '{}'", name));
    return *it;
  }
  std::string string(const json& object, const char* name) const {
    const json& value = member(object, name);
    if (!value.is_string()) fail(fmt::format("'{}' is not a string", name));
    return value.get<std::string>();
  }
  bool boolean(const json& object, const char* name) const {
    const json& value = member(object, name);
    if (!value.is_boolean()) fail(fmt::format("'{}' is neither true nor false", name));
    return value.get<bool>();
  }
  int64_t count(const json& object, const char* name,
                int64_t largest = std::numeric_limits<int64_t>::max()) const {
    const json& value = member(object, name);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(largest)) {
      fail(fmt::format("'{}' is not a whole number from 0 to {}", name, largest));
    }
    return static_cast<int64_t>(value.get<uint64_t>());
  }

 private:
  const fs::path& file_;
};

}  // namespace

uint64_t hash_of(const Tokenizer& tokenizer) {
  const std::string text = tokenizer.to_json().dump();
  return XXH3_64bits(text.data(), text.size());
}

fs::path meta_path(const fs::path& prefix) {
  return indexed_prefix(prefix).string() + ".meta.json";
}
fs::path tokenizer_path(const fs::path& prefix) {
  return indexed_prefix(prefix).string() + ".tokenizer.json";
}

fs::path loss_prefix(const fs::path& prefix) {
  return prefix.string() + ".loss";
}

std::unique_ptr<IndexedDataset> open_loss(const IndexedDataset& corpus,
                                          const std::optional<CorpusMeta>& meta) {
  const fs::path prefix = loss_prefix(corpus.prefix());
  const auto refuse = [&](const std::string& what) {
    throw Error(Exit::data,
                {.code = "data.loss",
                 .what = fmt::format("{}.idx: {}", prefix.string(), what),
                 .help = "make the corpus again; without its .loss.bin and .loss.idx and "
                         "'\"loss\": true' in its .meta.json all of it is learned"});
  };
  if (!fs::exists(idx_path(prefix))) {
    if ((meta && meta->has_loss) || fs::exists(bin_path(prefix))) {
      refuse("is not there, and says which tokens are to be learned");
    }
    return nullptr;
  }
  auto loss = std::make_unique<IndexedDataset>(prefix);
  if (loss->type() != TokenType::u8) refuse("its values are not u8");
  if (loss->sequences() != corpus.sequences()) {
    refuse(
        fmt::format("has {} sequences, and the corpus {}", loss->sequences(), corpus.sequences()));
  }
  for (int64_t s = 0; s < corpus.sequences(); ++s) {
    if (loss->length(s) == corpus.length(s)) continue;
    refuse(fmt::format("sequence {} has {} values and {} tokens", s, loss->length(s),
                       corpus.length(s)));
  }
  return loss;
}

void refuse_loss(const fs::path& prefix, bool fresh) {
  const fs::path loss = loss_prefix(prefix);
  if (!fs::exists(idx_path(loss))) return;
  const bool own = fs::exists(loss.string() + ".meta.json");
  if (fresh && !own) return;
  throw Error(Exit::data,
              {.code = "data.exists",
               .what = fmt::format("there is {}.idx, which would say what of {} is to be learned",
                                   loss.string(), prefix.string()),
               .help = own ? "it is a corpus of its own: write under another name (-o)"
                           : "--fresh removes it, or write under another name (-o)"});
}

void remove_loss(const fs::path& prefix) {
  std::error_code ignored;
  fs::remove(idx_path(loss_prefix(prefix)), ignored);
  fs::remove(bin_path(loss_prefix(prefix)), ignored);
}

CorpusMeta parse_corpus_meta(std::string_view text, const fs::path& file) {
  const Reader reader(file);
  const json object = reader.parse(text);
  CorpusMeta meta;
  if (reader.string(object, "format") != "mtl.corpus") reader.fail("'format' is not mtl.corpus");
  if (const int64_t version = reader.count(object, "version"); version != 1) {
    reader.fail(fmt::format("is of version {}; this mtl reads version 1", version));
  }
  const json& tokenizer = reader.member(object, "tokenizer");
  if (!tokenizer.is_object()) reader.fail("'tokenizer' is not an object");
  const std::string hash = reader.string(tokenizer, "hash");
  const auto parsed =
      std::from_chars(hash.data(), hash.data() + hash.size(), meta.tokenizer_hash, 16);
  if (hash.size() != 16 || parsed.ec != std::errc() || parsed.ptr != hash.data() + hash.size()) {
    reader.fail("'tokenizer.hash' is not 16 hexadecimal digits");
  }
  meta.vocab_size = reader.count(tokenizer, "vocab_size", int64_t{1} << 31);
  if (!reader.member(tokenizer, "eod").is_null()) {
    const int64_t eod = reader.count(tokenizer, "eod");
    if (eod >= meta.vocab_size) reader.fail("'tokenizer.eod' is not in the vocabulary");
    meta.eod = static_cast<int32_t>(eod);
  }
  meta.tokenizer_file = reader.string(tokenizer, "file");
  // A name, never a way to somewhere else.
  if (meta.tokenizer_file.find('/') != std::string::npos || meta.tokenizer_file == "..") {
    reader.fail("'tokenizer.file' is not the name of a file beside it");
  }
  meta.documents_end_in_eod = reader.boolean(object, "documents_end_in_eod");
  if (meta.documents_end_in_eod && !meta.eod) {
    reader.fail("'documents_end_in_eod' is true, and 'tokenizer.eod' is null");
  }
  const std::string type = reader.string(object, "type");
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const TypeName& row) { return type == row.name; });
  if (found == std::end(kTypes)) reader.fail("'type' is none of u8, i8, i16, u16, i32, i64");
  meta.type = found->type;
  meta.sequences = reader.count(object, "sequences");
  meta.documents = reader.count(object, "documents");
  meta.tokens = reader.count(object, "tokens");
  meta.json_key = reader.string(object, "json_key");
  // Corpora of before have none.
  meta.has_loss = object.contains("loss") && reader.boolean(object, "loss");
  const json& inputs = reader.member(object, "inputs");
  if (!inputs.is_array()) reader.fail("'inputs' is not a list");
  for (const json& input : inputs) {
    if (!input.is_object()) reader.fail("an element of 'inputs' is not an object");
    meta.inputs.push_back({reader.string(input, "path"), reader.count(input, "bytes")});
  }
  return meta;
}

std::optional<CorpusMeta> read_corpus_meta(const fs::path& prefix) {
  const fs::path file = meta_path(prefix);
  std::error_code error;
  if (!fs::exists(file, error) && !error) return std::nullopt;
  std::string text;
  try {
    text = read_file(file, kLargestMeta);
  } catch (const Error& unreadable) {
    throw Error(Exit::data, {.code = "data.unreadable",
                             .what = unreadable.diagnostics().front().what,
                             .place = Place{file.string()},
                             .help = "check the permissions of the file"});
  }
  return parse_corpus_meta(text, file);
}

std::string corpus_meta_json(const CorpusMeta& meta) {
  // In this order, for people.
  nlohmann::ordered_json object;
  object["format"] = "mtl.corpus";
  object["version"] = 1;
  auto& tokenizer = object["tokenizer"];
  tokenizer["hash"] = fmt::format("{:016x}", meta.tokenizer_hash);
  tokenizer["vocab_size"] = meta.vocab_size;
  tokenizer["eod"] = nullptr;
  if (meta.eod) tokenizer["eod"] = *meta.eod;
  tokenizer["file"] = meta.tokenizer_file;
  object["documents_end_in_eod"] = meta.documents_end_in_eod;
  for (const TypeName& row : kTypes) {
    if (row.type == meta.type) object["type"] = row.name;
  }
  object["sequences"] = meta.sequences;
  object["documents"] = meta.documents;
  object["tokens"] = meta.tokens;
  object["json_key"] = meta.json_key;
  if (meta.has_loss) object["loss"] = true;
  auto& inputs = object["inputs"] = nlohmann::ordered_json::array();
  for (const CorpusMeta::Input& input : meta.inputs) {
    inputs.push_back({{"path", input.path}, {"bytes", input.bytes}});
  }
  // A path need not be UTF-8.
  return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void write_corpus_meta(const fs::path& prefix, const CorpusMeta& meta) {
  write_file_atomic(meta_path(prefix), corpus_meta_json(meta));
}

void check_corpus_meta(const CorpusMeta& meta, const IndexedDataset& dataset) {
  const fs::path file = meta_path(dataset.prefix());
  const Reader reader(file);
  const auto check = [&](const char* what, int64_t here, int64_t there) {
    if (here != there) {
      reader.fail(fmt::format("says {} {}, and the corpus has {}", here, what, there));
    }
  };
  if (meta.type != dataset.type()) reader.fail("'type' is not that of the corpus");
  check("sequences", meta.sequences, dataset.sequences());
  check("documents", meta.documents, dataset.documents());
  check("tokens", meta.tokens, dataset.tokens());
}

void write_corpus_tokenizer(const fs::path& prefix, const Tokenizer& tokenizer) {
  write_file_atomic(tokenizer_path(prefix), tokenizer.to_json().dump() + "\n");
}

std::unique_ptr<Tokenizer> load_corpus_tokenizer(const fs::path& prefix, const CorpusMeta& meta) {
  if (meta.tokenizer_file.empty()) return nullptr;
  const fs::path file = meta_path(prefix).parent_path() / meta.tokenizer_file;
  const auto refuse = [&](const char* code, const std::string& what) {
    throw Error(
        Exit::data,
        {.code = code,
         .what = fmt::format("{}: {}", file.string(), what),
         .place = Place{file.string()},
         .help = "copy it from where the corpus was made: the ids mean nothing without it"});
  };
  std::error_code error;
  if (!fs::exists(file, error)) refuse("data.missing", "the tokenizer of the corpus is not there");
  const json parsed = json::parse(read_file(file, kLargestMeta), nullptr, false);
  if (parsed.is_discarded()) refuse("data.tokenizer", "is not JSON, or is cut off");
  auto tokenizer = tokenizer_from_json(parsed);
  if (hash_of(*tokenizer) != meta.tokenizer_hash) {
    refuse("data.tokenizer", "is not the tokenizer that made the corpus (its hash is another)");
  }
  return tokenizer;
}

}  // namespace mtl
