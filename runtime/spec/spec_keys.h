// The keys of train.yaml in words, from the schema table: for manual pages and for shells that
// complete `key=value`. Texts are Markdown, as on the reference page.
#pragma once

#include <string>
#include <vector>

namespace mtl {

struct SpecKey {
  struct Value {
    std::string value;
    std::string doc;
  };
  std::string key = {};       // "train.micro_batch"
  std::string type = {};      // with its range
  std::string built_in = {};  // "required"; "" = nothing
  std::string doc = {};
  std::vector<Value> values = {};  // where they are few
  bool is_path = false;
};
// In the order of the page.
std::vector<SpecKey> described_keys();

struct SpecSection {
  std::string name;  // "train", "train.eval"
  std::string doc;
};
// Parents before children.
std::vector<SpecSection> described_sections();

}  // namespace mtl
