#include "runtime/data/tokenizer/normalizer.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utf8proc.h>
#include <vector>

#include <fmt/format.h>

#include "common/utf8.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/data/tokenizer/regex.h"
#include "runtime/data/tokenizer/unicode.h"
#include "runtime/data/tokenizer/unicode_ages.h"

namespace mtl::tokenizer {

namespace {

constexpr utf8proc_option_t operator|(utf8proc_option_t a, utf8proc_option_t b) {
  return static_cast<utf8proc_option_t>(static_cast<int>(a) | static_cast<int>(b));
}

// One of the normal forms of Unicode (UAX 15).
class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(utf8proc_option_t form) : form_(UTF8PROC_STABLE | form) {
    roles_.assign(0x30000, Role::stays);
    std::string one;
    for (char32_t code = 0x80; code < roles_.size(); ++code) {
      if (code >= 0xD800 && code <= 0xDFFF) continue;
      const utf8proc_property_t* property =
          utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
      if (property->combining_class != 0) roles_[code] = Role::mixes;
      // A jamo composes with the one before it, by arithmetic.
      if ((code >= 0x1161 && code <= 0x1175) || (code >= 0x11A8 && code <= 0x11C2)) {
        roles_[code] = Role::mixes;
      }
      if (property->decomp_seqindex == UINT16_MAX && !(code >= 0xAC00 && code <= 0xD7A3)) continue;
      one.clear();
      append_utf8(one, code);
      if (map(one, form_) != one) roles_[code] = Role::mixes;
      // What stands behind the first in a decomposition may compose with the one before it.
      const std::string parts = map(one, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
      for (size_t at = read_character(parts.data()).bytes; at < parts.size();) {
        const Character part = read_character(parts.data() + at);
        roles_[part.code] = Role::mixes;
        at += part.bytes;
      }
    }
    for (const CodeRange& range : kNotNormal) {
      for (char32_t code = range.first; code <= range.last; ++code) roles_[code] = Role::apart;
    }
  }

  bool apply(std::string& text, TextPart) const override {
    std::string out;
    size_t copied = 0, last = 0;  // `last`: where what follows may have to do with what is there
    for (size_t at = 0; at < text.size();) {
      if (static_cast<unsigned char>(text[at]) < 0x80) {
        last = at++;
        continue;
      }
      const Character character = read_character(text.data() + at);
      const Role role = role_of(character.code);
      if (role != Role::mixes) {
        last = role == Role::apart ? at + character.bytes : at;
        at += character.bytes;
        continue;
      }
      // From that one to the next one that stays.
      size_t end = at + character.bytes;
      while (end < text.size()) {
        const Character next = read_character(text.data() + end);
        if (role_of(next.code) != Role::mixes) break;
        end += next.bytes;
      }
      const size_t begin = std::max(last, copied);
      out.append(text, copied, begin - copied);
      out += map(std::string_view(text).substr(begin, end - begin), form_);
      copied = last = at = end;
    }
    if (copied == 0) return false;
    out.append(text, copied, text.size() - copied);
    text = std::move(out);
    return false;
  }

 private:
  enum class Role : uint8_t {
    stays,  // a form may begin anew here: it stays as it is, and composes with nothing before it
    mixes,
    apart,  // stays, and what follows does not compose with it either
  };
  Role role_of(char32_t code) const { return code < roles_.size() ? roles_[code] : Role::stays; }

  static std::string map(std::string_view text, utf8proc_option_t form) {
    utf8proc_uint8_t* result = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(text.size()), &result, form);
    const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
    if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
    if (size < 0) return std::string(text);  // what Unicode has not assigned stays
    return std::string(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
  }

  const utf8proc_option_t form_;
  std::vector<Role> roles_;  // by code point
};

class Lowercase : public Normalizer {
  bool apply(std::string& text, TextPart) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const Character character = read_character(text.data() + at);
      at += character.bytes;
      if (character.code == 0x130) {
        out += "i\xCC\x87";  // the one character whose small form is two (SpecialCasing.txt)
      } else {
        append_utf8(out, static_cast<char32_t>(
                             utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code))));
      }
    }
    text = std::move(out);
    return false;
  }
};

class StripAccents : public Normalizer {
  bool apply(std::string& text, TextPart) const override {
    const bool front = !text.empty() && is_mark(read_character(text.data()).code);
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const Character character = read_character(text.data() + at);
      if (!is_mark(character.code)) out.append(text, at, character.bytes);
      at += character.bytes;
    }
    text = std::move(out);
    return front;
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string& text, TextPart part) const override {
    size_t first = text.size(), behind = 0;  // of what is no space
    for (size_t at = 0; at < text.size();) {
      const Character character = read_character(text.data() + at);
      if (!is_white_space(character.code)) {
        first = std::min(first, at);
        behind = at + character.bytes;
      }
      at += character.bytes;
    }
    const bool left = left_ && part.begins, right = right_ && part.ends;
    if (behind == 0) {
      if (left || right) text.clear();
      return false;
    }
    if (right) text.resize(behind);
    if (left) text.erase(0, first);
    return left && first > 0;
  }

 private:
  const bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string what) : what_(std::move(what)) {}
  bool apply(std::string& text, TextPart part) const override {
    if (part.begins && !text.empty()) text.insert(0, what_);
    return false;
  }

 private:
  const std::string what_;
};

class ReplaceString : public Normalizer {
 public:
  ReplaceString(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  bool apply(std::string& text, TextPart) const override {
    if (from_.empty()) return false;
    const bool front = to_.empty() && text.starts_with(from_);
    std::string out;
    size_t copied = 0;
    for (size_t at; (at = text.find(from_, copied)) != std::string::npos;) {
      out.append(text, copied, at - copied);
      out += to_;
      copied = at + from_.size();
    }
    if (copied == 0) return false;
    out.append(text, copied, text.size() - copied);
    text = std::move(out);
    return front;
  }

 private:
  const std::string from_, to_;
};

class ReplaceRegex : public Normalizer {
 public:
  ReplaceRegex(Regex from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  bool apply(std::string& text, TextPart) const override {
    Regex::Match match(from_);
    std::string out;
    size_t copied = 0;
    bool front = false;
    for (size_t at = 0; match.find(text, at);) {
      front = front || (to_.empty() && match.begin() == 0 && match.end() > 0);
      out.append(text, copied, match.begin() - copied);
      out += to_;
      copied = at = match.end();
      if (match.begin() == match.end()) {
        if (at >= text.size()) break;
        at += read_character(text.data() + at).bytes;
      }
    }
    out.append(text, copied, text.size() - copied);
    text = std::move(out);
    return front;
  }

 private:
  const Regex from_;
  const std::string to_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  bool apply(std::string& text, TextPart part) const override {
    bool front = false;
    for (const auto& step : steps_) front = step->apply(text, part) || front;
    return front;
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json* json, const std::string& place) {
  if (json == nullptr || json->is_null()) return nullptr;
  const std::string& type = string_member(*json, "type", place);
  if (type == "NFC") return std::make_unique<UnicodeForm>(UTF8PROC_COMPOSE);
  if (type == "NFD") return std::make_unique<UnicodeForm>(UTF8PROC_DECOMPOSE);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Strip") {
    return std::make_unique<Strip>(bool_member(*json, "strip_left", place, true),
                                   bool_member(*json, "strip_right", place, true));
  }
  if (type == "Prepend") return std::make_unique<Prepend>(string_member(*json, "prepend", place));
  if (type == "Replace") {
    const nlohmann::json& pattern = member(*json, "pattern", place);
    const std::string& content = string_member(*json, "content", place);
    if (optional_member(pattern, "Regex")) {
      return std::make_unique<ReplaceRegex>(
          Regex(string_member(pattern, "Regex", place + ".pattern"), place + ".pattern"), content);
    }
    return std::make_unique<ReplaceString>(string_member(pattern, "String", place + ".pattern"),
                                           content);
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const nlohmann::json& step : list_member(*json, "normalizers", place)) {
      const std::string here = fmt::format("{}.normalizers[{}]", place, steps.size());
      if (step.is_null()) refuse(here, "is null");
      steps.push_back(make_normalizer(&step, here));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  refuse(place, fmt::format("the normalizer {} is not one that mtl has", shown(type)),
         "mtl has NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace and "
         "Sequence");
}

}  // namespace mtl::tokenizer
