// Tokens that are looked for in the text itself, before it is cut into pieces: "added_tokens" of
// tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mtl::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // with the white space before it
  bool rstrip = false;       // with the white space behind it
  bool normalized = true;    // looked for in the normalized text
  bool special = false;
};

// Finds tokens in a text: at each place the longest, from left to right, as Aho-Corasick with
// "leftmost longest" does. Tokens are short and seldom, so it walks a trie from each byte that can
// begin one.
class AddedTokenFinder {
 public:
  // Looks for texts[i], which is what tokens[i] is in the text.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& texts);

  struct Part {
    std::string_view text;
    const AddedToken* token;  // null: ordinary text
  };
  bool empty() const { return tokens_.empty(); }
  // Appends the parts that `text` consists of, none of them empty.
  void split(std::string_view text, std::vector<Part>& parts) const;

 private:
  struct Node {
    int32_t token = -1;  // that ends here
    int32_t child = -1;  // the first
    int32_t sibling = -1;
    char byte = 0;
  };
  int32_t child_of(int32_t node, char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<int32_t, 256> first_;  // the node of each first byte; -1 = none
};

}  // namespace mtl::tokenizer
