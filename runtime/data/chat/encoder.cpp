#include "runtime/data/chat/encoder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/utf8.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl::chat {

namespace {

// How many bytes of white space a text begins with. `python`: and of what str.strip() takes
// besides, which Jinja's `trim` is.
size_t space_at_front(std::string_view text, bool python) {
  size_t at = 0;
  while (at < text.size()) {
    const tokenizer::Character next = tokenizer::read_character(text.data() + at);
    const bool separator = python && next.code >= 0x1C && next.code <= 0x1F;
    if (!separator && !tokenizer::is_white_space(next.code)) break;
    at += next.bytes;
  }
  return at;
}

// Where the white space begins that a text ends with.
size_t space_at_end(std::string_view text, bool python) {
  size_t end = text.size();
  while (end > 0) {
    const size_t begin = previous_character(text, end);
    const std::string_view last = text.substr(begin, end - begin);
    if (space_at_front(last, python) != last.size()) break;
    end = begin;
  }
  return end;
}

std::string_view stripped(std::string_view text) {
  text = text.substr(0, space_at_end(text, true));
  return text.substr(space_at_front(text, true));
}

[[noreturn]] void refuse(const std::string& what, const std::string& help) {
  throw Error(Exit::data, {.code = "data.chat", .what = what, .help = help});
}

// The tokens of a format that a tokenizer lacks.
std::vector<std::string> missing(const Format& format, const Tokenizer& tokenizer) {
  std::vector<std::string> names;
  const auto look = [&](const Pieces& pieces) {
    for (const Piece& piece : pieces) {
      const bool lacks =
          piece.kind == Piece::Kind::eod
              ? !tokenizer.eod().has_value()
              : piece.kind == Piece::Kind::token && !tokenizer.special(piece.text).has_value();
      const std::string name = piece.kind == Piece::Kind::eod ? "{eod}" : piece.text;
      if (lacks && std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  };
  look(format.begin);
  // A family's older models may have no tokens for a role that they do not know.
  for (const char* role : {"user", "assistant"}) look(format.roles.at(role));
  return names;
}

}  // namespace

// Takes parts one by one; text waits until a token ends it.
class Encoder::Writer {
 public:
  Writer(const Tokenizer& tokenizer, const std::vector<std::string>& typed)
      : tokenizer_(tokenizer), typed_(typed) {}

  void text(std::string_view more, bool learn) {
    if (more.empty()) return;
    if (learn && (marks_.empty() || marks_.back().second != text_.size())) {
      marks_.emplace_back(text_.size(), text_.size());
    }
    text_ += more;
    if (learn) marks_.back().second = text_.size();
  }

  void token(const SpecialToken& token, bool learn) {
    end_text(token.lstrip);
    out_.ids.push_back(token.id);
    out_.learn.push_back(learn);
    behind_token_ = true;
    strips_ = token.rstrip;
  }

  Encoded finish() {
    end_text(false);
    return std::move(out_);
  }

 private:
  // The tokens of the text so far. One that lies on an edge of what is to be learned is learned
  // too.
  void end_text(bool strip_end) {
    size_t first = 0, last = text_.size();
    if (strips_) first = space_at_front(text_, false);
    if (strip_end) last = std::max(space_at_end(text_, false), first);
    const std::string_view all = std::string_view(text_).substr(first, last - first);
    const std::vector<int32_t> ids = encode(all);
    std::vector<uint8_t> learn(ids.size(), 0);
    const std::vector<size_t> ends = marks_.empty() ? std::vector<size_t>() : ends_of(all, ids);
    for (const auto& [from, to] : marks_) {
      mark(all, ids, ends, std::clamp(from, first, last) - first,
           std::clamp(to, first, last) - first, learn);
    }
    out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
    out_.learn.insert(out_.learn.end(), learn.begin(), learn.end());
    text_.clear();
    marks_.clear();
  }

  // Where each token ends in the text; nothing where tokens do not spell it byte by byte.
  std::vector<size_t> ends_of(std::string_view all, const std::vector<int32_t>& ids) const {
    std::vector<size_t> ends;
    size_t at = 0;
    for (const int32_t id : ids) {
      const std::string text = tokenizer_.decode({&id, 1});
      if (all.substr(at, text.size()) != text) return {};
      at += text.size();
      ends.push_back(at);
    }
    return at == all.size() ? ends : std::vector<size_t>();
  }

  void mark(std::string_view all, const std::vector<int32_t>& ids, const std::vector<size_t>& ends,
            size_t from, size_t to, std::vector<uint8_t>& learn) const {
    size_t begin = 0, end = 0;
    if (!ends.empty()) {
      const auto after = [&](size_t byte) {  // the first token that ends behind it
        return static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), byte) - ends.begin());
      };
      begin = after(from);
      end = to > from ? after(to - 1) + 1 : begin;
    } else {
      begin = tokens_before(all, from, ids);
      end = tokens_before(all, to, ids);
    }
    for (size_t i = begin; i < std::min(end, learn.size()); ++i) learn[i] = 1;
  }

  // A token of the format that people have typed is text: it is encoded in two parts, of which none
  // is that token. (Special ones are text to encode_part() anyhow.)
  std::vector<int32_t> encode(std::string_view text) const {
    if (text.empty()) return {};
    std::vector<int32_t> ids;
    TextPart part{.behind_token = behind_token_};
    while (true) {
      size_t cut = std::string_view::npos;
      for (const std::string& name : typed_) {
        const size_t found = text.find(name);
        if (found == std::string_view::npos) continue;
        cut = std::min(cut, next_character(text, found));
      }
      part.ends = cut == std::string_view::npos;
      const std::vector<int32_t> more = tokenizer_.encode_part(text.substr(0, cut), part);
      ids.insert(ids.end(), more.begin(), more.end());
      if (part.ends) return ids;
      text.remove_prefix(cut);
      part = {.begins = false};
    }
  }

  // How many of `ids`, the tokens of `all`, lie within its first `bytes`, where that has to be
  // found by encoding them alone.
  size_t tokens_before(std::string_view all, size_t bytes, const std::vector<int32_t>& ids) const {
    if (bytes == 0) return 0;
    if (bytes == all.size()) return ids.size();
    const std::vector<int32_t> alone = encode(all.substr(0, bytes));
    const auto differ = std::mismatch(alone.begin(), alone.end(), ids.begin(), ids.end());
    return static_cast<size_t>(differ.first - alone.begin());
  }

  const Tokenizer& tokenizer_;
  const std::vector<std::string>& typed_;
  std::string text_;
  std::vector<std::pair<size_t, size_t>> marks_;  // of text_, what is to be learned
  bool behind_token_ = false;
  bool strips_ = false;  // the token before text_ takes the white space behind it
  Encoded out_;
};

Encoder::Encoder(const Format& format, const Tokenizer& tokenizer)
    : format_(format), tokenizer_(tokenizer) {
  const std::vector<std::string> lacks = missing(format, tokenizer);
  if (!lacks.empty()) {
    std::vector<std::string> fit;
    for (const std::string& name : format_names()) {
      if (missing(load_format(name), tokenizer).empty()) fit.push_back(name);
    }
    refuse(fmt::format("conversations of the format {} need {}, which the tokenizer has not",
                       format.name, fmt::join(lacks, " and ")),
           fit.empty() ? "for the format plain a tokenizer has to have a token that ends a "
                         "document; or give a YAML file with a format of your own"
                       : fmt::format("it has all tokens of {}; or give a YAML file with your own",
                                     fmt::join(fit, ", ")));
  }
  begin_ = parts_of(format.begin);
  for (const auto& [role, pieces] : format.roles) {
    const bool known = std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return piece.kind != Piece::Kind::token || tokenizer.special(piece.text).has_value();
    });
    if (known) roles_.emplace(role, parts_of(pieces));
  }
  bool said = false;
  for (const Part& part : roles_.at("assistant")) {
    if (said && part.kind == Piece::Kind::token && !end_) end_ = part.token.id;
    said |= part.kind == Piece::Kind::content;
  }
}

Encoder::Parts Encoder::parts_of(const Pieces& pieces) {
  Parts parts;
  for (const Piece& piece : pieces) {
    Part part{piece.kind, piece.text, {}};
    if (piece.kind == Piece::Kind::text &&
        tokenizer_.encode(piece.text) != tokenizer_.encode_with_special(piece.text)) {
      refuse(fmt::format("the format {} writes {} as text, in which the tokenizer has a token",
                         format_.name, nlohmann::json(piece.text).dump()),
             "write the token as {NAME}: \"{<|im_start|>}user\\n{content}{<|im_end|>}\\n\"");
    }
    if (piece.kind == Piece::Kind::eod) {
      part.kind = Piece::Kind::token;
      const int32_t eod = *tokenizer_.eod();
      part.text = tokenizer_.decode({&eod, 1});
      const auto special = tokenizer_.special(part.text);
      part.token = special ? *special : SpecialToken{.id = eod};
    } else if (piece.kind == Piece::Kind::token) {
      part.token = *tokenizer_.special(piece.text);
    }
    if (part.kind == Piece::Kind::token && !part.text.empty() &&
        tokenizer_.encode(part.text) == std::vector<int32_t>{part.token.id}) {
      typed_.push_back(part.text);
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

void Encoder::write(std::span<const Message> messages, Writer& writer) const {
  const auto put = [&](const Parts& parts, std::string_view content, bool learn) {
    bool said = false;  // and its end has not come yet
    for (const Part& part : parts) {
      if (part.kind == Piece::Kind::content) {
        said = true;
        writer.text(content, learn);
      } else if (part.kind == Piece::Kind::text) {
        writer.text(part.text, learn && said);
      } else {
        writer.token(part.token, learn && said);
        said = false;
      }
    }
  };
  put(begin_, {}, false);
  std::string before_user, whole;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool strips = message.role == "system" ? format_.strips_system : format_.strips;
    const std::string_view content = tokenizer::whole_utf8(message.content, whole);
    const std::string_view said = strips ? stripped(content) : content;
    if (message.role == "system" && format_.system_before_user) {
      if (i > 0 || messages.size() < 2 || messages[1].role != "user") {
        refuse(fmt::format("the format {} has no place for a 'system' that is not followed by the "
                           "first 'user'",
                           format_.name),
               "put it first, and a 'user' behind it");
      }
      before_user = fmt::format("{}\n\n", said);
      continue;
    }
    const auto role = roles_.find(message.role);
    if (role == roles_.end()) {
      std::vector<std::string> names;
      for (const auto& known : roles_) names.push_back(known.first);
      refuse(fmt::format("the format {} has no role '{}'{}", format_.name, message.role,
                         format_.roles.contains(message.role) ? " with this tokenizer" : ""),
             fmt::format("its roles are {}", fmt::join(names, ", ")));
    }
    put(role->second, std::exchange(before_user, {}) + std::string(said),
        message.role == "assistant" && message.learn);
  }
}

Encoded Encoder::encode(std::span<const Message> messages) const {
  Writer writer(tokenizer_, typed_);
  write(messages, writer);
  return writer.finish();
}

std::vector<int32_t> Encoder::prompt(std::span<const Message> messages) const {
  Writer writer(tokenizer_, typed_);
  write(messages, writer);
  for (const Part& part : roles_.at("assistant")) {
    if (part.kind == Piece::Kind::content) break;
    if (part.kind == Piece::Kind::text) {
      writer.text(part.text, false);
    } else {
      writer.token(part.token, false);
    }
  }
  return writer.finish().ids;
}

}  // namespace mtl::chat
