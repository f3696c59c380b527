// The scalings of rotary positions that config.json may have: transformers' own frequencies
// (tests/reference/rope_reference.py), what comes out again, and what is refused.
#include "runtime/interchange/hf_rope.h"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/engine/rope_table.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/import.h"

using namespace mtl;
using namespace mtl::test;

namespace {

nlohmann::json config_of(const std::string& folder, const nlohmann::json& changes) {
  auto config = nlohmann::json::parse(read_file(reference_folder(folder) / "config.json"));
  config.update(changes);
  return config;
}

nlohmann::json llama_config(const nlohmann::json& changes) {
  return config_of("llama", changes);
}

HfModel read_scaled(const nlohmann::json& config, std::string& said) {
  Diagnostics diagnostics;
  HfModel model = model_from_hf_config(config, "config.json", diagnostics);
  for (const Diagnostic& d : diagnostics.all()) {
    said += (d.severity == Diagnostic::Severity::error ? "" : "warning: ") + d.what + "\n";
  }
  return model;
}

RopeScaling scaling_of(const nlohmann::json& changes) {
  std::string said;
  const HfModel model = read_scaled(llama_config(changes), said);
  CHECK(said == "");
  return model.shape.rope_scaling;
}

// Every number of `ours` within `bound` of transformers', whose arithmetic is float32.
template <class Number>
void check_numbers(const std::vector<Number>& ours, const nlohmann::json& theirs, double bound) {
  REQUIRE(ours.size() == theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<double>(ours[i]) - theirs[i].get<double>()) <= bound);
  }
}

}  // namespace

TEST_CASE("scaled rotary positions are transformers', and are written as they came") {
  const auto reference =
      nlohmann::json::parse(read_file(MTL_SOURCE_DIR "/tests/reference/rope.json"));
  const auto position = reference.at("position").get<int64_t>();
  for (const auto& one : reference.at("cases").items()) {
    const nlohmann::json& wanted = one.value();
    CAPTURE(one.key());
    std::string said;
    const nlohmann::json& fields = wanted.at("config");
    const HfModel model = read_scaled(config_of(fields.value("model_type", "llama"), fields), said);
    CHECK(said == "");
    const ModelShape& shape = model.shape;
    const int64_t longest = wanted.value("seq_len", int64_t{0});
    check_numbers(
        rope_frequencies(shape.rotary_dim(), shape.rope_base, shape.rope_scaling, longest),
        wanted.at("frequencies"), 2e-7);
    CHECK(rope_amplitude(shape.rope_scaling) ==
          doctest::Approx(wanted.at("factor").get<double>()).epsilon(1e-14));
    const std::vector<float> table = rope_table(shape, position + 1, longest);
    const auto row = table.begin() + position * shape.rotary_dim();
    const int64_t half = shape.rotary_dim() / 2;
    // An angle of 37 radians has an error of 2e-6 in float32.
    check_numbers(std::vector<float>(row, row + half), wanted.at("cos"), 1e-5);
    check_numbers(std::vector<float>(row + half, row + 2 * half), wanted.at("sin"), 1e-5);

    // Phi-3 has no amplitude of its own.
    if (shape.rope_scaling.type == RopeScalingType::longrope &&
        shape.rope_scaling.attention_factor > 0) {
      CHECK_THROWS_WITH_AS(hf_model_of(shape), doctest::Contains("scaling.attention_factor"),
                           Error);
      continue;
    }
    // Out and in again, in the dictionary of transformers 4 and in that of 5.
    nlohmann::json written = hf_config_of(model, {}, "float32");
    CHECK(to_json(read_scaled(written, said).shape) == to_json(shape));
    written["rope_parameters"] = written["rope_scaling"];
    written.erase("rope_scaling");
    const char* const original = "original_max_position_embeddings";
    if (wanted.contains("seq_len")) {
      written["rope_parameters"][original] = written[original];
      written.erase(original);
    }
    for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
      if (!written.contains(key)) continue;
      written["rope_parameters"][key] = written[key];
      written.erase(key);
    }
    CHECK(to_json(read_scaled(written, said).shape) == to_json(shape));
    CHECK(said == "");
    // What came in comes out, key for key, but for what was not said and the two scales that are
    // one number.
    for (const auto& field : fields.at("rope_scaling").items()) {
      if (field.key() == "type" || field.key().starts_with("mscale")) continue;
      CAPTURE(field.key());
      CHECK(written.at("rope_parameters").at(field.key()) == field.value());
    }
  }
}

TEST_CASE("an imported train.yaml has the scaling of the model") {
  const Scratch scratch;
  const auto imported = import_model(
      {.source = reference_folder("llama-yarn"), .out = scratch / "run", .tokenizer = {}});
  Diagnostics diagnostics;
  const ResolvedSpec resolved = load_spec(
      {.train_yaml = (scratch / "run/train.yaml").string(), .overrides = {"data.train=x"}},
      diagnostics);
  CHECK(diagnostics.all().empty());
  const RopeScaling scaling =
      rope_scaling(resolved.spec.model.position.scaling, resolved.spec.model.max_seq);
  CHECK(scaling.type == RopeScalingType::yarn);
  CHECK(to_json(scaling) == to_json(imported.shape.rope_scaling));
}

TEST_CASE("a scaling that is none, in the dictionaries of transformers 4 and 5") {
  const auto none = [](const nlohmann::json& changes) {
    return scaling_of(changes).type == RopeScalingType::none;
  };
  CHECK(none({{"rope_scaling", nullptr}}));
  CHECK(none({{"rope_scaling", nlohmann::json::object()}}));
  CHECK(none({{"rope_scaling", {{"type", "default"}}}}));
  CHECK(none({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5000.0}}}}));
  CHECK(none({{"rope_parameters", {{"rope_theta", 5000.0}, {"partial_rotary_factor", 1.0}}}}));
}

TEST_CASE("the part of a head that is rotated, in both dictionaries") {
  std::string said;
  const auto fraction = [&](const nlohmann::json& changes) {
    nlohmann::json config = config_of("stablelm", {{"rope_scaling", nullptr}});
    config.update(changes);
    return read_scaled(config, said).shape.rope_fraction;
  };
  CHECK(fraction(nlohmann::json::object()) == 0.25);
  CHECK(fraction({{"partial_rotary_factor", 0.5}}) == 0.5);
  CHECK(fraction({{"partial_rotary_factor", nullptr}}) == 0.25);  // StableLM's own default
  const nlohmann::json dictionary = {{"rope_theta", 5000.0}, {"partial_rotary_factor", 0.75}};
  CHECK(fraction({{"partial_rotary_factor", nullptr}, {"rope_parameters", dictionary}}) == 0.75);
  CHECK(fraction({{"partial_rotary_factor", 0.5}, {"rope_parameters", dictionary}}) == 0.75);
  CHECK(said == "");
  const nlohmann::json linear = {{"rope_type", "linear"}, {"factor", 2.0}};
  fraction({{"rope_scaling", linear}, {"rope_parameters", dictionary}});
  CHECK(said ==
        "config.json: 'partial_rotary_factor' is 0.75 in 'rope_parameters' and 0.25 beside "
        "'rope_scaling'\n");
  const auto refused = [&](const nlohmann::json& factor) {
    said = "";
    fraction({{"partial_rotary_factor", factor}});
    return said;
  };
  CHECK(refused(0.4) ==
        "config.json: of the 8 elements of a head 3 are rotated, which are no pairs\n");
  CHECK(refused(0.01).find(" 0 are rotated") != std::string::npos);
  CHECK(refused(0).find("has to be above 0 and at most 1") != std::string::npos);
  CHECK(refused(1.5).find("has to be above 0 and at most 1") != std::string::npos);
}

TEST_CASE("scalings that are not here or say too little are refused by name") {
  const auto refused = [](const char* field, const nlohmann::json& scaling) {
    std::string said;
    read_scaled(llama_config({{field, scaling}}), said);
    return said;
  };
  const auto yarn = [&](const nlohmann::json& changes) {
    nlohmann::json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}};
    scaling.update(changes);
    return refused("rope_scaling", scaling);
  };
  const auto has = [](const std::string& text, const char* words) {
    CAPTURE(text);
    return text.find(words) != std::string::npos && std::count(text.begin(), text.end(), '\n') == 1;
  };
  CHECK(yarn(nlohmann::json::object()) == "");
  CHECK(has(refused("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}),
            "the frequencies follow the length of each text"));
  const auto longrope = [&](const nlohmann::json& changes) {
    nlohmann::json scaling = {{"type", "longrope"},
                              {"short_factor", {1.0, 1.0, 1.0, 1.0}},
                              {"long_factor", {1.0, 2.0, 3.0, 4.0}}};
    scaling.update(changes);
    return refused("rope_scaling", scaling);
  };
  CHECK(longrope(nlohmann::json::object()) == "");
  CHECK(longrope({{"type", "su"}}) == "");
  CHECK(longrope({{"type", "yarn"}}) == "");  // Phi-3's first files
  CHECK(longrope({{"type", "su"}, {"rope_type", "longrope"}}) == "");
  CHECK(has(longrope({{"rope_type", "linear"}, {"factor", 2.0}}),
            "'rope_type' is 'linear' and its 'type' 'longrope'"));
  CHECK(
      has(refused("rope_scaling", {{"type", "default"}, {"rope_type", "linear"}, {"factor", 2.0}}),
          "'rope_type' is 'linear' and its 'type' 'default'"));
  CHECK(has(longrope({{"long_factor", {1.0, 2.0, 3.0}}}),
            "'long_factor' of 'rope_scaling' is not a list of 4 numbers above 0"));
  CHECK(has(longrope({{"short_factor", {1.0, 0.0, 1.0, 1.0}}}), "'short_factor' of"));
  CHECK(has(longrope({{"short_factor", 1.0}}), "'short_factor' of"));
  CHECK(has(longrope({{"long_factor", nullptr}}), "'long_factor' of 'rope_scaling' is missing"));
  CHECK(has(refused("rope_scaling", {{"rope_type", "mrope"}}), "scaled by 'mrope'"));
  CHECK(
      has(refused("rope_scaling", {{"type", "linear"}}), "'factor' of 'rope_scaling' is missing"));
  CHECK(has(refused("rope_scaling", {{"type", 3}}), "'type' of 'rope_scaling' is 3, not a name"));
  CHECK(has(refused("rope_scaling", 4), "'rope_scaling' is not an object"));
  CHECK(has(refused("rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}},
                                        {"sliding_attention", {{"rope_theta", 1e4}}}}),
            "layers of the kind 'full_attention' have rotary positions of their own"));
  CHECK(has(refused("rope_parameters", {{"partial_rotary_factor", 0.5}}),
            "'partial_rotary_factor' is not 1"));
  CHECK(has(refused("partial_rotary_factor", 0.5), "'partial_rotary_factor' is not 1"));
  CHECK(refused("partial_rotary_factor", 1.0) == "");
  const auto beside = [&](double theta) {
    std::string said;
    read_scaled(llama_config({{"rope_theta", nullptr},
                              {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
                              {"rope_parameters", {{"rope_theta", theta}}}}),
                said);
    return said;
  };
  CHECK(beside(10'000) == "");
  CHECK(has(beside(1e6), "'rope_theta' is 1000000 in 'rope_parameters' and 10000 beside"));
  CHECK(has(yarn({{"factor", 0.5}}), "'factor' of 'rope_scaling' is 0.5"));
  CHECK(has(yarn({{"beta_fast", 1.0}}), "'beta_slow' 1 of the scaling is not below 'beta_fast' 1"));
  CHECK(has(yarn({{"attention_factor", 0}}), "'attention_factor' of 'rope_scaling' is 0"));
  CHECK(has(yarn({{"attention_factor", -1}}), "'attention_factor' of 'rope_scaling' is -1"));
  CHECK(has(yarn({{"truncate", 1}}), "'truncate' of 'rope_scaling' is 1, not true or false"));
  CHECK(has(yarn({{"rope_theta", 1.0}}), "yarn needs a 'rope_theta' above 1"));
  CHECK(has(yarn({{"original_max_position_embeddings", 0}}),
            "'original_max_position_embeddings' of 'rope_scaling' is 0"));
  CHECK(has(yarn({{"llama_4_scaling_beta", 0.1}}),
            "warning: config.json: 'llama_4_scaling_beta' of 'rope_scaling' is not known here"));
}

TEST_CASE("an export warns of versions of transformers that take another factor of YaRN") {
  ModelShape shape;
  shape.position = PositionType::rope;
  shape.max_seq = 32768;
  shape.rope_scaling = {.type = RopeScalingType::yarn, .factor = 4, .original_max_seq = 32768};
  const auto warning = older_rotation(shape, "out/hf");
  REQUIRE(warning.has_value());
  CHECK(warning->code == "export.yarn");
  CHECK(warning->severity == Diagnostic::Severity::warning);
  CHECK(warning->what.ends_with("32768 / 32768 = 1, and not by the factor 4"));
  CHECK(warning->help.ends_with("\"max_position_embeddings\" in out/hf/config.json to 131072"));
  shape.max_seq = 131072;
  CHECK_FALSE(older_rotation(shape, "out/hf").has_value());
  shape.max_seq = 65536;
  CHECK(older_rotation(shape, "out/hf").has_value());
  shape.rope_scaling.type = RopeScalingType::llama3;
  CHECK_FALSE(older_rotation(shape, "out/hf").has_value());
  // And it is among what an export says: this one's factor is that of its positions.
  const Scratch scratch;
  const auto imported = import_model(
      {.source = reference_folder("llama-yarn"), .out = scratch / "run", .tokenizer = {}});
  const bool same = imported.shape.rope_scaling.factor *
                        static_cast<double>(imported.shape.rope_scaling.original_max_seq) ==
                    static_cast<double>(imported.shape.max_seq);
  int said = 0;
  for (const Diagnostic& one :
       export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf"}).warnings) {
    said += one.code == "export.yarn" ? 1 : 0;
  }
  CHECK(said == (same ? 0 : 1));
}
