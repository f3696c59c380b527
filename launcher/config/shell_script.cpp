#include "launcher/config/shell_script.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/text.h"
#include "launcher/config/shell_arithmetic.h"

namespace mtl {

namespace {

bool name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

using Words = std::vector<std::string>;
// What the script has assigned so far, which may be nothing; of what it decides, ${NAME} itself.
using Values = std::map<std::string, Words>;

// One reading of a script, statement by statement.
class Script {
 public:
  explicit Script(const std::string& text) : text_(text) {}

  std::vector<std::string> find() {
    std::vector<std::string> best;
    while (at_ < text_.size()) {
      std::vector<std::string> words = statement();
      const bool launches = std::any_of(words.begin(), words.end(), [](const std::string& word) {
        const std::string name = word.substr(word.rfind('/') + 1);
        return name == "torchrun" || name == "accelerate" || word == "torch.distributed.run" ||
               word == "torch.distributed.launch" || name == "pretrain_gpt.py" ||
               word.starts_with("--tensor-model-parallel");
      });
      if (launches && words.size() > best.size()) best = std::move(words);
    }
    return best;
  }

 private:
  // What the branches of a condition have changed so far.
  struct Change {
    std::optional<Words> before = {};
    bool appended = true;  // to a list, and nothing else
  };
  struct Block {
    bool is_case = false;
    std::map<std::string, Change> changes = {};
  };

  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  // Up to the end of a line, ; or & or |. An assignment is kept and gives no words.
  std::vector<std::string> statement() {
    std::vector<std::string> words;
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == '\\' && peek(1) == '\n') {
        at_ += 2;
      } else if (c == '#') {
        while (at_ < text_.size() && peek() != '\n') ++at_;
      } else if (c == '\n' || c == ';' || c == '&' || c == '|') {
        end_of_statement(words);
        if (!words.empty()) break;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '(' || c == ')') {
        // Behind a pattern of a case a statement begins.
        const bool in_case = !blocks_.empty() && blocks_.back().is_case;
        if (c == ')' && in_case && words.size() == 1) words.clear();
        ++at_;
      } else if (!redirection() && !(may_assign(words) && assignment())) {
        const size_t start = at_;
        const bool begins = std::all_of(words.begin(), words.end(), is_reserved);
        for (std::string& word : expanded()) words.push_back(std::move(word));
        if (begins && !words.empty()) keyword(words.back());
        if (at_ == start) ++at_;
      }
    }
    return words;
  }

  // Reads a separator behind these words.
  void end_of_statement(const Words& words) {
    const char c = peek();
    const std::string first = words.empty() ? "" : words.front();
    const bool both = (c == '&' || c == '|') && peek(1) == c;
    const bool test = first == "[" || first == "[[" || first == "test" || c == '|';
    tested_ = both && (tested_ || test);
    if (c == ';' && peek(1) == ';') end_of_branch();
    at_ += both ? 2 : 1;
    if (c == '\n' && !here_end_.empty()) skip_here_document();
  }

  static bool is_reserved(const std::string& word) {
    static const char* const kWords[] = {"if", "then", "else", "elif", "fi", "case",
                                         "in", "esac", "do",   "done", "{",  "}"};
    return std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
  }
  // What a word does that begins a statement.
  void keyword(const std::string& word) {
    if (word == "if" || word == "case") blocks_.push_back({.is_case = word == "case"});
    if (word == "elif" || word == "else") end_of_branch();
    if (word == "fi" || word == "esac") end_of_block();
  }
  // The next branch begins with what was there before the first.
  void end_of_branch() {
    if (blocks_.empty()) return;
    for (const auto& [name, change] : blocks_.back().changes) put_back(name, change);
  }
  // Nobody here knows which branch is taken.
  void end_of_block() {
    if (blocks_.empty()) return;
    const Block block = std::move(blocks_.back());
    blocks_.pop_back();
    for (const auto& [name, change] : block.changes) {
      put_back(name, change);
      note_change(name, change.appended);
      doubt(name, change.appended);
    }
  }
  void note_change(const std::string& name, bool appended) {
    if (blocks_.empty()) return;
    const auto found = values_.find(name);
    Change first;
    if (found != values_.end()) first.before = found->second;
    Change& change = blocks_.back().changes.try_emplace(name, std::move(first)).first->second;
    change.appended = change.appended && appended;
  }
  void put_back(const std::string& name, const Change& change) {
    values_.erase(name);
    if (change.before) values_[name] = *change.before;
  }
  // A list that may have more stays, and says so.
  void doubt(const std::string& name, bool appended) {
    if (appended) {
      values_[name].push_back(fmt::format("${{{}+=}}", name));
    } else {
      values_[name] = {fmt::format("${{{}}}", name)};
    }
  }

  void skip_here_document() {
    while (at_ < text_.size()) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string line = text_.substr(at_, end - at_);
      at_ = std::min(end + 1, text_.size());
      line.erase(0, line.find_first_not_of('\t'));
      if (line == here_end_) break;
    }
    here_end_.clear();
  }

  // 2>&1, >> log, < file, << END.
  bool redirection() {
    size_t end = at_;
    while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end])) != 0) ++end;
    if (end >= text_.size() || (text_[end] != '<' && text_[end] != '>')) return false;
    at_ = end;
    const size_t start = at_;
    while (peek() == '<' || peek() == '>') ++at_;
    const bool here = text_.compare(start, at_ - start, "<<") == 0;
    if (peek() == '&' || peek() == '|' || (here && peek() == '-')) ++at_;
    while (peek() == ' ' || peek() == '\t') ++at_;
    const Words word = expanded(true);
    if (here && !word.empty()) here_end_ = word.front();
    return true;
  }

  static bool may_assign(const std::vector<std::string>& words) {
    return std::all_of(words.begin(), words.end(), [](const std::string& word) {
      return is_reserved(word) || word == "export" || word == "local" || word == "declare" ||
             word == "readonly";
    });
  }

  bool assignment() {
    size_t end = at_;
    while (end < text_.size() && name_character(text_[end])) ++end;
    const std::string name = text_.substr(at_, end - at_);
    const bool more = end < text_.size() && text_[end] == '+';
    if (more) ++end;
    if (name.empty() || end >= text_.size() || text_[end] != '=') return false;
    at_ = end + 1;
    const bool list = peek() == '(';
    std::vector<std::string> value;
    if (list) {
      ++at_;
      while (at_ < text_.size() && peek() != ')') {
        if (peek() == '#') {
          while (at_ < text_.size() && peek() != '\n') ++at_;
        } else if (std::isspace(static_cast<unsigned char>(peek())) != 0 || peek() == '\\') {
          ++at_;
        } else {
          const size_t start = at_;
          for (std::string& word : expanded()) value.push_back(std::move(word));
          if (at_ == start) ++at_;
        }
      }
      ++at_;
    } else {
      value = expanded(true);
    }
    note_change(name, list && more);
    if (tested_) {
      doubt(name, list && more);
      return true;
    }
    if (!list && !more && value.size() == 1 && is_shell_variable(value.front())) {
      values_.erase(name);  // is not known
      return true;
    }
    std::vector<std::string>& kept = values_[name];
    if (!more || kept.empty()) {
      kept = std::move(value);
    } else if (list) {
      kept.insert(kept.end(), value.begin(), value.end());
    } else if (!value.empty()) {
      kept.front() += value.front();
    }
    return true;
  }

  // The value of $NAME, ${NAME}, ${NAME:-default}, ${NAME[@]}, $((...)); nobody knows that of
  // $(...), ${NAME%...} and what the script does not set.
  std::optional<Words> variable() {
    ++at_;
    if (peek() == '(') {
      const size_t start = at_;
      int depth = 0;
      do {
        if (peek() == '(') ++depth;
        if (peek() == ')') --depth;
        ++at_;
      } while (at_ < text_.size() && depth > 0);
      const std::string inside = text_.substr(start, at_ - start);
      if (!inside.starts_with("((") || !inside.ends_with("))")) return std::nullopt;
      const auto sum =
          shell_arithmetic(inside.substr(2, inside.size() - 4), [this](const std::string& name) {
            const auto found = values_.find(name);
            return found == values_.end() || found->second.empty() ? "" : found->second.front();
          });
      if (!sum) return std::nullopt;
      return Words{std::to_string(*sum)};
    }
    const bool braces = peek() == '{';
    if (braces) ++at_;
    std::string name;
    while (name_character(peek())) name += text_[at_++];
    if (name.empty() && !braces && peek() != '\0' && std::strchr("@*#?$!-", peek()) != nullptr)
      ++at_;
    std::string rest;
    if (braces) {
      size_t end = at_;
      for (int depth = 1; end < text_.size(); ++end) {
        if (text_[end] == '{') ++depth;
        if (text_[end] == '}' && --depth == 0) break;
      }
      rest = text_.substr(at_, end - at_);
      at_ = std::min(end + 1, text_.size());
    }
    const auto found = values_.find(name);
    const bool set = found != values_.end();
    const bool filled = set && !found->second.empty() && found->second != Words{""};
    if (rest.starts_with(":+")) {
      if (!set) return std::nullopt;
      return filled ? text_of(rest.substr(2)) : Words{};
    }
    const bool otherwise = rest.starts_with(":-") || rest.starts_with(":=");
    // The rest is a part of the value, or another: nobody computes that here.
    if (!otherwise && !rest.empty() && rest != "[@]" && rest != "[*]" && !rest.starts_with(":?")) {
      return std::nullopt;
    }
    if (otherwise && !filled) return text_of(rest.substr(2));
    return set ? std::optional<Words>(found->second) : std::nullopt;
  }

  // What stands inside of a variable's braces.
  Words text_of(const std::string& text) const {
    if (text.empty()) return {};
    if (text.find_first_of("$\"'") == std::string::npos) return {text};
    Script inner(text);
    inner.values_ = values_;
    return inner.expanded(true);
  }

  // One word of the shell, which may become several. `whole`: an assignment's value.
  std::vector<std::string> expanded(bool whole = false) {
    std::vector<std::string> words;
    std::string text;
    bool any = false;
    char quote = '\0';
    while (at_ < text_.size()) {
      const char c = peek();
      if (quote == '\0' && (std::isspace(static_cast<unsigned char>(c)) != 0 || c == ';' ||
                            c == '&' || c == '|' || c == ')' || c == '(' || c == '<' || c == '>')) {
        break;
      }
      if (c == '\\' && quote != '\'') {
        if (peek(1) == '\n') {
          if (quote == '\0') break;
          text += ' ';
        } else if (peek(1) != '\0') {
          text += peek(1);
        }
        at_ += 2;
        any = true;
      } else if ((c == '"' || c == '\'') && (quote == '\0' || quote == c)) {
        quote = quote == '\0' ? c : '\0';
        any = true;
        ++at_;
      } else if (c == '$' && quote != '\'') {
        const size_t start = at_;
        const std::optional<Words> known = variable();
        // What nobody knows stays: without it `$DATA/a` would be another path.
        Words value = known ? *known : Words{text_.substr(start, at_ - start)};
        // Outside of quotes the shell makes words of it.
        if (known && quote == '\0' && !whole && value.size() == 1) {
          value = split_at_blanks(value.front());
        }
        any |= !value.empty();
        for (size_t i = 0; i < value.size(); ++i) {
          if (i > 0) {
            words.push_back(text);
            text.clear();
          }
          text += value[i];
        }
      } else if (c == '`' && quote != '\'') {
        const size_t end = std::min(text_.find('`', at_ + 1), text_.size() - 1);
        text += text_.substr(at_, end + 1 - at_);
        at_ = end + 1;
        any = true;
      } else {
        text += c == '\n' ? ' ' : c;
        any = true;
        ++at_;
      }
    }
    if (any) words.push_back(text);
    if (whole) return words;
    // ARGS="--a 1 --b 2" and then $ARGS: the shell splits it.
    std::vector<std::string> split;
    for (const std::string& word : words) {
      if (word.find("--") == std::string::npos || word.find(' ') == std::string::npos) {
        split.push_back(word);
        continue;
      }
      for (std::string& part : split_at_blanks(word)) split.push_back(std::move(part));
    }
    return split;
  }

  // But for commands, which nobody runs here.
  static Words split_at_blanks(const std::string& text) {
    if (text.find("$(") != std::string::npos || text.find('`') != std::string::npos) return {text};
    Words parts;
    std::string part;
    for (const char c : text + " ") {
      if (c != ' ' && c != '\t') {
        part += c;
      } else if (!part.empty()) {
        parts.push_back(part);
        part.clear();
      }
    }
    return parts;
  }

  const std::string& text_;
  size_t at_ = 0;
  Values values_;
  std::vector<Block> blocks_;
  bool tested_ = false;   // behind [ ... ] && or ||
  std::string here_end_;  // of a here document that begins behind this line
};

}  // namespace

bool looks_like_command(const std::string& text) {
  if (text.starts_with("#!") && text.find("sh") < text.find('\n')) return true;
  return !command_of_script(text).empty();
}

std::vector<std::string> command_of_script(const std::string& script) {
  return Script(script).find();
}

}  // namespace mtl
