// common/yaml_edit: values changed in what a person wrote.
#include "common/yaml_edit.h"

#include <doctest/doctest.h>

using namespace mtl;

namespace {

std::string edited(const std::string& text,
                   const std::vector<std::pair<std::string, std::string>>& settings) {
  Diagnostics diagnostics;
  const std::string result = set_yaml_values(text, "train.yaml", settings, diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  return result;
}

void refused(const std::string& text, const std::string& key, const std::string& value) {
  Diagnostics diagnostics;
  CHECK(set_yaml_values(text, "train.yaml", {{key, value}}, diagnostics) == text);
  REQUIRE(diagnostics.has_errors());
  CHECK(diagnostics.all().front().code == "yaml.edit");
}

}  // namespace

TEST_CASE("values are replaced and comments stay") {
  CHECK(edited("# größe\nmodel:  # the model\n  layers: 12\nparallel:\n  tp: 1   # of eight\n"
               "  pp: 2\n",
               {{"parallel.tp", "8"}, {"parallel.pp", "16"}}) ==
        "# größe\nmodel:  # the model\n  layers: 12\nparallel:\n  tp: 8   # of eight\n  pp: 16\n");
  CHECK(edited("recompute: {mode: \"none\", modules: [core_attn]}  # ä\n",
               {{"recompute.mode", "selective"}, {"recompute.modules", "[norm, mlp_act]"}}) ==
        "recompute: {mode: selective, modules: [norm, mlp_act]}  # ä\n");
}

TEST_CASE("keys and sections that are not there are added") {
  CHECK(edited("parallel:\n    # degrees\n    pp: 2\n", {{"parallel.tp", "8"}}) ==
        "parallel:\n    # degrees\n    tp: 8\n    pp: 2\n");
  CHECK(edited("parallel: {pp: 2}\n", {{"parallel.tp", "8"}}) == "parallel: {tp: 8, pp: 2}\n");
  CHECK(edited("parallel: {}\n", {{"parallel.tp", "8"}}) == "parallel: {tp: 8}\n");
  CHECK(edited("parallel:\nmodel: {layers: 2}", {{"parallel.tp", "8"}}) ==
        "parallel:\n  tp: 8\nmodel: {layers: 2}");
  CHECK(edited("model: {layers: 2}", {{"parallel.tp", "8"}, {"parallel.pp", "2"}}) ==
        "model: {layers: 2}\nparallel:\n  pp: 2\n  tp: 8\n");
  CHECK(edited("{\"model\": {\"layers\": 2}}", {{"parallel.tp", "8"}}) ==
        "{parallel: {tp: 8}, \"model\": {\"layers\": 2}}");
}

TEST_CASE("what cannot be changed safely is refused") {
  refused("parallel: 3\n", "parallel.tp", "8");
  refused("- a\n", "parallel.tp", "8");
  refused("parallel:\n  tp:\n    - 1\n", "parallel.tp", "8");
  refused("parallel:\n  tp:\n", "parallel.tp", "8");
}
