// Strict JSON (strict_json.h) over nlohmann's parser, whose callback sees every key and its depth.
#include "runtime/checkpoint/strict_json.h"

#include <charconv>
#include <set>

#include <fmt/format.h>

namespace mtl {

namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxSize = int64_t{1} << 62;

int64_t size_value(const nlohmann::json& value, const std::string& key) {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(kMaxSize)) {
    return value.get<int64_t>();
  }
  if (value.is_number_integer() && !value.is_number_unsigned() && value.get<int64_t>() >= 0 &&
      value.get<int64_t>() <= kMaxSize) {
    return value.get<int64_t>();
  }
  throw JsonProblem(fmt::format("'{}' is not an integer in [0, 2^62]", key));
}

}  // namespace

nlohmann::json parse_strict_json(std::string_view text) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        if (depth >= kMaxDepth) {
          throw JsonProblem(fmt::format("nested deeper than {} levels", kMaxDepth));
        }
        if (event == Event::object_start) keys.emplace_back();
        break;
      case Event::object_end:
        keys.pop_back();
        break;
      case Event::key:
        if (!keys.back().insert(value.get_ref<const std::string&>()).second) {
          throw JsonProblem("duplicate key " + value.dump());
        }
        break;
      case Event::array_end:
      case Event::value:
        break;
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw JsonProblem(fmt::format("not valid JSON ({})", error.what()));
  }
}

const nlohmann::json& json_member(const nlohmann::json& object, const std::string& key) {
  if (!object.is_object()) throw JsonProblem(fmt::format("'{}' has no object around it", key));
  const auto found = object.find(key);
  if (found == object.end()) throw JsonProblem(fmt::format("'{}' is missing", key));
  return *found;
}

const std::string& json_string(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& value = json_member(object, key);
  if (!value.is_string()) throw JsonProblem(fmt::format("'{}' is not a string", key));
  return value.get_ref<const std::string&>();
}

int64_t json_size(const nlohmann::json& object, const std::string& key) {
  return size_value(json_member(object, key), key);
}

std::vector<int64_t> json_sizes(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& value = json_member(object, key);
  if (!value.is_array()) throw JsonProblem(fmt::format("'{}' is not a list", key));
  std::vector<int64_t> sizes;
  for (const nlohmann::json& item : value) sizes.push_back(size_value(item, key));
  return sizes;
}

uint64_t json_hash(const nlohmann::json& object, const std::string& key) {
  const std::string& text = json_string(object, key);
  uint64_t hash = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, hash, 16);
  if (text.size() != 16 || error != std::errc() || last != end || hash_text(hash) != text) {
    throw JsonProblem(fmt::format("'{}' is not a hash of 16 hexadecimal digits", key));
  }
  return hash;
}

std::string hash_text(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

}  // namespace mtl
