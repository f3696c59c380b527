// Every recipe is a train.yaml whose model has the published number of parameters, and which runs
// on the machines that it names.
#include "runtime/recipes.h"

#include <filesystem>
#include <map>

#include <doctest/doctest.h>

#include "runtime/plan/plan.h"
#include "support/temp_dir.h"
#include "support/text.h"

using namespace mtl;

TEST_CASE("recipes have the published numbers of parameters") {
  // Exactly, where the weights are public.
  const std::map<std::string, int64_t> exact = {
      {"gpt2-124m", 124'439'808},
      {"gpt2-355m", 354'823'168},
      {"gpt2-774m", 774'030'080},
      {"gpt2-1.5b", 1'557'611'200},
      {"llama3-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496},
      {"llama3-405b", 405'853'388'800},
      {"mixtral-8x7b", 46'702'792'704},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"gpt-oss-20b", 20'914'757'184},
      {"gpt-oss-120b", 116'829'156'672},
      {"dots-llm1", 142'774'381'696},
      {"deepseek-v2-lite", 15'706'484'224},
      {"deepseek-v2", 235'741'434'880},
      {"deepseek-v3", 671'026'419'200},
      {"pythia-1.4b", 1'414'647'808},
      {"gemma-2b", 2'506'172'416},
      {"gemma3-1b", 999'885'952},
      {"smollm3-3b", 3'075'098'624},
      {"granite3-8b", 8'170'848'256},
      {"command-r7b", 8'028'033'024},
      {"phi2", 2'779'683'840},
      {"olmo2-7b", 7'298'617'344},
      {"olmo3-7b", 7'298'011'136},
      {"olmoe-1b-7b", 6'919'161'856},
      {"phi3-mini", 3'821'079'552},
      // The model card counts the biases of the layers' norms, 2 x 24 x 2,048, not.
      {"stablelm-2-1.6b", 1'644'417'024 + 98'304}};
  for (const auto& [name, parameters] : exact) {
    CAPTURE(name);
    CHECK(find_recipe(name).parameters == parameters);
  }
  CHECK(find_recipe("mixtral-8x7b").active_parameters == 12'879'925'248);
  CHECK(find_recipe("qwen3-30b-a3b").active_parameters == 3'353'032'704);
  CHECK(find_recipe("dots-llm1").active_parameters == 14'016'588'928);
  // Megatron-Core's table rounds to billions, most of them up.
  const std::map<std::string, double> rounded = {
      {"gpt-1.7b", 1.7}, {"gpt-7.1b", 7.1}, {"gpt-16b", 16},   {"gpt-32b", 32},  {"gpt-70b", 70},
      {"gpt-119b", 119}, {"gpt-177b", 177}, {"gpt-314b", 314}, {"gpt-462b", 462}};
  for (const auto& [name, billions] : rounded) {
    CAPTURE(name);
    const double unit = billions < 10 ? 0.1 : 1;
    const double parameters = static_cast<double>(find_recipe(name).parameters) / 1e9;
    CHECK(parameters > billions - unit);
    CHECK(parameters < billions + unit / 2);
  }
  CHECK(recipes().size() >= exact.size() + rounded.size() + 4);
}

TEST_CASE("every recipe makes a plan on what it runs on and fits there") {
  int64_t before = 0;
  for (const Recipe& recipe : recipes()) {
    CAPTURE(recipe.name);
    CHECK(recipe.parameters >= before);
    before = recipe.parameters;
    CHECK(recipe.resolved.spec.run.name == recipe.name);
    CHECK(recipe.about.size() > 10);
    CHECK_FALSE(recipe.runs_on.empty());
    Diagnostics diagnostics;
    const Plan plan =
        make_plan(recipe.resolved, {.vocab = recipe.shape.vocab}, recipe.ranks, diagnostics);
    for (const Diagnostic& diagnostic : diagnostics.all()) CHECK(render(diagnostic).empty());
    if (diagnostics.has_errors()) continue;
    CHECK(plan.cost.parameters == recipe.parameters);
    if (recipe.runs_on.find("80 GB") == std::string::npos) continue;
    // With 10 % for the library's own memory, NCCL and what lies between.
    CHECK(static_cast<double>(plan.peak_bytes()) < 0.9 * 80e9);
    // What it says of the layout is what the file makes.
    for (const auto& [word, axis] :
         std::map<std::string, Axis>{{" tp ", Axis::tp}, {" dp ", Axis::dp}, {" pp ", Axis::pp}}) {
      const size_t at = recipe.runs_on.find(word);
      const int said =
          at == std::string::npos ? 1 : std::stoi(recipe.runs_on.substr(at + word.size()));
      CHECK(plan.grid.sizes()[axis] == said);
    }
  }
}

TEST_CASE("a recipe is copied and nothing is written over") {
  const test::TempDir dir;
  const Recipe recipe = find_recipe("char-shakespeare");
  const std::filesystem::path path = write_recipe(recipe, dir.path() / "new");
  CHECK(path == dir.path() / "new" / "train.yaml");
  CHECK(test::file_text(path) == recipe.text);
  for (const Recipe& other : {find_recipe("llama3-8b"), recipe}) {
    try {
      write_recipe(other, dir.path() / "new");
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.diagnostics().front().code == "recipe.exists");
      CHECK(error.exit() == Exit::environment);
    }
  }
  CHECK(std::filesystem::file_size(path) == recipe.text.size());
  CHECK(write_recipe(recipe, dir.path() / "mine.yml") == dir.path() / "mine.yml");
}

TEST_CASE("a recipe that does not exist is answered with the nearest") {
  try {
    find_recipe("llama-8b");
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.diagnostics().front().code == "recipe.unknown");
    CHECK(error.diagnostics().front().help.find("llama3-8b") != std::string::npos);
  }
}
