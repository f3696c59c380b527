// The files that are generated from the schema table are what the table says, and the JSON Schema
// is one that validators understand.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <regex>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/spec/schema.h"
#include "runtime/spec/train_spec.h"

using namespace mtl;
using nlohmann::json;

namespace {

void check_generated(const std::string& name, const std::string& generated) {
  const std::filesystem::path path = std::filesystem::path(MTL_SOURCE_DIR) / name;
  if (const char* update = std::getenv("MTL_UPDATE_DOCS"); update && std::string(update) == "1") {
    make_directories(path.parent_path());
    write_file_atomic(path, generated);
  }
  const std::string present = std::filesystem::exists(path) ? read_file(path) : "";
  INFO(
      name << " differs from the schema table; regenerate it: MTL_UPDATE_DOCS=1 test_runtime_spec");
  CHECK((present == generated));
}

// The part of draft-07 that the schema uses; enough to check documents against it.
bool valid(const json& schema, const json& value) {
  if (schema.contains("anyOf")) {
    const auto& options = schema["anyOf"];
    return std::any_of(options.begin(), options.end(),
                       [&](const json& option) { return valid(option, value); });
  }
  const auto is = [&](const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "number") return value.is_number();
    REQUIRE(type == "integer");
    return value.is_number() && value.get<double>() == static_cast<double>(value.get<int64_t>());
  };
  if (schema["type"].is_array()) {
    const auto& types = schema["type"];
    if (std::none_of(types.begin(), types.end(), [&](const json& type) { return is(type); })) {
      return false;
    }
  } else if (!is(schema["type"])) {
    return false;
  }
  if (schema.contains("enum")) {
    const auto& values = schema["enum"];
    if (std::find(values.begin(), values.end(), value) == values.end()) return false;
  }
  if (value.is_number()) {
    const double number = value.get<double>();
    if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && number > schema["maximum"].get<double>()) return false;
    if (schema.contains("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>())
      return false;
    if (schema.contains("exclusiveMaximum") && number >= schema["exclusiveMaximum"].get<double>())
      return false;
  }
  if (value.is_string() && schema.contains("pattern") &&
      !std::regex_search(value.get<std::string>(),
                         std::regex(schema["pattern"].get<std::string>())))
    return false;
  if (value.is_array()) {
    if (value.size() < schema["minItems"] || value.size() > schema["maxItems"]) return false;
    for (const json& item : value) {
      if (!valid(schema["items"], item)) return false;
    }
  }
  if (value.is_object()) {
    for (const auto& [name, child] : value.items()) {
      if (!schema["properties"].contains(name)) return false;
      if (!valid(schema["properties"][name], child)) return false;
    }
    for (const json& name : schema.value("required", json::array())) {
      if (!value.contains(name)) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("the reference page is what the table generates") {
  check_generated("docs/reference/train-yaml.md", spec_reference_markdown());
}

TEST_CASE("the JSON Schema is what the table generates") {
  check_generated("templates/train.schema.json", spec_json_schema());
}

TEST_CASE("the reference page has every key once") {
  const std::string page = spec_reference_markdown();
  for (const std::string& key : spec_keys()) {
    CAPTURE(key);
    const std::string cell = "\n| `" + key + "` |";
    const size_t first = page.find(cell);
    CHECK(first != std::string::npos);
    CHECK(page.find(cell, first + 1) == std::string::npos);
  }
}

TEST_CASE("the JSON Schema is draft-07, closed, and complete") {
  const json schema = json::parse(spec_json_schema());
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  size_t leaves = 0;
  const std::function<void(const json&, const std::string&)> walk = [&](const json& node,
                                                                        const std::string& path) {
    CAPTURE(path);
    if (!node.contains("properties")) {
      ++leaves;
      CHECK(spec::find_row(path) != nullptr);
      CHECK(node.contains("description"));
      CHECK((node.contains("type") || node.contains("anyOf")));
      return;
    }
    CHECK(node["type"] == "object");
    CHECK(node["additionalProperties"] == false);
    for (const auto& [name, child] : node["properties"].items()) {
      walk(child, path.empty() ? name : path + "." + name);
    }
  };
  walk(schema, "");
  CHECK(leaves == spec_keys().size());
  CHECK(schema["required"] == json({"model", "train", "data"}));
  const json& properties = schema["properties"];
  CHECK(properties["precision"]["properties"]["dtype"]["enum"] == json({"fp32", "bf16"}));
  CHECK(properties["model"]["required"] == json({"layers", "hidden", "heads"}));
  CHECK(properties["lr"]["properties"]["max"]["exclusiveMinimum"] == 0);
  CHECK(properties["parallel"]["properties"]["dp"]["default"] == "auto");
}

TEST_CASE("the JSON Schema accepts what the reader accepts") {
  const json schema = json::parse(spec_json_schema());
  json good = {{"model", {{"layers", 2}, {"hidden", 64}, {"heads", 4}}},
               {"train", {{"global_batch", 8}, {"seq_len", 32}, {"steps", 1e9}}},
               {"data", {{"train", "input.txt"}}}};
  CHECK(valid(schema, good));
  const auto with = [&](const char* section, const char* key, const json& value) {
    json changed = good;
    changed[section][key] = value;
    return valid(schema, changed);
  };
  CHECK(with("train", "steps", "1_000"));
  CHECK(with("train", "steps", "1.5k"));
  CHECK(with("parallel", "dp", "auto"));
  CHECK(with("parallel", "dp", 4));
  CHECK(with("run", "name", 7));
  CHECK(with("optimizer", "betas", {0.9, 0.95}));
  CHECK(with("model", "norm", {{"type", "layernorm"}, {"eps", 1e-6}}));
  CHECK_FALSE(with("train", "steps", 0));
  CHECK_FALSE(with("train", "steps", 1.5));
  CHECK_FALSE(with("train", "seq_len", "4k"));
  CHECK_FALSE(with("parallel", "tp", "auto"));
  CHECK_FALSE(with("parallel", "zero", 1));
  CHECK_FALSE(with("optimizer", "betas", {0.9}));
  CHECK_FALSE(with("optimizer", "betas", {0.9, 1}));
  CHECK_FALSE(with("precision", "dtype", "fp16"));
  CHECK_FALSE(with("model", "bias", "yes"));
  CHECK_FALSE(with("model", "dropout", 0.1));
  good["model"].erase("heads");
  CHECK_FALSE(valid(schema, good));
}
