// tokenizer.json: added tokens, normalizer, pre-tokenizer, BPE and decoder, put together in the
// order in which Hugging Face's library runs them. Templates (a BOS before each text) are kept in
// the file and never applied: a corpus has exactly the tokens of its text.
#include "runtime/data/tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/data/tokenizer/added_tokens.h"
#include "runtime/data/tokenizer/bpe.h"
#include "runtime/data/tokenizer/decoder.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer/pre_tokenizer.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl::tokenizer {

namespace {

const nlohmann::json& bpe_model(const nlohmann::json& file, const std::string& place) {
  const nlohmann::json& model = member(file, "model", place);
  const std::string here = place + ": model";
  std::string type = string_member(model, "type", here, "");
  if (type.empty() && optional_member(model, "merges")) type = "BPE";
  if (type == "BPE") return model;
  refuse(here, fmt::format("is {}, and mtl has BPE", type.empty() ? "of no type" : shown(type)),
         type == "Unigram" ? "give the SentencePiece file that it was made from: "
                             "data.tokenizer.type: sentencepiece, data.tokenizer.file: *.model"
                           : "use a tokenizer whose model is BPE");
}

void check_post_processor(const nlohmann::json* json, const std::string& place) {
  if (json == nullptr || json->is_null()) return;
  const std::string& type = string_member(*json, "type", place);
  if (type == "Sequence") {
    size_t i = 0;
    for (const nlohmann::json& step : list_member(*json, "processors", place)) {
      check_post_processor(&step, fmt::format("{}.processors[{}]", place, i++));
    }
    return;
  }
  for (const char* known :
       {"TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing"}) {
    if (type == known) return;
  }
  refuse(place, fmt::format("the post-processor {} is unknown", shown(type)));
}

std::vector<AddedToken> added_tokens_of(const nlohmann::json& file, const Bpe& bpe,
                                        const std::string& place) {
  std::vector<AddedToken> tokens;
  if (optional_member(file, "added_tokens") == nullptr) return tokens;
  std::unordered_map<int32_t, std::string> by_id;
  for (const nlohmann::json& json : list_member(file, "added_tokens", place)) {
    const std::string here = fmt::format("{}: added_tokens[{}]", place, tokens.size());
    AddedToken token{
        .id = static_cast<int32_t>(size_member(json, "id", here, most_ids(bpe.id_limit()))),
        .content = string_member(json, "content", here),
        .single_word = bool_member(json, "single_word", here, false),
        .lstrip = bool_member(json, "lstrip", here, false),
        .rstrip = bool_member(json, "rstrip", here, false),
        .special = bool_member(json, "special", here, false)};
    token.normalized = bool_member(json, "normalized", here, !token.special);
    if (token.content.empty()) refuse(here, "'content' is empty");
    const auto in_vocabulary = bpe.id_of(token.content);
    if (in_vocabulary && *in_vocabulary != token.id) {
      refuse(here, fmt::format("{} has the id {} here, and {} in the vocabulary",
                               shown(token.content), token.id, *in_vocabulary));
    }
    const std::string* other = bpe.token(token.id);
    const auto [same, is_new] = by_id.emplace(token.id, token.content);
    if (other == nullptr && !is_new) other = &same->second;
    if (other != nullptr && *other != token.content) {
      refuse(here, fmt::format("{} and {} have the same id {}", shown(*other), shown(token.content),
                               token.id));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Which of the tokens: looked for in the normalized text or before, and with the special ones or
// without.
AddedTokenFinder finder(const std::vector<AddedToken>& tokens, bool normalized, bool special,
                        const Normalizer* normalizer) {
  std::vector<AddedToken> chosen;
  std::vector<std::string> texts;
  // Of two with the same text the special one counts.
  for (const bool pass : {true, false}) {
    for (const AddedToken& token : tokens) {
      if (token.special != pass || token.normalized != normalized || (token.special && !special)) {
        continue;
      }
      texts.push_back(token.content);
      if (normalized && normalizer) normalizer->apply(texts.back());
      chosen.push_back(token);
    }
  }
  return AddedTokenFinder(std::move(chosen), texts);
}

class HfTokenizer : public Tokenizer {
 public:
  HfTokenizer(const nlohmann::json& file, const std::string& eod, const std::string& place)
      : file_(file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)),
        normalizer_(make_normalizer(optional_member(file, "normalizer"), place + ": normalizer")),
        pre_tokenizer_(optional_member(file, "pre_tokenizer"), place + ": pre_tokenizer"),
        bpe_(bpe_model(file, place), pre_tokenizer_.byte_level(), place + ": model"),
        decoder_(make_decoder(optional_member(file, "decoder"), place + ": decoder")),
        added_(added_tokens_of(file, bpe_, place)),
        ordinary_{finder(added_, false, false, normalizer_.get()),
                  finder(added_, true, false, normalizer_.get())},
        all_{finder(added_, false, true, normalizer_.get()),
             finder(added_, true, true, normalizer_.get())} {
    check_post_processor(optional_member(file, "post_processor"), place + ": post_processor");
    vocab_size_ = bpe_.id_limit();
    for (const AddedToken& token : added_) {
      vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
      added_by_id_.emplace(token.id, &token);
    }
    find_eod(eod, place);
  }

  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> eod() const override { return eod_; }

  std::vector<int32_t> encode(std::string_view text) const override {
    return encode(text, ordinary_, {});
  }
  std::vector<int32_t> encode_part(std::string_view text, TextPart part) const override {
    return encode(text, ordinary_, part);
  }
  std::vector<int32_t> encode_with_special(std::string_view text) const override {
    return encode(text, all_, {});
  }
  std::optional<SpecialToken> special(std::string_view name) const override {
    for (const AddedToken& token : added_) {
      if (token.content == name) return SpecialToken{token.id, token.lstrip, token.rstrip};
    }
    return std::nullopt;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::vector<TokenText> tokens;
    tokens.reserve(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size_) {
        throw Error(
            Exit::data,
            Diagnostic{
                .code = "data.token",
                .what = fmt::format("token id {} at position {} is outside the vocabulary of {}",
                                    ids[i], i, vocab_size_),
                .help = "decode with the tokenizer that the model was trained with"});
      }
      const auto added = added_by_id_.find(ids[i]);
      if (added != added_by_id_.end()) {
        tokens.push_back({added->second->content, true});
      } else if (const std::string* token = bpe_.token(ids[i])) {
        tokens.push_back({*token});
      }
      // Between the ids of others there may be some without a token: they are nothing.
    }
    decoder_->apply(tokens);
    std::string text;
    for (const TokenText& token : tokens) text += token.text;
    return text;
  }

  nlohmann::json to_json() const override {
    nlohmann::json json = {{"format", kFormat},
                           {"version", kVersion},
                           {"type", "hf"},
                           {"tokenizer", nlohmann::json::parse(file_)}};
    if (eod_) json["eod"] = *token_text(*eod_);
    return json;
  }

 private:
  struct Finders {
    AddedTokenFinder raw, normalized;
  };

  struct Scratch {
    BpeScratch bpe;
    Pieces pieces;
    std::vector<AddedTokenFinder::Part> parts, normalized_parts;
    std::string whole, normalized;
  };

  // A scratch that no other thread has; at the end the next call gets it.
  class Lease {
   public:
    explicit Lease(const HfTokenizer& owner) : owner_(owner) {
      {
        const std::lock_guard lock(owner_.mutex_);
        if (!owner_.idle_.empty()) {
          scratch_ = std::move(owner_.idle_.back());
          owner_.idle_.pop_back();
        }
      }
      if (!scratch_) scratch_ = std::make_unique<Scratch>();
    }
    ~Lease() {
      const std::lock_guard lock(owner_.mutex_);
      owner_.idle_.push_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() const { return *scratch_; }

   private:
    const HfTokenizer& owner_;
    std::unique_ptr<Scratch> scratch_;
  };

  void find_eod(const std::string& wanted, const std::string& place) {
    const std::string content = wanted.empty() ? "<|endoftext|>" : wanted;
    for (const AddedToken& token : added_) {
      if (token.content == content) eod_ = token.id;
    }
    if (eod_ || wanted.empty()) return;
    eod_ = bpe_.id_of(content);
    if (!eod_) {
      refuse(place,
             fmt::format("{}, which is to end documents, is not in the vocabulary", shown(content)),
             "name a token of the vocabulary with data.tokenizer.eod");
    }
  }

  const std::string* token_text(int32_t id) const {
    const auto added = added_by_id_.find(id);
    return added == added_by_id_.end() ? bpe_.token(id) : &added->second->content;
  }

  std::vector<int32_t> encode(std::string_view text, const Finders& finders, TextPart in) const {
    const Lease lease(*this);
    Scratch& scratch = *lease;
    std::vector<int32_t> ids;
    text = whole_utf8(text, scratch.whole);
    ids.reserve(text.size() / 4 + 16);
    const Begins begins = !in.begins        ? Begins::goes_on
                          : in.behind_token ? Begins::behind
                                            : Begins::text;
    if (finders.raw.empty()) {
      encode_stretch({text, begins}, in.ends, finders, scratch, ids);
    } else {
      scratch.parts.clear();
      finders.raw.split(text, scratch.parts);
      for (const auto& part : scratch.parts) {
        if (part.token) {
          ids.push_back(part.token->id);
        } else {
          // To the normalizer a special token is an end, as to Hugging Face's library.
          const bool at_begin = part.text.data() == text.data();
          const bool at_end = part.text.data() + part.text.size() == text.data() + text.size();
          encode_stretch({part.text, at_begin ? begins : Begins::behind}, in.ends || !at_end,
                         finders, scratch, ids);
        }
      }
    }
    return ids;
  }

  // What lies between added tokens that are looked for as they stand. `ends`: nothing follows it.
  void encode_stretch(Piece text, bool ends, const Finders& finders, Scratch& scratch,
                      std::vector<int32_t>& ids) const {
    if (normalizer_) {
      scratch.normalized = text.text;
      const bool front_gone = normalizer_->apply(
          scratch.normalized, {.begins = text.begins != Begins::goes_on, .ends = ends});
      text.text = scratch.normalized;
      if (front_gone && text.begins == Begins::text) text.begins = Begins::behind;
    }
    if (finders.normalized.empty()) return encode_plain(text, scratch, ids);
    scratch.normalized_parts.clear();
    finders.normalized.split(text.text, scratch.normalized_parts);
    for (const auto& part : scratch.normalized_parts) {
      if (part.token) {
        ids.push_back(part.token->id);
      } else {
        const bool at_begin = part.text.data() == text.text.data();
        encode_plain({part.text, at_begin ? text.begins : Begins::behind}, scratch, ids);
      }
    }
  }

  void encode_plain(const Piece& piece, Scratch& scratch, std::vector<int32_t>& ids) const {
    if (const Scanner scan = pre_tokenizer_.only_scanner()) {
      const std::string_view text = piece.text;
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = scan(text, begin);
        bpe_.encode(text.substr(begin, end - begin), scratch.bpe, ids);
        begin = end;
      }
      return;
    }
    pre_tokenizer_.split(piece, scratch.pieces);
    for (const Piece& word : scratch.pieces.now) bpe_.encode(word.text, scratch.bpe, ids);
  }

  const std::string file_;  // as compact text: much smaller than parsed
  const std::unique_ptr<Normalizer> normalizer_;
  const PreTokenizer pre_tokenizer_;
  const Bpe bpe_;
  const std::unique_ptr<Decoder> decoder_;
  const std::vector<AddedToken> added_;
  const Finders ordinary_, all_;
  std::unordered_map<int32_t, const AddedToken*> added_by_id_;
  int64_t vocab_size_ = 0;
  std::optional<int32_t> eod_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_hf_tokenizer(const nlohmann::json& file, const std::string& eod,
                                             const std::string& place) {
  return std::make_unique<HfTokenizer>(file, eod, place);
}

}  // namespace mtl::tokenizer
