#include "runtime/data/tokenizer/added_tokens.h"

#include <algorithm>

#include "common/utf8.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl::tokenizer {

namespace {

bool word_before(std::string_view text, size_t at) {
  return at > 0 && is_word(read_character(text.data() + previous_character(text, at)).code);
}

bool word_at(std::string_view text, size_t at) {
  return at < text.size() && is_word(read_character(text.data() + at).code);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens,
                                   const std::vector<std::string>& texts)
    : tokens_(std::move(tokens)) {
  first_.fill(-1);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    int32_t node = -1;
    for (const char byte : texts[i]) {
      int32_t child = node < 0 ? first_[static_cast<unsigned char>(byte)] : child_of(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({.byte = byte});
        if (node < 0) {
          first_[static_cast<unsigned char>(byte)] = child;
        } else {
          nodes_.back().sibling = nodes_[static_cast<size_t>(node)].child;
          nodes_[static_cast<size_t>(node)].child = child;
        }
      }
      node = child;
    }
    // Of two with the same text the first one counts.
    if (node >= 0 && nodes_[static_cast<size_t>(node)].token < 0) {
      nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(i);
    }
  }
}

int32_t AddedTokenFinder::child_of(int32_t node, char byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].sibling;
  }
  return child;
}

void AddedTokenFinder::split(std::string_view text, std::vector<Part>& parts) const {
  size_t done = 0;
  const auto add = [&](size_t end, const AddedToken* token) {
    if (end > done) parts.push_back({text.substr(done, end - done), token});
    done = end;
  };
  for (size_t at = 0; at < text.size();) {
    int32_t node = first_[static_cast<unsigned char>(text[at])];
    if (node < 0) {
      ++at;
      continue;
    }
    int32_t found = -1;
    size_t begin = at, end = 0;
    for (size_t i = at + 1;; ++i) {
      if (nodes_[static_cast<size_t>(node)].token >= 0) {
        found = nodes_[static_cast<size_t>(node)].token;
        end = i;
      }
      if (i >= text.size() || (node = child_of(node, text[i])) < 0) break;
    }
    if (found < 0) {
      ++at;
      continue;
    }
    at = end;  // the search goes on behind the match, also if it does not count
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    if (token.single_word && (word_before(text, begin) || word_at(text, end))) continue;
    if (token.lstrip) {
      while (begin > done) {
        const size_t before = previous_character(text, begin);
        if (!is_white_space(read_character(text.data() + before).code)) break;
        begin = before;
      }
      begin = std::max(begin, done);
    }
    if (token.rstrip) {
      while (end < text.size()) {
        const Character next = read_character(text.data() + end);
        if (!is_white_space(next.code)) break;
        end += next.bytes;
      }
    }
    // A token that the white space of the one before it has swallowed begins behind it.
    add(std::max(begin, done), nullptr);
    add(std::max(end, done), &token);
  }
  add(text.size(), nullptr);
}

}  // namespace mtl::tokenizer
