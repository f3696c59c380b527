#include "runtime/data/chat/jinja.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mtl::chat {

namespace {

// A text of JSON's is one of Jinja's.
std::string expression(const Piece& piece, const std::string& content, const std::string& eod) {
  switch (piece.kind) {
    case Piece::Kind::content:
      return content;
    case Piece::Kind::eod:
      return nlohmann::json(eod).dump();
    default:
      return nlohmann::json(piece.text).dump();
  }
}

// The pieces before the content only, or all.
std::string printed(const Pieces& pieces, const std::string& content, const std::string& eod,
                    bool before_content = false) {
  std::string text;
  for (const Piece& piece : pieces) {
    if (before_content && piece.kind == Piece::Kind::content) break;
    text += fmt::format("{}{}", text.empty() ? "" : " + ", expression(piece, content, eod));
  }
  return text.empty() ? text : fmt::format("{{{{- {} }}}}", text);
}

}  // namespace

std::string jinja_template(const Format& format, const std::string& eod) {
  std::string text = printed(format.begin, "", eod);
  if (format.system_before_user) text += "{%- set ns = namespace(before='') %}";
  text += "{%- for message in messages %}";
  std::string branch = "if";
  const auto add = [&](const std::string& role, const std::string& what) {
    text += fmt::format("{{%- {} message['role'] == '{}' %}}{}", branch, role, what);
    branch = "elif";
  };
  if (format.system_before_user) {
    add("system", fmt::format("{{%- set ns.before = message['content']{} + '\\n\\n' %}}",
                              format.strips_system ? " | trim" : ""));
  }
  for (const auto& [role, pieces] : format.roles) {
    const bool strips = role == "system" ? format.strips_system : format.strips;
    std::string content = strips ? "(message['content'] | trim)" : "message['content']";
    if (role == "user" && format.system_before_user) content = "ns.before + " + content;
    std::string what = printed(pieces, content, eod);
    if (role == "user" && format.system_before_user) what += "{%- set ns.before = '' %}";
    add(role, what);
  }
  text +=
      "{%- else %}{{- raise_exception('no role ' + message['role']) }}{%- endif %}{%- endfor %}";
  const std::string answer = printed(format.roles.at("assistant"), "", eod, true);
  if (!answer.empty()) text += "{%- if add_generation_prompt %}" + answer + "{%- endif %}";
  return text;
}

}  // namespace mtl::chat
