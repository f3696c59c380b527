// The files that are generated from the schema table are what the table says, and the JSON Schema
// is one that validators understand.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <regex>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/spec/megatron_command.h"
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
  const auto fits = [&](const json& option) { return valid(option, value); };
  if (schema.contains("anyOf")) {
    const auto& options = schema["anyOf"];
    if (std::none_of(options.begin(), options.end(), fits)) return false;
  }
  if (schema.contains("allOf")) {
    const auto& parts = schema["allOf"];
    if (!std::all_of(parts.begin(), parts.end(), fits)) return false;
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
  if (schema.contains("type")) {
    const json types = schema["type"].is_array() ? schema["type"] : json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), [&](const json& type) { return is(type); })) {
      return false;
    }
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
    if (schema.contains("minItems") && value.size() < schema["minItems"]) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return false;
    if (schema.value("uniqueItems", false) &&
        std::set<json>(value.begin(), value.end()).size() != value.size())
      return false;
    for (const json& item : value) {
      if (schema.contains("items") && !valid(schema["items"], item)) return false;
    }
  }
  if (value.is_object()) {
    if (schema.contains("minProperties") && value.size() < schema["minProperties"]) return false;
    for (const auto& [name, child] : value.items()) {
      if (schema.contains("propertyNames") && !valid(schema["propertyNames"], name)) return false;
      if (schema.contains("properties") && schema["properties"].contains(name)) {
        if (!valid(schema["properties"][name], child)) return false;
      } else if (schema.contains("additionalProperties")) {
        const json& others = schema["additionalProperties"];
        if (others.is_boolean() ? !others.get<bool>() : !valid(others, child)) return false;
      }
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

TEST_CASE("the page of Megatron-LM's flags is what their table generates") {
  check_generated("docs/reference/from-megatron.md", megatron_reference_markdown());
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
      CHECK((node.contains("type") || node.contains("anyOf") || node.contains("enum")));
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
  CHECK(properties["precision"]["properties"]["dtype"]["enum"] ==
        json({"fp32", "bf16", "fp16", "fp8"}));
  CHECK(properties["model"]["required"] == json({"layers", "hidden", "heads"}));
  CHECK(properties["lr"]["properties"]["max"]["exclusiveMinimum"] == 0);
  CHECK(properties["parallel"]["properties"]["dp"]["default"] == "auto");
  CHECK(properties["parallel"]["properties"]["sp"]["enum"] == json({"auto", true, false}));
  CHECK(properties["parallel"]["properties"]["stage_layout"]["default"] == "uniform");
  CHECK(properties["recompute"]["properties"]["modules"]["default"] == json({"core_attn"}));
  CHECK(properties["train"]["required"] == json({"seq_len"}));
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
  CHECK_FALSE(with("parallel", "zero", 4));
  CHECK_FALSE(with("optimizer", "betas", {0.9}));
  CHECK_FALSE(with("optimizer", "betas", {0.9, 1}));
  CHECK_FALSE(with("precision", "dtype", "int8"));
  CHECK(with("precision", "dtype", "fp8"));
  CHECK(with("parallel", "sp", true));
  CHECK(with("parallel", "bucket_mb", "auto"));
  CHECK(with("parallel", "bucket_mb", 12.5));
  CHECK_FALSE(with("parallel", "bucket_mb", 0));
  CHECK(with("parallel", "stage_layout", "balanced"));
  CHECK(with("parallel", "stage_layout", {3, 4, 0}));
  CHECK_FALSE(with("parallel", "stage_layout", json::array()));
  CHECK_FALSE(with("parallel", "stage_layout", "even"));
  CHECK(with("train", "accumulate", 8));
  CHECK(with("train", "accumulate", {{"0", 8}, {"1k", 4}}));
  CHECK(with("train", "accumulate", "auto"));
  CHECK_FALSE(with("train", "accumulate", json::object()));
  CHECK_FALSE(with("train", "accumulate", {{"first", 8}}));
  CHECK_FALSE(with("train", "accumulate", {{"0", 0}}));
  CHECK(with("recompute", "modules", {"norm", "mlp"}));
  CHECK_FALSE(with("recompute", "modules", {"norm", "norm"}));
  CHECK_FALSE(with("recompute", "modules", {"attention"}));
  CHECK(with("recompute", "method", "auto"));
  CHECK_FALSE(with("model", "bias", "yes"));
  CHECK_FALSE(with("model", "dropout", 0.1));
  json shorter = good;
  shorter["train"].erase("steps");
  CHECK_FALSE(valid(schema, shorter));
  shorter["train"]["tokens"] = "1G";
  CHECK(valid(schema, shorter));
  shorter["train"].erase("global_batch");
  CHECK_FALSE(valid(schema, shorter));
  shorter["train"]["accumulate"] = 4;
  CHECK(valid(schema, shorter));
  good["model"].erase("heads");
  CHECK_FALSE(valid(schema, good));
}
