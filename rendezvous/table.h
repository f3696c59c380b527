// The keys of a store and what the operations do to them; the local store and the server share it,
// so that they cannot differ. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

namespace mtl {

class KeyTable {
 public:
  void set(const std::string& key, std::string value) { values_[key] = std::move(value); }
  // Null if absent; valid until the next change.
  const std::string* find(const std::string& key) const;
  // Nothing if the key holds no integer, or the sum leaves 64 bits (the key is unchanged).
  std::optional<int64_t> add(const std::string& key, int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);

 private:
  std::unordered_map<std::string, std::string> values_;
};

// The errors that both kinds of store report alike.
[[noreturn]] void throw_get_timeout(const std::string& key, int64_t timeout_ms);
[[noreturn]] void throw_not_a_number(const std::string& key);

}  // namespace mtl
