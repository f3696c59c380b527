// mtl recipes: ready train.yaml files.
#include "cli/plan/recipes.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/group.h"
#include "common/error.h"
#include "common/terminal.h"
#include "runtime/metrics/format.h"
#include "runtime/recipes.h"

namespace mtl {

namespace {

std::string parameters_of(const Recipe& recipe) {
  std::string text = compact_count(static_cast<double>(recipe.parameters));
  if (recipe.active_parameters != recipe.parameters) {
    text +=
        fmt::format(", {} active", compact_count(static_cast<double>(recipe.active_parameters)));
  }
  return text;
}

}  // namespace

int command_recipes(const Arguments& args) {
  static const std::vector<Command> kMembers = {
      {"ls", "all, with their parameters and what they run on", command_recipes_ls},
      {"show", "prints one", command_recipes_show},
      {"cp", "writes one as train.yaml, to be changed", command_recipes_cp},
  };
  return run_group("recipes",
                   "Ready train.yaml files: small ones that run on a laptop, and published sizes "
                   "with the layouts that others have run them in. They are inside mtl.",
                   kMembers, args);
}

int command_recipes_ls(const Arguments& args) {
  bool json = false;
  CommandLine line({"recipes ls [--json]"},
                   "Lists the recipes, from few parameters to many, with the machines that each is "
                   "laid out for.");
  line.flag("json", json, "one JSON document, schema mtl.recipes/1");
  if (!line.parse(args)) return 0;
  const std::vector<Recipe> all = recipes();
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Recipe& recipe : all) {
      list.push_back({{"name", recipe.name},
                      {"about", recipe.about},
                      {"parameters", recipe.parameters},
                      {"active_parameters", recipe.active_parameters},
                      {"vocab", recipe.shape.vocab},
                      {"vocab_known", recipe.vocab_known},
                      {"ranks", recipe.ranks},
                      {"runs_on", recipe.runs_on}});
    }
    fmt::print("{}\n",
               nlohmann::ordered_json{{"schema", "mtl.recipes/1"}, {"recipes", list}}.dump(2));
    return 0;
  }
  const int columns = std::max(60, terminal_columns(STDOUT_FILENO));
  fmt::print("{:<20} {:<18} {}\n", "recipe", "parameters", "runs on");
  for (const Recipe& recipe : all) {
    fmt::print("{:<20} {:<18} {}\n", recipe.name, parameters_of(recipe),
               wrap_text(recipe.runs_on, columns, 40, 40));
  }
  fmt::print(
      "\nmtl recipes show NAME says what one is and where it comes from; mtl recipes cp NAME "
      "writes it.\n");
  return 0;
}

int command_recipes_show(const Arguments& args) {
  std::string name;
  CommandLine line({"recipes show NAME"}, "Prints a recipe as it stands.");
  line.example("mtl recipes show llama3-8b", "what it is, where it comes from, every key");
  line.positional("NAME", name, "of mtl recipes ls");
  if (!line.parse(args)) return 0;
  const Recipe recipe = find_recipe(name);
  std::fwrite(recipe.text.data(), 1, recipe.text.size(), stdout);
  return 0;
}

int command_recipes_cp(const Arguments& args) {
  std::string name;
  std::vector<std::string> rest;
  CommandLine line({"recipes cp NAME [DIR | FILE.yaml]"},
                   "Writes a recipe as train.yaml in the working directory, or in DIR, or as FILE. "
                   "What is there already is never written over.");
  line.example("mtl recipes cp char-shakespeare", "./train.yaml");
  line.example("mtl recipes cp llama3-8b big", "big/train.yaml");
  line.positional("NAME", name, "of mtl recipes ls");
  line.rest("DIR", rest, "a folder, made if need be, or a name that ends in .yaml or .yml");
  if (!line.parse(args)) return 0;
  if (rest.size() > 1) {
    throw Error(Exit::usage, {.code = "usage.extra",
                              .what = fmt::format("mtl recipes cp does not take '{}'", rest[1]),
                              .help = "see: mtl recipes cp --help"});
  }
  const Recipe recipe = find_recipe(name);
  const std::filesystem::path to = write_recipe(recipe, rest.empty() ? "." : rest.front());
  fmt::print("{}\n", to.string());
  if (recipe.ranks > 1 || recipe.vocab_known) {
    fmt::print(stderr, "runs on {}; data.train is to be set\n", recipe.runs_on);
  }
  return 0;
}

}  // namespace mtl
