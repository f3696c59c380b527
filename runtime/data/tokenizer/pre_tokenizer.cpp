#include "runtime/data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <functional>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/data/tokenizer/regex.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl::tokenizer {

// Cuts or changes one piece.
class PreTokenizer::Step {
 public:
  virtual ~Step() = default;
  // Prepares for pieces of one text; then one call of apply() for each.
  virtual void apply(const std::vector<Piece>& from, Pieces& pieces) const = 0;
};

namespace {

// A stretch of a piece: a match of the pattern, or what lies between matches.
struct Stretch {
  size_t begin, end;
  bool match;
};

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// What happens to the matches of a pattern, as in Hugging Face's SplitDelimiterBehavior.
void arrange(std::vector<Stretch>& stretches, Behavior behavior) {
  std::vector<Stretch> out;
  bool previous = false;
  switch (behavior) {
    case Behavior::isolated:
      return;
    case Behavior::removed:
      std::erase_if(stretches, [](const Stretch& stretch) { return stretch.match; });
      return;
    case Behavior::contiguous:
      for (const Stretch& stretch : stretches) {
        if (!out.empty() && out.back().match == stretch.match) {
          out.back().end = stretch.end;
        } else {
          out.push_back(stretch);
        }
      }
      break;
    case Behavior::merged_with_previous:
      for (const Stretch& stretch : stretches) {
        if (stretch.match && !previous && !out.empty()) {
          out.back().end = stretch.end;
        } else {
          out.push_back(stretch);
        }
        previous = stretch.match;
      }
      break;
    case Behavior::merged_with_next:
      for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
        if (stretch->match && !previous && !out.empty()) {
          out.back().begin = stretch->begin;
        } else {
          out.push_back(*stretch);
        }
        previous = stretch->match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  stretches = std::move(out);
}

// Cuts at the matches of something.
class Cut : public PreTokenizer::Step {
 public:
  Cut(Behavior behavior, bool invert) : behavior_(behavior), invert_(invert) {}
  void apply(const std::vector<Piece>& from, Pieces& pieces) const override {
    std::vector<Stretch> stretches;
    const auto matcher = make_matcher();
    for (Piece piece : from) {
      if (piece.begins == Begins::goes_on && cuts_before(piece.text, matcher, stretches)) {
        piece.begins = Begins::behind;
      }
      cut(piece.text, matcher, stretches);
      for (const Stretch& stretch : stretches) {
        if (stretch.begin == stretch.end) continue;
        pieces.now.push_back(piece.part(stretch.begin, stretch.end));
      }
    }
  }

 protected:
  using Found = std::function<void(size_t begin, size_t end)>;
  using Matcher = std::function<void(std::string_view text, const Found& found)>;
  virtual Matcher make_matcher() const = 0;

 private:
  void cut(std::string_view text, const Matcher& matcher, std::vector<Stretch>& stretches) const {
    stretches.clear();
    size_t done = 0;
    matcher(text, [&](size_t begin, size_t end) {
      if (begin > done) stretches.push_back({done, begin, invert_});
      stretches.push_back({begin, end, !invert_});
      done = end;
    });
    if (done < text.size()) stretches.push_back({done, text.size(), invert_});
    arrange(stretches, behavior_);
  }

  // Whether the whole text would have been cut where this part of it begins. What stands there is a
  // word and the space of the next one, or a line end and a word (TextPart).
  bool cuts_before(std::string_view text, const Matcher& matcher,
                   std::vector<Stretch>& stretches) const {
    size_t seen = std::min<size_t>(text.size(), 64);
    while (seen < text.size() && (static_cast<unsigned char>(text[seen]) & 0xC0) == 0x80) ++seen;
    std::string around = text.starts_with(' ') ? "a" : "a\n";
    const size_t boundary = around.size();
    around += text.substr(0, seen);
    cut(around, matcher, stretches);
    return std::any_of(stretches.begin(), stretches.end(), [&](const Stretch& stretch) {
      return stretch.begin == boundary || stretch.end == boundary;
    });
  }

  const Behavior behavior_;
  const bool invert_;
};

class CutAtRegex : public Cut {
 public:
  CutAtRegex(Regex regex, Behavior behavior, bool invert)
      : Cut(behavior, invert), regex_(std::move(regex)) {}

 private:
  Matcher make_matcher() const override {
    return [match = std::make_shared<Regex::Match>(regex_)](std::string_view text,
                                                            const Found& found) {
      for (size_t at = 0; at <= text.size() && match->find(text, at);) {
        found(match->begin(), match->end());
        at = match->end();
        if (match->begin() < match->end()) continue;
        if (at >= text.size()) break;
        at += read_character(text.data() + at).bytes;
      }
    };
  }
  const Regex regex_;
};

class CutByScanner : public Cut {
 public:
  CutByScanner(Scanner scanner, Behavior behavior, bool invert)
      : Cut(behavior, invert), scanner_(scanner) {}

 private:
  Matcher make_matcher() const override {
    return [scanner = scanner_](std::string_view text, const Found& found) {
      for (size_t at = 0; at < text.size();) {
        const size_t end = scanner(text, at);
        found(at, end);
        at = end;
      }
    };
  }
  const Scanner scanner_;
};

class CutAtString : public Cut {
 public:
  CutAtString(std::string what, Behavior behavior, bool invert)
      : Cut(behavior, invert), what_(std::move(what)) {}

 private:
  Matcher make_matcher() const override {
    return [this](std::string_view text, const Found& found) {
      if (what_.empty()) return;
      for (size_t at = 0; (at = text.find(what_, at)) != std::string_view::npos;) {
        found(at, at + what_.size());
        at += what_.size();
      }
    };
  }
  const std::string what_;
};

// Each character of a kind is a match.
class CutAtCharacters : public Cut {
 public:
  CutAtCharacters(std::function<bool(char32_t)> kind, Behavior behavior)
      : Cut(behavior, false), kind_(std::move(kind)) {}

 private:
  Matcher make_matcher() const override {
    return [this](std::string_view text, const Found& found) {
      for (size_t at = 0; at < text.size();) {
        const Character character = read_character(text.data() + at);
        if (kind_(character.code)) found(at, at + character.bytes);
        at += character.bytes;
      }
    };
  }
  const std::function<bool(char32_t)> kind_;
};

// Words, and what is neither word nor space: \w+|[^\w\s]+.
class CutWords : public PreTokenizer::Step {
  void apply(const std::vector<Piece>& from, Pieces& pieces) const override {
    for (Piece piece : from) {
      if (piece.begins == Begins::goes_on) piece.begins = Begins::behind;  // behind a line end
      size_t begin = 0;
      int kind = 0;  // of the characters from `begin` on: 0 space, 1 word, 2 other
      for (size_t at = 0; at <= piece.text.size();) {
        Character character{0, 1};
        int next = 0;
        if (at < piece.text.size()) {
          character = read_character(piece.text.data() + at);
          next = is_word(character.code) ? 1 : is_white_space(character.code) ? 0 : 2;
        }
        if (next != kind) {
          if (kind != 0) pieces.now.push_back(piece.part(begin, at));
          begin = at;
          kind = next;
        }
        at += character.bytes;
      }
    }
  }
};

class PrefixSpace : public PreTokenizer::Step {
  void apply(const std::vector<Piece>& from, Pieces& pieces) const override {
    for (const Piece& piece : from) {
      if (piece.text.starts_with(' ') || piece.begins == Begins::goes_on) {
        pieces.now.push_back(piece);
      } else {
        std::string& text = pieces.texts.emplace_back(1, ' ');
        text += piece.text;
        pieces.now.push_back({text, piece.begins});
      }
    }
  }
};

class Metaspace : public PreTokenizer::Step {
 public:
  enum class Prepend { never, first, always };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

 private:
  void apply(const std::vector<Piece>& from, Pieces& pieces) const override {
    for (const Piece& piece : from) {
      std::string text;
      for (const char byte : piece.text) {
        if (byte == ' ') {
          text += replacement_;
        } else {
          text += byte;
        }
      }
      const bool prepends = prepend_ == Prepend::first    ? piece.begins == Begins::text
                            : prepend_ == Prepend::always ? piece.begins != Begins::goes_on
                                                          : false;
      if (prepends && !text.starts_with(replacement_)) {
        text.insert(0, replacement_);
      }
      pieces.texts.push_back(std::move(text));
      const Piece whole{pieces.texts.back(), piece.begins};
      if (!split_) {
        pieces.now.push_back(whole);
        continue;
      }
      // Each replacement begins a piece.
      for (size_t begin = 0; begin < whole.text.size();) {
        const size_t end = std::min(whole.text.find(replacement_, begin + 1), whole.text.size());
        pieces.now.push_back(whole.part(begin, end));
        begin = end;
      }
    }
  }

  const std::string replacement_;
  const Prepend prepend_;
  const bool split_;
};

Behavior behavior_of(const nlohmann::json& json, const std::string& place,
                     std::optional<Behavior> otherwise = {}) {
  if (otherwise && !optional_member(json, "behavior")) return *otherwise;
  const std::string& name = string_member(json, "behavior", place);
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  refuse(place, fmt::format("the behavior {} is unknown", shown(name)));
}

std::string one_character(const nlohmann::json& json, const char* key, const std::string& place) {
  const std::string& text = string_member(json, key, place);
  if (text.empty() || read_character(text.data()).bytes != text.size()) {
    refuse(place, fmt::format("'{}' has to be one character, not {}", key, shown(text)));
  }
  return text;
}

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json* json, const std::string& place) {
  if (json == nullptr || json->is_null()) return;
  add(*json, place, 0);
  if (steps_.size() != 1) only_scanner_ = nullptr;
}

PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::add(const nlohmann::json& json, const std::string& place, int depth) {
  const std::string& type = string_member(json, "type", place);
  if (type == "Sequence") {
    if (depth > 8) refuse(place, "sequences inside sequences, more than 8 deep");
    size_t i = 0;
    for (const nlohmann::json& step : list_member(json, "pretokenizers", place)) {
      add(step, fmt::format("{}.pretokenizers[{}]", place, i++), depth + 1);
    }
    return;
  }
  if (byte_level_) {
    refuse(place,
           fmt::format("{} stands behind ByteLevel, and would see bytes instead of "
                       "characters",
                       shown(type)),
           "put ByteLevel last");
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (bool_member(json, "add_prefix_space", place, true)) {
      steps_.push_back(std::make_unique<PrefixSpace>());
    }
    if (bool_member(json, "use_regex", place, true)) {
      only_scanner_ = scanner_of(kGpt2Pattern);
      steps_.push_back(std::make_unique<CutByScanner>(only_scanner_, Behavior::isolated, false));
    }
  } else if (type == "Split") {
    const nlohmann::json& pattern = member(json, "pattern", place);
    const Behavior behavior = behavior_of(json, place);
    const bool invert = bool_member(json, "invert", place, false);
    const std::string here = place + ".pattern";
    if (!optional_member(pattern, "Regex")) {
      steps_.push_back(
          std::make_unique<CutAtString>(string_member(pattern, "String", here), behavior, invert));
      return;
    }
    const std::string& regex = string_member(pattern, "Regex", here);
    if (const Scanner scanner = scanner_of(regex)) {
      // The matches of these tile the text: between them there is nothing.
      const bool tiles =
          (behavior == Behavior::isolated) || (behavior == Behavior::removed && invert);
      only_scanner_ = tiles ? scanner : nullptr;
      steps_.push_back(std::make_unique<CutByScanner>(scanner, behavior, invert));
    } else {
      steps_.push_back(std::make_unique<CutAtRegex>(Regex(regex, here), behavior, invert));
    }
  } else if (type == "Digits") {
    const bool each = bool_member(json, "individual_digits", place, false);
    steps_.push_back(std::make_unique<CutAtCharacters>(
        is_numeric, each ? Behavior::isolated : Behavior::contiguous));
  } else if (type == "Whitespace") {
    steps_.push_back(std::make_unique<CutWords>());
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(std::make_unique<CutAtCharacters>(is_white_space, Behavior::removed));
  } else if (type == "Punctuation") {
    steps_.push_back(std::make_unique<CutAtCharacters>(
        is_punctuation, behavior_of(json, place, Behavior::isolated)));
  } else if (type == "Metaspace") {
    auto prepend = Metaspace::Prepend::always;
    if (optional_member(json, "prepend_scheme")) {
      const std::string& scheme = string_member(json, "prepend_scheme", place);
      if (scheme == "never") {
        prepend = Metaspace::Prepend::never;
      } else if (scheme == "first") {
        prepend = Metaspace::Prepend::first;
      } else if (scheme != "always") {
        refuse(place, fmt::format("the prepend_scheme {} is unknown", shown(scheme)));
      }
    } else if (!bool_member(json, "add_prefix_space", place, true)) {
      prepend = Metaspace::Prepend::never;
    }
    steps_.push_back(std::make_unique<Metaspace>(one_character(json, "replacement", place), prepend,
                                                 bool_member(json, "split", place, true)));
  } else if (type == "CharDelimiterSplit") {
    steps_.push_back(std::make_unique<CutAtString>(one_character(json, "delimiter", place),
                                                   Behavior::removed, false));
  } else {
    refuse(place, fmt::format("the pre-tokenizer {} is not one that mtl has", shown(type)),
           "mtl has ByteLevel, Split, Sequence, Digits, Whitespace, WhitespaceSplit, Punctuation, "
           "Metaspace and CharDelimiterSplit");
  }
}

void PreTokenizer::split(const Piece& text, Pieces& pieces) const {
  pieces.texts.clear();
  pieces.now.clear();
  if (text.text.empty()) return;
  pieces.now.push_back(text);
  for (const auto& step : steps_) {
    std::swap(pieces.now, pieces.before);
    pieces.now.clear();
    step->apply(pieces.before, pieces);
  }
}

}  // namespace mtl::tokenizer
