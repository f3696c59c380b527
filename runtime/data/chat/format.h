// How a family of models writes a conversation down: the tokens and words around what is said. A
// format is text, one line for each role, so that a family more is a few lines of data:
//   {<|im_start|>}user\n{content}{<|im_end|>}\n
// {content} is what is said, {eod} the token that ends a document, {anything else} the added token
// of that name; {{ and }} are braces.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/yaml.h"

namespace mtl::chat {

struct Piece {
  enum class Kind { text, content, eod, token };
  Kind kind = Kind::text;
  std::string text;  // or the token's name
  bool operator==(const Piece&) const = default;
};
using Pieces = std::vector<Piece>;

struct Format {
  std::string name = {};
  Pieces begin = {};  // of a conversation
  std::map<std::string, Pieces> roles =
      {};  // each with {content} once; user and assistant are there
  // White space at both ends of what is said is left out; of what "system" says too.
  bool strips = false, strips_system = false;
  // What "system" says has no place of its own: it is put before the first words of the user, with
  // an empty line between.
  bool system_before_user = false;
};
// Its name and a hash of all else.
std::string description(const Format& format);

// The names of the formats that are known, in the order in which people see them.
std::vector<std::string> format_names();
// One of these, or a YAML file with the keys begin, system, user, assistant, tool and strips
// (templates of one's own). Throws Error (Exit::data) data.chat, which says what is wrong and
// where.
Format load_format(const std::string& name_or_file);

}  // namespace mtl::chat
