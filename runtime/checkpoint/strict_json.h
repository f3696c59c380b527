// JSON that comes from a disk that may be damaged or a person who may be hostile.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace mtl {

// What is wrong with it; the caller knows the file and makes an Error of it.
struct JsonProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Parses one JSON text. Throws JsonProblem for invalid JSON or UTF-8, duplicate keys (nlohmann
// keeps the last one silently) and nesting deeper than 64.
nlohmann::json parse_strict_json(std::string_view text);

// Typed access; each throws JsonProblem that names the key.
const nlohmann::json& json_member(const nlohmann::json& object, const std::string& key);
const std::string& json_string(const nlohmann::json& object, const std::string& key);
// An integer in [0, 2^62], written without fraction or exponent.
int64_t json_size(const nlohmann::json& object, const std::string& key);
std::vector<int64_t> json_sizes(const nlohmann::json& object, const std::string& key);
// 16 hexadecimal digits.
uint64_t json_hash(const nlohmann::json& object, const std::string& key);

// As stored: JSON numbers of 64 bits do not survive every reader.
std::string hash_text(uint64_t hash);

}  // namespace mtl
