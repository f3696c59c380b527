// Regular expressions as they stand in tokenizer.json: Oniguruma's syntax, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace mtl::tokenizer {

// The pattern for PCRE2 that means what `pattern` means to Hugging Face's engine (Oniguruma):
// \s, \S, \w, \W, \h and \b are written out, because the two differ there (PCRE2's \s has U+180E,
// its \w has no marks). Throws Error data.tokenizer for what has no counterpart.
std::string to_pcre(std::string_view pattern, const std::string& place);

class Regex {
 public:
  // Throws Error data.tokenizer; `place` is where in the file the pattern stands.
  Regex(std::string_view pattern, const std::string& place);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // The working memory of one search at a time.
  class Match {
   public:
    explicit Match(const Regex& regex);
    ~Match();
    Match(const Match&) = delete;
    Match& operator=(const Match&) = delete;
    // The first match at or after byte `from` of valid UTF-8. Throws Error data.tokenizer if the
    // search takes too long.
    bool find(std::string_view text, size_t from);
    size_t begin() const { return begin_; }
    size_t end() const { return end_; }

   private:
    struct Memory;
    const Regex& regex_;
    std::unique_ptr<Memory> memory_;
    size_t begin_ = 0, end_ = 0;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace mtl::tokenizer
