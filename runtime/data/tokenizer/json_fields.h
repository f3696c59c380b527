// Reading tokenizer files of strangers: strict JSON, typed members, and errors that name the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace mtl::tokenizer {

// Throws Error data.tokenizer (Exit::data): "`place`: `what`".
[[noreturn]] void refuse(const std::string& place, const std::string& what,
                         const std::string& help = "");

// One JSON text. Invalid JSON or UTF-8, duplicate keys and nesting deeper than 64 are refused;
// `place` is the file.
nlohmann::json parse_json(std::string_view text, const std::string& place);

// Members of an object; `place` is the object's: "pre_tokenizer.pretokenizers[1]".
const nlohmann::json& member(const nlohmann::json& object, const char* key,
                             const std::string& place);
// Null for a member that is null or absent.
const nlohmann::json* optional_member(const nlohmann::json& object, const char* key);
const std::string& string_member(const nlohmann::json& object, const char* key,
                                 const std::string& place);
std::string string_member(const nlohmann::json& object, const char* key, const std::string& place,
                          const std::string& otherwise);
bool bool_member(const nlohmann::json& object, const char* key, const std::string& place,
                 bool otherwise);
// In [0, maximum].
int64_t size_member(const nlohmann::json& object, const char* key, const std::string& place,
                    int64_t maximum);
const nlohmann::json& list_member(const nlohmann::json& object, const char* key,
                                  const std::string& place);

// As it is shown in messages.
std::string shown(std::string_view text);

}  // namespace mtl::tokenizer
