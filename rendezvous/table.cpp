// Keys and values of a store.
#include "rendezvous/table.h"

#include <charconv>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl {

const std::string* KeyTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<int64_t> KeyTable::add(const std::string& key, int64_t amount) {
  int64_t value = 0;
  if (const std::string* text = find(key)) {
    const char* end = text->data() + text->size();
    const auto parsed = std::from_chars(text->data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  }
  if (__builtin_add_overflow(value, amount, &value)) return std::nullopt;
  set(key, std::to_string(value));
  return value;
}

std::string KeyTable::compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) {
  const std::string* held = find(key);
  const std::string before = held != nullptr ? *held : std::string();
  if (before != expected) return before;
  set(key, desired);
  return desired;
}

void throw_get_timeout(const std::string& key, int64_t timeout_ms) {
  throw Error(Exit::timeout,
              {.code = "rendezvous.timeout",
               .what = fmt::format("nobody has set '{}' within {} s", key,
                                   static_cast<double>(timeout_ms) / 1000),
               .help = "another rank did not start or is stuck before this point; see its log"});
}

void throw_not_a_number(const std::string& key) {
  throw Error(Exit::run_failed,
              {.code = "rendezvous.not_a_number",
               .what = fmt::format("cannot add to '{}': it holds no integer, or the sum does not "
                                   "fit in 64 bits",
                                   key)});
}

}  // namespace mtl
