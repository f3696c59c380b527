#include "runtime/data/tokenizer/json_fields.h"

#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl::tokenizer {

namespace {

constexpr int kMaxDepth = 64;

[[noreturn]] void wrong_type(const char* key, const std::string& place, const char* wanted) {
  refuse(place, fmt::format("'{}' has to be {}", key, wanted));
}

}  // namespace

void refuse(const std::string& place, const std::string& what, const std::string& help) {
  throw Error(Exit::data,
              Diagnostic{.code = "data.tokenizer",
                         .what = place.empty() ? what : fmt::format("{}: {}", place, what),
                         .help = help.empty() ? "see docs/how-to/tokenizers.md for what mtl reads; "
                                                "the file may also be damaged: fetch it again"
                                              : help});
}

nlohmann::json parse_json(std::string_view text, const std::string& place) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= kMaxDepth) {
        refuse(place, fmt::format("is nested deeper than {} levels", kMaxDepth));
      }
      if (event == Event::object_start) keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        refuse(place, fmt::format("has the key {} twice in one object", shown(key)));
      }
    }
    return true;
  };
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    refuse(place, fmt::format("is not valid JSON ({})", error.what()));
  }
}

const nlohmann::json& member(const nlohmann::json& object, const char* key,
                             const std::string& place) {
  if (!object.is_object()) refuse(place, "has to be an object");
  const auto found = object.find(key);
  if (found == object.end()) refuse(place, fmt::format("'{}' is missing", key));
  return *found;
}

const nlohmann::json* optional_member(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const std::string& string_member(const nlohmann::json& object, const char* key,
                                 const std::string& place) {
  const nlohmann::json& value = member(object, key, place);
  if (!value.is_string()) wrong_type(key, place, "a string");
  return value.get_ref<const std::string&>();
}

std::string string_member(const nlohmann::json& object, const char* key, const std::string& place,
                          const std::string& otherwise) {
  return optional_member(object, key) ? string_member(object, key, place) : otherwise;
}

bool bool_member(const nlohmann::json& object, const char* key, const std::string& place,
                 bool otherwise) {
  const nlohmann::json* value = optional_member(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) wrong_type(key, place, "true or false");
  return value->get<bool>();
}

int64_t size_member(const nlohmann::json& object, const char* key, const std::string& place,
                    int64_t maximum) {
  const nlohmann::json& value = member(object, key, place);
  if (!value.is_number_integer() || value < 0 || value > maximum) {
    refuse(place, fmt::format("'{}' has to be a whole number from 0 to {}", key, maximum));
  }
  return value.get<int64_t>();
}

const nlohmann::json& list_member(const nlohmann::json& object, const char* key,
                                  const std::string& place) {
  const nlohmann::json& value = member(object, key, place);
  if (!value.is_array()) wrong_type(key, place, "a list");
  return value;
}

std::string shown(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string quoted = nlohmann::json(std::string(text.substr(0, kMost)))
                           .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMost) quoted += fmt::format("... ({} bytes)", text.size());
  return quoted;
}

}  // namespace mtl::tokenizer
