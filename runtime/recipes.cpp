#include "runtime/recipes.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "common/shell_word.h"
#include "runtime/plan/cost.h"
#include "runtime/plan/shard_table.h"
#include "runtime/spec/load_text.h"

namespace mtl {

namespace {

// The comment above the first key, as one paragraph per field.
std::string head_of(std::string_view text) {
  std::string head;
  while (text.starts_with('#')) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.starts_with("# From: ") || line.starts_with("# Runs on: ")) head += '\n';
    head += std::string(line.substr(std::min<size_t>(2, line.size()))) + ' ';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return head;
}

std::string field_of(const std::string& head, const std::string& name) {
  const size_t at = head.find('\n' + name);
  if (at == std::string::npos) return {};
  const size_t begin = at + 1 + name.size();
  std::string value = head.substr(begin, head.find('\n', begin) - begin);
  while (value.ends_with(' ')) value.pop_back();
  return value;
}

// Up to the first full stop or colon that ends something.
std::string first_sentence(const std::string& head) {
  for (size_t i = 0; i + 1 < head.size(); ++i) {
    if ((head[i] == '.' || head[i] == ':') && head[i + 1] == ' ') return head.substr(0, i);
    if (head[i] == '\n') return head.substr(0, i);
  }
  return head;
}

Recipe read_recipe(const RecipeFile& file) {
  Recipe recipe;
  recipe.name = file.name;
  recipe.text = file.text;
  const std::string head = head_of(recipe.text);
  recipe.about = first_sentence(head);
  recipe.runs_on = field_of(head, "Runs on: ");
  recipe.ranks = std::max(1, std::atoi(recipe.runs_on.c_str()));
  Diagnostics diagnostics;
  recipe.resolved = load_spec_text(recipe.text, recipe.name + ".yaml", diagnostics);
  const TrainSpec& spec = recipe.resolved.spec;
  diagnostics.throw_if_errors();
  recipe.vocab_known = spec.data.vocab > 0;
  recipe.shape = model_shape(spec, vocab_of(spec));
  const Cost facts = cost(recipe.shape, shard_table(recipe.shape, false), spec.train.seq_len);
  recipe.parameters = facts.parameters;
  recipe.active_parameters = facts.active_parameters;
  return recipe;
}

const RecipeFile* find_file(const std::string& name) {
  const std::vector<RecipeFile>& files = recipe_files();
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const RecipeFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

}  // namespace

std::filesystem::path write_recipe(const Recipe& recipe, const std::filesystem::path& to) {
  const bool is_file = to.extension() == ".yaml" || to.extension() == ".yml";
  const std::filesystem::path path = is_file ? to : to / "train.yaml";
  if (!path.parent_path().empty()) make_directories(path.parent_path());
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) {
    if (errno == EEXIST) {
      throw Error(
          Exit::environment,
          {.code = "recipe.exists",
           .what = fmt::format("{} is there already", path.string()),
           .help = fmt::format(
               "give another name: mtl recipes cp {} {}", recipe.name,
               shell_word(
                   (path.parent_path() / (recipe.name + ".yaml")).lexically_normal().string()))});
    }
    throw Error(Exit::environment,
                {.code = "file.write",
                 .what = fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)),
                 .help = "give a folder that is yours"});
  }
  std::string_view rest = recipe.text;
  while (!rest.empty()) {
    const ssize_t written = write(file.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = errno;
      std::filesystem::remove(path);
      throw Error(Exit::environment,
                  {.code = "file.write",
                   .what = fmt::format("cannot write {}: {}", path.string(), std::strerror(error)),
                   .help = "free space, or give another folder"});
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return path;
}

int64_t vocab_of(const TrainSpec& spec) {
  const TrainSpec::Data& data = spec.data;
  if (data.vocab > 0) return data.vocab;
  if (data.tokenizer.type == "chars") return 65;
  if (data.tokenizer.type == "bytes") return 256;
  if (data.tokenizer.type == "gpt2-bpe") return 50257;
  return 0;
}

std::vector<Recipe> recipes() {
  std::vector<Recipe> all;
  for (const RecipeFile& file : recipe_files()) all.push_back(read_recipe(file));
  std::stable_sort(all.begin(), all.end(),
                   [](const Recipe& a, const Recipe& b) { return a.parameters < b.parameters; });
  return all;
}

bool is_recipe(const std::string& name) {
  return find_file(name) != nullptr;
}

Recipe find_recipe(const std::string& name) {
  if (const RecipeFile* file = find_file(name)) return read_recipe(*file);
  std::vector<std::string> names;
  for (const RecipeFile& file : recipe_files()) names.emplace_back(file.name);
  const auto guess = did_you_mean(name, names);
  throw Error(Exit::usage,
              {.code = "recipe.unknown",
               .what = fmt::format("there is no recipe '{}'", name),
               .help = guess ? fmt::format("did you mean {}?", *guess) : "see: mtl recipes ls"});
}

}  // namespace mtl
