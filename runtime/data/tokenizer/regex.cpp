#include "runtime/data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include "runtime/data/tokenizer/json_fields.h"

namespace mtl::tokenizer {

namespace {

constexpr size_t kMaxPattern = 20'000;
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapKilobytes = 64 * 1024;
constexpr size_t kJitStack = size_t{4} << 20;

// The insides of classes: White_Space and its complement, Oniguruma's \w and \h.
constexpr const char* kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr const char* kNotSpaces =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-"
    "\\x{10ffff}";
// Letters, marks and numbers of most kinds, by Oniguruma 6.9.8's own tables. It has one for
// classes, and another for single characters below U+0100: there the superscripts 1 to 3 and the
// fractions of Latin-1 are word characters too.
constexpr const char* kWordInClass =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
constexpr const char* kWordMore = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr const char* kHex = "0-9a-fA-F";

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& place)
      : pattern_(pattern), place_(place) {}

  std::string run() {
    for (size_t at = 0; at < pattern_.size();) {
      const char c = pattern_[at];
      if (c == '\\') {
        at = escape(at);
      } else {
        if (depth_ == 0 && c == '{') check_interval(at);
        if (c == '[') {
          if (depth_ > 0) no("a class inside a class");
          ++depth_;
          out_ += c;
          ++at;
          if (at < pattern_.size() && pattern_[at] == '^') out_ += pattern_[at++];
          if (at < pattern_.size() && pattern_[at] == ']') no("']' as the first of a class");
          continue;
        } else if (c == ']' && depth_ > 0) {
          --depth_;
        } else if (depth_ > 0 && pattern_.substr(at, 2) == "&&") {
          no("'&&' in a class");
        } else if (depth_ == 0 && pattern_.substr(at, 2) == "(?") {
          check_group(at);
        } else if (depth_ == 0 && pattern_.substr(at, 2) == "(*") {
          no("'(*'");  // verbs of PCRE2 would change its limits
        }
        out_ += c;
        ++at;
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void no(const std::string& what) const {
    refuse(place_,
           fmt::format("the pattern {} has {}, which mtl cannot run as Hugging Face's engine does",
                       shown(pattern_), what),
           "write the pattern without it, or report the tokenizer");
  }

  size_t escape(size_t at) {
    if (at + 1 >= pattern_.size()) no("a backslash at its end");
    const char c = pattern_[at + 1];
    const bool in_class = depth_ > 0;
    const std::string word = std::string(kWordInClass) + (in_class ? "" : kWordMore);
    const auto put_class = [&](std::string_view inside, bool negated) {
      if (in_class && negated) no(fmt::format("'\\{}' in a class", c));
      out_ += in_class ? std::string(inside) : fmt::format("[{}{}]", negated ? "^" : "", inside);
    };
    switch (c) {
      case 's':
        put_class(kSpaces, false);
        break;
      case 'S':
        put_class(kNotSpaces, false);
        break;
      case 'w':
      case 'W':
        put_class(word, c == 'W');
        break;
      case 'h':
      case 'H':
        put_class(kHex, c == 'H');
        break;
      case 'b':
        if (in_class) {
          out_ += "\\x{8}";
        } else {
          out_ += fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", word);
        }
        break;
      case 'B':
        if (in_class) no("'\\B' in a class");
        out_ += fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", word);
        break;
      case 'p':
      case 'P':
        return property(at);
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'v':
      case 'x':
      case 'A':
      case 'z':
      case 'Z':
        if (c == 'v') {
          out_ += "\\x{b}";  // to Oniguruma the vertical tab, to PCRE2 all vertical spaces
        } else {
          out_ += '\\';
          out_ += c;
        }
        break;
      case 'u':  // \uHHHH
        if (at + 6 > pattern_.size()) no("an unfinished '\\u'");
        out_ += fmt::format("\\x{{{}}}", pattern_.substr(at + 2, 4));
        return at + 6;
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
          no(fmt::format("'\\{}'", c));
        }
        out_ += '\\';
        out_ += c;
    }
    return at + 2;
  }

  // \p{Han} is the script to Oniguruma, and its extensions too to PCRE2.
  size_t property(size_t at) {
    const size_t end = pattern_.find('}', at);
    if (at + 2 >= pattern_.size() || pattern_[at + 2] != '{' || end == std::string_view::npos) {
      no(fmt::format("'{}' without braces", pattern_.substr(at, 2)));
    }
    std::string_view name = pattern_.substr(at + 3, end - at - 3);
    out_ += pattern_.substr(at, 3);
    if (name.starts_with('^')) {
      out_ += '^';
      name.remove_prefix(1);
    }
    if (name.find_first_of(":=^") != std::string_view::npos) no(fmt::format("'{}'", name));
    if (name.size() > 2) out_ += "sc:";
    out_ += name;
    out_ += '}';
    return end + 1;
  }

  // {n,m}+ is a possessive interval to PCRE2, and a repeated interval to Oniguruma.
  void check_interval(size_t at) const {
    const size_t end = pattern_.find('}', at);
    if (end != std::string_view::npos && end + 1 < pattern_.size() && pattern_[end + 1] == '+' &&
        pattern_.substr(at + 1, end - at - 1).find_first_not_of("0123456789,") ==
            std::string_view::npos) {
      no("'+' behind '}'");
    }
  }

  // Lookaround, plain and atomic groups, and (?i:...); (?m) is another thing to each engine.
  void check_group(size_t at) const {
    static constexpr std::string_view kKnown[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)"};
    for (const std::string_view known : kKnown) {
      if (pattern_.substr(at, known.size()) == known) return;
    }
    no(fmt::format("'{}'", pattern_.substr(at, 4)));
  }

  const std::string_view pattern_;
  const std::string& place_;
  std::string out_;
  int depth_ = 0;  // 1 inside a class
};

}  // namespace

std::string to_pcre(std::string_view pattern, const std::string& place) {
  return Translator(pattern, place).run();
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string pattern, place;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, const std::string& place) : code_(new Code) {
  if (pattern.size() > kMaxPattern) {
    refuse(place,
           fmt::format("the pattern has {} bytes, more than {}", pattern.size(), kMaxPattern));
  }
  code_->pattern = pattern;
  code_->place = place;
  const std::string translated = to_pcre(pattern, place);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // To Oniguruma ^ and $ are always those of lines, and a line ends with \n.
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, nullptr);
  if (code_->code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    refuse(place, fmt::format("the pattern {} is not a regular expression: {}", shown(pattern),
                              reinterpret_cast<const char*>(message)));
  }
  // Where there is no JIT the interpreter runs it, only slower.
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct Regex::Match::Memory {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~Memory() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Match::Match(const Regex& regex) : regex_(regex), memory_(new Memory) {
  memory_->data = pcre2_match_data_create(1, nullptr);
  memory_->context = pcre2_match_context_create(nullptr);
  memory_->stack = pcre2_jit_stack_create(32 * 1024, kJitStack, nullptr);
  if (!memory_->data || !memory_->context) throw std::bad_alloc();
  pcre2_set_match_limit(memory_->context, kMatchLimit);
  pcre2_set_heap_limit(memory_->context, kHeapKilobytes);
  if (memory_->stack) pcre2_jit_stack_assign(memory_->context, nullptr, memory_->stack);
}

Regex::Match::~Match() = default;

bool Regex::Match::find(std::string_view text, size_t from) {
  if (from > text.size()) return false;
  const int found =
      pcre2_match(regex_.code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                  PCRE2_NO_UTF_CHECK, memory_->data, memory_->context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(found, message, sizeof message);
    refuse(regex_.code_->place,
           fmt::format("the pattern {} gave up on a text of {} bytes: {}",
                       shown(regex_.code_->pattern), text.size(),
                       reinterpret_cast<const char*>(message)),
           "its search explodes: use a pattern without nested repetition");
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(memory_->data);
  begin_ = bounds[0];
  end_ = bounds[1];
  return true;
}

}  // namespace mtl::tokenizer
