#include "launcher/config_import.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "launcher/shell_arithmetic.h"

namespace mtl {

namespace {

// Megatron-LM's names, and what they are here.
struct MegatronName {
  const char* theirs;
  const char* flag;
  const char* value = "";  // of a flag without one
};
constexpr MegatronName kMegatron[] = {
    {"tensor_model_parallel_size", "megatron_lm_tp_degree"},
    {"pipeline_model_parallel_size", "megatron_lm_pp_degree"},
    {"context_parallel_size", "megatron_lm_context_parallel_size"},
    {"expert_model_parallel_size", "megatron_lm_expert_model_parallel_size"},
    {"expert_tensor_parallel_size", "megatron_lm_expert_tensor_parallel_size"},
    {"sequence_parallel", "megatron_lm_sequence_parallelism", "true"},
    {"use_distributed_optimizer", "megatron_lm_use_distributed_optimizer", "true"},
    {"recompute_activations", "megatron_lm_recompute_activations", "true"},
    {"recompute_granularity", "megatron_lm_recompute_granularity"},
    {"recompute_method", "megatron_lm_recompute_method"},
    {"recompute_num_layers", "megatron_lm_recompute_num_layers"},
    {"clip_grad", "megatron_lm_gradient_clipping"},
    {"bf16", "mixed_precision", "bf16"},
    {"fp16", "mixed_precision", "fp16"},
};

bool name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

using Words = std::vector<std::string>;
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
        ++at_;
        if (!words.empty()) break;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '(' || c == ')') {
        ++at_;
      } else if (!redirection() && !(may_assign(words) && assignment())) {
        const size_t start = at_;
        for (std::string& word : expanded()) words.push_back(std::move(word));
        if (at_ == start) ++at_;
      }
    }
    return words;
  }

  // 2>&1, >> log, < file.
  bool redirection() {
    size_t end = at_;
    while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end])) != 0) ++end;
    if (end >= text_.size() || (text_[end] != '<' && text_[end] != '>')) return false;
    at_ = end;
    while (peek() == '<' || peek() == '>') ++at_;
    if (peek() == '&' || peek() == '|') ++at_;
    while (peek() == ' ' || peek() == '\t') ++at_;
    expanded(true);
    return true;
  }

  static bool may_assign(const std::vector<std::string>& words) {
    return words.empty() || words.front() == "export" || words.front() == "local" ||
           words.front() == "declare" || words.front() == "readonly";
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

  // The value of $NAME, ${NAME}, ${NAME:-default}, ${NAME[@]}, $((...)); $(...) is no word, nor is
  // ${NAME%...}.
  std::vector<std::string> variable() {
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
      if (!inside.starts_with("((") || !inside.ends_with("))")) return {};  // a command's output
      const auto sum =
          shell_arithmetic(inside.substr(2, inside.size() - 4), [this](const std::string& name) {
            const auto found = values_.find(name);
            return found == values_.end() || found->second.empty() ? "" : found->second.front();
          });
      if (!sum) return {};
      return {std::to_string(*sum)};
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
    const bool known = found != values_.end() && !found->second.empty();
    if (rest.starts_with(":+")) return known ? text_of(rest.substr(2)) : Words{};
    const bool otherwise = rest.starts_with(":-") || rest.starts_with(":=");
    // The rest is a part of the value, or another: nobody computes that here.
    if (!otherwise && !rest.empty() && rest != "[@]" && rest != "[*]" && !rest.starts_with(":?")) {
      return {};
    }
    if (known) return found->second;
    return otherwise ? text_of(rest.substr(2)) : Words{};
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
        const std::vector<std::string> value = variable();
        // A variable that the script does not set stays: without it `$DATA/a` would be another
        // path. Alone it is no word.
        if (value.empty()) text += text_.substr(start, at_ - start);
        for (size_t i = 0; i < value.size(); ++i) {
          if (i > 0) {
            words.push_back(text);
            text.clear();
          }
          text += value[i];
          any = true;
        }
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
      std::string part;
      for (const char c : word + " ") {
        if (c != ' ' && c != '\t') {
          part += c;
        } else if (!part.empty()) {
          split.push_back(part);
          part.clear();
        }
      }
    }
    return split;
  }

  const std::string& text_;
  size_t at_ = 0;
  Values values_;
};

std::string underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace

bool looks_like_command(const std::string& text) {
  if (text.starts_with("#!") && text.find("sh") < text.find('\n')) return true;
  return !command_of_script(text).empty();
}

std::vector<std::string> command_of_script(const std::string& script) {
  return Script(script).find();
}

ImportedCommand import_command(const std::vector<std::string>& words, Diagnostics& diagnostics) {
  ImportedCommand imported;
  const auto fail = [&](const std::string& what, const std::string& help) {
    diagnostics.add({.code = "config.import", .what = what, .help = help});
  };
  if (words.empty()) {
    fail("no command of torchrun, accelerate launch or Megatron-LM is in it",
         "give the command itself: mtl config import -- torchrun --nproc_per_node 8 ...");
    return imported;
  }
  const auto set = [&](const std::string& name, const std::string& value,
                       const std::string& origin) {
    const LaunchFlag* flag = find_launch_flag(name);
    if (flag == nullptr) return;
    if (value.empty() || value.find('$') != std::string::npos) {
      diagnostics.add({.code = "config.import",
                       .what = fmt::format("{} is left out: the script does not say what {} is",
                                           origin, value.empty() ? "it" : value),
                       .help = "give the file its value: mtl config set",
                       .severity = Diagnostic::Severity::warning});
      return;
    }
    if (const auto wanted = flag_value_wanted(*flag, value)) {
      fail(fmt::format("{} wants {}, got '{}'", origin, *wanted, value),
           "a value that the script computes can be given as a flag: mtl config --no-input");
      return;
    }
    FlagValue& target = imported.flags[flag->name];
    target.origin = origin;
    if (flag->kind != FlagKind::list) target.texts.clear();
    target.texts.push_back(value);
  };
  const auto value_of = [&](size_t& i, const std::string& inline_value) {
    if (!inline_value.empty()) return inline_value;
    // A variable that is not known was no word.
    if (i + 1 < words.size() && !words[i + 1].starts_with("--")) return words[++i];
    return std::string();
  };
  bool in_program = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with("--")) {
      if (word.ends_with(".py") || word.ends_with(".yaml")) in_program = true;
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = underscores(word.substr(2, equals - 2));
    const std::string inline_value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const std::string origin = word.substr(0, equals);
    const auto megatron = std::find_if(std::begin(kMegatron), std::end(kMegatron),
                                       [&](const MegatronName& row) { return name == row.theirs; });
    if (megatron != std::end(kMegatron)) {
      const bool has_value = *megatron->value == '\0';
      set(megatron->flag, has_value ? value_of(i, inline_value) : megatron->value, origin);
      continue;
    }
    const LaunchFlag* flag = in_program ? nullptr : find_launch_flag(name);
    if (flag == nullptr) {
      imported.left.push_back(word);
      const bool value_follows =
          equals == std::string::npos && i + 1 < words.size() && !words[i + 1].starts_with("--");
      if (value_follows && in_program) ++i;
      continue;
    }
    if (flag->file_key == "-") {
      if (flag->kind != FlagKind::truth) value_of(i, inline_value);
      continue;
    }
    if (flag->kind == FlagKind::truth) {
      set(flag->name, inline_value.empty() ? "true" : inline_value, origin);
    } else {
      set(flag->name, value_of(i, inline_value), origin);
    }
  }
  // torchrun starts nothing on GPUs itself; the program does.
  set("cpu", "false", "");
  if (imported.flags.size() == 1) {
    fail("the command says nothing of where to run", "mtl config asks");
  }
  return imported;
}

}  // namespace mtl
