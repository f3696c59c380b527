// Python pickles as data: a closed list of opcodes, and no code at all. Classes and functions that
// a pickle names become placeholders; calls of them are recorded, never made. What torch.save
// writes can be read this way: see torch_file.h. (Format: CPython's pickletools.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mtl {

class Pickle {
 public:
  using Id = uint32_t;
  enum class Kind : uint8_t {
    none,
    boolean,    // integer
    integer,    // of at most 64 bits
    real,       // number
    text,       // text
    bytes,      // text
    list,       // items
    tuple,      // items
    set,        // items
    dict,       // items: key, value, key, value ...
    global,     // text "module", items: one text, the name
    call,       // items: callable, arguments; then, when set, the state
    persistent  // items: the id
  };
  struct Value {
    Kind kind = Kind::none;
    union {
      int64_t integer = 0;
      double number;
    };
    std::string_view text;  // into the bytes that were parsed
    std::vector<Id> items;
  };

  // `bytes` outlives the pickle. Throws Error (Exit::data) import.pickle that names `file` and the
  // offset.
  Pickle(std::string_view bytes, const std::string& file);

  const Value& operator[](Id id) const { return values_[id]; }
  Id root() const { return root_; }
  // "module.name" of a global, else "".
  std::string global_name(Id id) const;
  // The value of a key that is a text; nullptr if `dict` is no dict or has no such key. Of equal
  // keys the last one, as in Python.
  const Value* find(const Value& dict, std::string_view key) const;

 private:
  friend class PickleReader;
  std::vector<Value> values_;
  Id root_ = 0;
};

}  // namespace mtl
