// Ready train.yaml files, of templates/recipes: small ones that run on a laptop, and the published
// sizes with their published layouts. They are part of the program.
//
// A recipe begins with a comment: what it is, `# From: ...`, `# Runs on: ...`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/plan/model_shape.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

struct RecipeFile {
  const char* name;
  const char* text;
};
// As they stand in the folder, by name.
const std::vector<RecipeFile>& recipe_files();

struct Recipe {
  std::string name;     // "llama3-8b"
  std::string text;     // the file, byte for byte
  std::string about;    // its first sentence
  std::string runs_on;  // "64 GPUs of 80 GB (pipeline 8 x data 2 x tensor 4)"
  int ranks = 1;        // the number that runs_on begins with
  ResolvedSpec resolved;
  ModelShape shape;
  bool vocab_known = true;        // false: the text decides it, and `shape` has what it usually is
  int64_t parameters = 0;         // unpadded
  int64_t active_parameters = 0;  // those that a token meets
};

// From few parameters to many. Throws Error if one of them is no train.yaml (a test sees to that).
std::vector<Recipe> recipes();
// Throws Error (Exit::usage) recipe.unknown with the nearest name.
Recipe find_recipe(const std::string& name);
bool is_recipe(const std::string& name);
// Writes its text as `to`/train.yaml, or as `to` if that ends in .yaml or .yml, and returns the
// path. Makes folders. Throws Error (Exit::environment) recipe.exists: nothing is written over.
std::filesystem::path write_recipe(const Recipe& recipe, const std::filesystem::path& to);

// The model of a train.yaml without its data: the vocabulary is data.vocab, or 256 of bytes, or, of
// characters, 65 (tiny Shakespeare's), or 0 where only the tokenizer's files would say it.
int64_t vocab_of(const TrainSpec& spec);

}  // namespace mtl
