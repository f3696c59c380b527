#include "launcher/job_template.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"

namespace mtl {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr std::string_view kNameCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

// A piece of a template: text (at most a line of it), or a tag.
struct Token {
  enum class Kind { text, variable, section, inverted, close, comment };
  Kind kind = Kind::text;
  std::string text;  // a tag: its name
  Place place;
};

struct Piece {
  Token token;
  std::vector<Piece> children;  // of a section
};

Diagnostic syntax(const Place& place, std::string what, std::string help) {
  return {
      .code = "template.syntax", .what = std::move(what), .place = place, .help = std::move(help)};
}

// Counts lines and columns (in characters) while it cuts a template into tokens.
class Scanner {
 public:
  Scanner(const std::string& text, const std::string& file, Diagnostics& diagnostics)
      : text_(text), place_{file, 1, 1}, diagnostics_(diagnostics) {}

  std::vector<Token> tokens() {
    while (at_ < text_.size()) {
      const size_t open = text_.find("{{", at_);
      while (at_ < std::min(open, text_.size())) {
        const size_t newline = text_.find('\n', at_);
        text(std::min(std::min(open, text_.size()), newline == npos ? npos : newline + 1));
      }
      if (open != npos && !tag()) break;
    }
    return drop_standalone();
  }

 private:
  static constexpr size_t npos = std::string::npos;

  void advance(size_t to) {
    for (; at_ < to; ++at_) {
      const unsigned char c = static_cast<unsigned char>(text_[at_]);
      if (c == '\n') {
        ++place_.line;
        place_.column = 1;
      } else if ((c & 0xc0) != 0x80) {
        ++place_.column;
      }
    }
  }

  void text(size_t end) {
    tokens_.push_back({Token::Kind::text, text_.substr(at_, end - at_), place_});
    advance(end);
  }

  // False if the rest cannot be read.
  bool tag() {
    const bool triple = text_.compare(at_, 3, "{{{") == 0;
    const std::string_view closing = triple ? "}}}" : "}}";
    const size_t begin = at_ + closing.size();
    const size_t end = text_.find(closing, begin);
    if (end == npos) {
      diagnostics_.add(
          syntax(place_, "this tag does not end", fmt::format("close it with {}", closing)));
      return false;
    }
    std::string inside = text_.substr(begin, end - begin);
    const char sign = triple || inside.empty() ? '\0' : inside[0];
    Token::Kind kind = Token::Kind::variable;
    switch (sign) {
      case '#':
        kind = Token::Kind::section;
        break;
      case '^':
        kind = Token::Kind::inverted;
        break;
      case '/':
        kind = Token::Kind::close;
        break;
      case '!':
        kind = Token::Kind::comment;
        break;
      case '>':
      case '=':
        diagnostics_.add(
            syntax(place_,
                   sign == '>' ? "partials, as in {{>name}}, are not for job templates"
                               : "other delimiters, as in {{=<% %>=}}, are not for job templates",
                   sign == '>' ? "put its text here" : "write tags as {{name}}"));
        kind = Token::Kind::comment;
        break;
      default:
        break;
    }
    const bool signed_tag = kind != Token::Kind::variable || sign == '&';
    std::string name = signed_tag ? inside.substr(1) : inside;
    const size_t first = name.find_first_not_of(" \t");
    name = first == npos ? "" : name.substr(first, name.find_last_not_of(" \t") - first + 1);
    const bool word = !name.empty() && name.find_first_not_of(kNameCharacters) == npos &&
                      (name == "." || (name.front() != '.' && name.back() != '.'));
    if (kind != Token::Kind::comment && !word) {
      const bool long_name = name.size() > 40 || name.find('\n') != npos;
      diagnostics_.add(syntax(place_,
                              long_name ? std::string("what stands between {{ and }} is no name")
                                        : fmt::format("'{}' is no name", name),
                              "names have letters, digits, _ and -, as in {{partition}}"));
      kind = Token::Kind::comment;
    }
    tokens_.push_back({kind, name, place_});
    advance(end + closing.size());
    return true;
  }

  static bool blank(const Token& token) {
    return token.kind == Token::Kind::text &&
           token.text.find_first_not_of(" \t\r\n") == std::string::npos;
  }

  // Lines that have nothing but sections' ends and comments go with their spaces and newline.
  std::vector<Token> drop_standalone() const {
    std::vector<Token> kept;
    for (size_t begin = 0; begin < tokens_.size();) {
      size_t end = begin;
      bool standalone = true, structural = false;
      for (bool more = true; more && end < tokens_.size(); ++end) {
        const Token& token = tokens_[end];
        structural |= token.kind != Token::Kind::text;
        standalone &= token.kind != Token::Kind::variable &&
                      (token.kind != Token::Kind::text || blank(token));
        more = token.kind != Token::Kind::text || !token.text.ends_with('\n');
      }
      for (; begin < end; ++begin) {
        if (!standalone || !structural || tokens_[begin].kind != Token::Kind::text) {
          kept.push_back(tokens_[begin]);
        }
      }
    }
    return kept;
  }

  const std::string& text_;
  size_t at_ = 0;
  Place place_;
  Diagnostics& diagnostics_;
  std::vector<Token> tokens_;
};

// Sections around what is in them. `at` is behind the section's beginning.
void build(const std::vector<Token>& tokens, size_t& at, Piece& parent, bool root, int depth,
           Diagnostics& diagnostics) {
  while (at < tokens.size()) {
    const Token& token = tokens[at++];
    if (token.kind == Token::Kind::close) {
      if (!root && token.text == parent.token.text) return;
      diagnostics.add(syntax(
          token.place, fmt::format("{{{{/{}}}}} ends no section", token.text),
          root ? std::string("take it out, or begin the section above")
               : fmt::format("{{{{#{}}}}} of line {} has to end first: {{{{/{}}}}}",
                             parent.token.text, parent.token.place.line, parent.token.text)));
      continue;
    }
    if (token.kind == Token::Kind::comment) continue;
    parent.children.push_back({token, {}});
    if (token.kind != Token::Kind::section && token.kind != Token::Kind::inverted) continue;
    if (depth == kMaxDepth) {
      diagnostics.add(syntax(
          token.place, fmt::format("more than {} sections in each other", kMaxDepth), "use fewer"));
      at = tokens.size();
      return;
    }
    build(tokens, at, parent.children.back(), false, depth + 1, diagnostics);
  }
  if (root) return;
  diagnostics.add(syntax(parent.token.place,
                         fmt::format("the section {} does not end", parent.token.text),
                         fmt::format("add {{{{/{}}}}}", parent.token.text)));
}

void collect_names(const Json& value, std::set<std::string>& names) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) {
      names.insert(key);
      collect_names(inner, names);
    }
  } else if (value.is_array()) {
    for (const Json& item : value) collect_names(item, names);
  }
}

bool is_off(const Json* value) {
  if (value == nullptr || value->is_null()) return true;
  if (value->is_boolean()) return !value->get<bool>();
  if (value->is_string()) return value->get_ref<const std::string&>().empty();
  return (value->is_array() || value->is_object()) && value->empty();
}

class Renderer {
 public:
  Renderer(const Json& values, Diagnostics& diagnostics) : diagnostics_(diagnostics) {
    collect_names(values, names_);
    stack_.push_back(&values);
  }

  std::string take() { return std::move(out_); }

  void render(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      switch (piece.token.kind) {
        case Token::Kind::text:
          out_ += piece.token.text;
          break;
        case Token::Kind::variable:
          variable(piece.token);
          break;
        case Token::Kind::section:
        case Token::Kind::inverted:
          section(piece);
          break;
        default:
          break;
      }
    }
  }

 private:
  // The innermost value of that name; nullptr if there is none.
  const Json* find(const std::string& name) const {
    if (name == ".") return stack_.back();
    const std::string first = name.substr(0, name.find('.'));
    for (auto context = stack_.rbegin(); context != stack_.rend(); ++context) {
      if (!(*context)->is_object() || !(*context)->contains(first)) continue;
      const Json* value = &(*context)->at(first);
      for (size_t at = first.size(); at < name.size();) {
        const size_t end = std::min(name.find('.', at + 1), name.size());
        const std::string part = name.substr(at + 1, end - at - 1);
        if (!value->is_object() || !value->contains(part)) return nullptr;
        value = &value->at(part);
        at = end;
      }
      return value;
    }
    return nullptr;
  }

  // False if no value ever has that name, which is reported once per place.
  bool known(const Token& token) {
    if (token.text == ".") return true;
    for (size_t at = 0; at < token.text.size();) {
      const size_t end = std::min(token.text.find('.', at), token.text.size());
      const std::string part = token.text.substr(at, end - at);
      if (!names_.contains(part)) {
        const std::vector<std::string> candidates(names_.begin(), names_.end());
        const auto guess = did_you_mean(part, candidates);
        fault({.code = "template.unknown_tag",
               .what = fmt::format("there is no value '{}'", part),
               .place = token.place,
               .help = guess ? fmt::format("did you mean {}?", *guess)
                             : fmt::format("there are: {}", fmt::join(candidates, ", "))});
        return false;
      }
      at = end + 1;
    }
    return true;
  }

  // An element of a list is rendered many times; its fault is one.
  void fault(Diagnostic diagnostic) {
    const Place& place = *diagnostic.place;
    if (reported_.insert({place.line, place.column}).second) diagnostics_.add(diagnostic);
  }

  void variable(const Token& token) {
    if (!known(token)) return;
    const Json* value = find(token.text);
    if (value == nullptr || value->is_null()) {
      return fault({.code = "template.unfilled",
                    .what = fmt::format("'{}' has no value here", token.text),
                    .place = token.place,
                    .help = fmt::format("put it inside {{{{#{0}}}}} ... {{{{/{0}}}}}, which is "
                                        "left out without a value, or give one",
                                        token.text)});
    }
    if (value->is_string()) {
      out_ += value->get_ref<const std::string&>();
    } else if (value->is_array() || value->is_object()) {
      const bool list = value->is_array();
      const std::string& name = token.text;
      fault(syntax(token.place,
                   fmt::format("'{}' is {}", name, list ? "a list" : "a group of values"),
                   list ? fmt::format("write {{{{#{0}}}}} {{{{.}}}} {{{{/{0}}}}}", name)
                        : fmt::format("name one of them: {{{{{}.name}}}}", name)));
    } else {
      out_ += value->dump();
    }
  }

  void section(const Piece& piece) {
    if (!known(piece.token)) return check_names(piece.children);
    const Json* value = find(piece.token.text);
    if ((piece.token.kind == Token::Kind::inverted) != is_off(value)) {
      // What an element of an empty list would have is not known.
      const bool list = value == nullptr || value->is_null() || value->is_array();
      if (!list || piece.token.kind == Token::Kind::inverted) check_names(piece.children);
      return;
    }
    if (piece.token.kind == Token::Kind::inverted) return render(piece.children);
    const auto inside = [&](const Json& context) {
      stack_.push_back(&context);
      render(piece.children);
      stack_.pop_back();
    };
    if (!value->is_array()) return inside(*value);
    for (const Json& item : *value) inside(item);
  }

  void check_names(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      if (piece.token.kind != Token::Kind::text) known(piece.token);
      check_names(piece.children);
    }
  }

  Diagnostics& diagnostics_;
  std::set<std::string> names_;
  std::vector<const Json*> stack_;
  std::set<std::pair<int, int>> reported_;
  std::string out_;
};

}  // namespace

std::vector<std::string> job_template_names() {
  std::vector<std::string> names;
  for (const JobTemplate& built_in : built_in_job_templates()) names.push_back(built_in.name);
  return names;
}

JobTemplate load_job_template(const std::string& name, const std::string& folder) {
  const std::vector<std::string> names = job_template_names();
  if (!folder.empty()) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return {name, path.string(), read_file(path)};
    // A folder without any template is a mistake: its owner wants it to be used.
    const bool any = std::any_of(names.begin(), names.end(), [&](const std::string& known) {
      return std::filesystem::exists(std::filesystem::path(folder) / known, ignored);
    });
    if (!any) {
      throw Error(Exit::config,
                  Diagnostic{.code = "template.missing",
                             .what = fmt::format("templates_dir {} has no template", folder),
                             .help = fmt::format("it should hold one of {}, or be left out",
                                                 fmt::join(names, ", "))});
    }
  }
  for (const JobTemplate& built_in : built_in_job_templates()) {
    if (built_in.name == name) return built_in;
  }
  const auto guess = did_you_mean(name, names);
  throw Error(Exit::config,
              Diagnostic{.code = "template.missing",
                         .what = fmt::format("there is no job template '{}'", name),
                         .help = guess ? fmt::format("did you mean {}?", *guess)
                                       : fmt::format("there are: {}", fmt::join(names, ", "))});
}

std::string render_job_template(const JobTemplate& job_template, const Json& values) {
  Diagnostics diagnostics;
  const std::string file =
      job_template.path.empty() ? "templates/" + job_template.name : job_template.path;
  const std::vector<Token> tokens = Scanner(job_template.text, file, diagnostics).tokens();
  Piece root;
  size_t at = 0;
  build(tokens, at, root, true, 0, diagnostics);
  Renderer renderer(values, diagnostics);
  renderer.render(root.children);
  diagnostics.throw_if_errors();
  return renderer.take();
}

}  // namespace mtl
