#include "runtime/model_source.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/strict_json.h"
#include "runtime/find_run.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/recipes.h"
#include "runtime/run_data.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostConfig = size_t{1} << 20;

ModelSource of_hf_config(const fs::path& path) {
  nlohmann::json json;
  try {
    json = parse_strict_json(read_file(path, kMostConfig));
  } catch (const JsonProblem& problem) {
    throw Error(Exit::data, {.code = "import.file",
                             .what = fmt::format("{}: {}", path.string(), problem.what()),
                             .help = "the file is damaged; fetch it again"});
  }
  Diagnostics diagnostics;
  const HfModel model = model_from_hf_config(json, path.string(), diagnostics);
  diagnostics.throw_if_errors(Exit::data);
  return {fmt::format("Hugging Face {} of {}", model.architecture, path.string()), model.shape,
          diagnostics.all()};
}

ModelSource of_spec(const TrainSpec& spec, std::string words, int64_t vocab) {
  if (vocab <= 0) {
    throw Error(Exit::config,
                {.code = "estimate.vocab",
                 .what = fmt::format("{} does not say how many token ids there are", words),
                 .help = "say it: --vocab 50257 (data.vocab in a train.yaml)"});
  }
  return {std::move(words), model_shape(spec, vocab), {}};
}

ResolvedSpec read_spec(const fs::path& path) {
  Diagnostics diagnostics;
  ResolvedSpec resolved = load_spec({.train_yaml = path.string()}, diagnostics);
  diagnostics.throw_if_errors();
  return resolved;
}

// The ids of a train.yaml's own tokenizer, which may depend on its text; 0 = the data does not say.
int64_t vocab_of_data(const ResolvedSpec& resolved) {
  Diagnostics diagnostics;
  const RunData data = load_run_data(resolved, diagnostics);
  return !diagnostics.has_errors() && data.tokenizer ? data.tokenizer->vocab_size() : 0;
}

ModelSource of_train_yaml(const fs::path& path, int64_t vocab) {
  const ResolvedSpec resolved = read_spec(path);
  const TrainSpec& spec = resolved.spec;
  if (vocab <= 0 && spec.data.tokenizer.type != "chars") vocab = vocab_of(spec);
  if (vocab <= 0) vocab = vocab_of_data(resolved);
  return of_spec(spec, path.string(), vocab);
}

// Of a run directory, runs/NAME or the name alone: as its settings and its tokenizer say, of one
// that was imported as its checkpoint does. Nothing if there is none.
std::optional<ModelSource> of_run(const std::string& model, int64_t vocab) {
  fs::path run;
  try {
    run = find_run(model);
  } catch (const Error&) {
    return std::nullopt;
  }
  const fs::path settings = run / "resolved.yaml", tokenizer = run / "tokenizer.json";
  std::error_code ignored;
  if (fs::exists(settings, ignored)) {
    const ResolvedSpec resolved = read_spec(settings);
    if (vocab <= 0) vocab = resolved.spec.data.vocab;
    if (vocab <= 0 && fs::exists(tokenizer, ignored)) {
      vocab = tokenizer_from_json(nlohmann::json::parse(read_file(tokenizer), nullptr, false))
                  ->vocab_size();
    }
    return of_spec(resolved.spec, settings.string(), vocab);
  }
  const fs::path checkpoint = find_intact_checkpoint(run);
  const CheckpointReader reader(checkpoint);
  return ModelSource{checkpoint.string(), model_shape_from_json(reader.state().at("model")), {}};
}

}  // namespace

ModelSource read_model_source(const std::string& model, int64_t vocab) {
  std::error_code ignored;
  ModelSource source;
  const fs::path path = model;
  if (fs::is_directory(path, ignored)) {
    const fs::path config = path / "config.json";
    std::optional<ModelSource> run;
    if (!fs::exists(config, ignored)) run = of_run(model, vocab);
    if (run) {
      source = *std::move(run);
    } else if (fs::exists(config, ignored)) {
      source = of_hf_config(config);
    } else {
      throw Error(Exit::usage,
                  {.code = "estimate.model",
                   .what = fmt::format("{} has no config.json", model),
                   .help = "give a Hugging Face folder, a config.json, a train.yaml, a "
                           "run or a recipe"});
    }
  } else if (fs::exists(path, ignored)) {
    if (path.extension() != ".json") return of_train_yaml(path, vocab);
    source = of_hf_config(path);
  } else if (is_recipe(model)) {
    const Recipe recipe = find_recipe(model);
    return of_spec(recipe.resolved.spec, fmt::format("recipe {}", model),
                   vocab > 0 ? vocab : vocab_of(recipe.resolved.spec));
  } else if (std::optional<ModelSource> run = of_run(model, vocab)) {
    source = *std::move(run);
  } else {
    std::vector<std::string> names;
    for (const RecipeFile& file : recipe_files()) names.emplace_back(file.name);
    const auto guess = did_you_mean(model, names);
    throw Error(
        Exit::usage,
        {.code = "estimate.model",
         .what = fmt::format("'{}' is neither a file, a folder, a run, nor a recipe", model),
         .notes = {"nothing is fetched from the network"},
         .help = guess ? fmt::format("did you mean {}?", *guess)
                       : "give a config.json, a train.yaml, a recipe (mtl recipes ls), or sizes: "
                         "--layers 32 --hidden 4096 --heads 32 --vocab 32000"});
  }
  if (vocab > 0) source.shape.vocab = source.shape.padded_vocab = vocab;
  return source;
}

ModelSource model_of_sizes(const ModelSizes& sizes) {
  Diagnostics diagnostics;
  const auto fail = [&](std::string what, std::string help) {
    diagnostics.add({.code = "estimate.sizes", .what = std::move(what), .help = std::move(help)});
  };
  const std::pair<const char*, int64_t> needed[] = {{"--layers", sizes.layers},
                                                    {"--hidden", sizes.hidden},
                                                    {"--heads", sizes.heads},
                                                    {"--vocab", sizes.vocab}};
  std::vector<std::string> missing;
  for (const auto& [name, value] : needed) {
    if (value <= 0) missing.emplace_back(name);
  }
  if (!missing.empty()) {
    fail(fmt::format("the sizes lack {}", fmt::join(missing, ", ")),
         "a model has at least --layers, --hidden, --heads and --vocab");
  }
  // As the schema of train.yaml has them.
  const std::tuple<const char*, int64_t, int64_t> bounded[] = {
      {"--layers", sizes.layers, 100'000},   {"--hidden", sizes.hidden, 1 << 20},
      {"--heads", sizes.heads, 1 << 16},     {"--kv_heads", sizes.kv_heads, 1 << 16},
      {"--ffn", sizes.ffn, 1 << 24},         {"--vocab", sizes.vocab, 2'147'483'647},
      {"--seq_len", sizes.seq_len, 1 << 27}, {"--experts", sizes.experts, 1024}};
  for (const auto& [name, value, most] : bounded) {
    if (value <= most) continue;
    fail(fmt::format("{} {} is more than a model can have", name, value),
         fmt::format("use at most {}", most));
  }
  const double hidden = static_cast<double>(sizes.hidden);
  const double ffn = sizes.ffn > 0 ? static_cast<double>(sizes.ffn) : 4 * hidden;
  const double mlps = 3 * hidden * ffn * static_cast<double>(std::max<int64_t>(1, sizes.experts));
  const double parameters = static_cast<double>(sizes.layers) * (4 * hidden * hidden + mlps) +
                            2 * hidden * static_cast<double>(sizes.vocab);
  // So that their bytes are numbers.
  if (parameters > 1e15) {
    fail(fmt::format("some {:.0e} parameters are more than a model can have", parameters),
         "use smaller sizes: at most 1e15");
  }
  const int64_t topk = sizes.topk > 0 ? sizes.topk : 2;
  const int64_t kv_heads = sizes.kv_heads > 0 ? sizes.kv_heads : sizes.heads;
  if (sizes.hidden > 0 && sizes.heads > 0 && sizes.hidden % sizes.heads != 0) {
    fail(fmt::format("--hidden {} cannot be divided over --heads {}", sizes.hidden, sizes.heads),
         "use a multiple");
  }
  if (sizes.heads > 0 && sizes.heads % kv_heads != 0) {
    fail(fmt::format("--heads {} cannot be shared by --kv_heads {}", sizes.heads, kv_heads),
         "use a divisor of the heads");
  }
  if (sizes.experts > 0 && topk > sizes.experts) {
    fail(fmt::format("a token cannot take --topk {} of {} experts", topk, sizes.experts),
         fmt::format("use 1 to {}", sizes.experts));
  }
  diagnostics.throw_if_errors(Exit::usage);
  TrainSpec spec;
  spec.model.layers = sizes.layers;
  spec.model.hidden = sizes.hidden;
  spec.model.heads = sizes.heads;
  spec.model.kv_heads = sizes.kv_heads;
  spec.model.ffn = sizes.ffn;
  spec.model.moe.experts = sizes.experts;
  spec.model.moe.topk = topk;
  spec.train.seq_len = sizes.seq_len > 0 ? sizes.seq_len : 1024;
  if (!sizes.gpt2) {
    spec.model.activation = "swiglu";
    spec.model.norm.type = "rmsnorm";
    spec.model.position.type = "rope";
    spec.model.bias = false;
    spec.model.tie_embeddings = sizes.tied;
  }
  return {fmt::format("sizes as given, of {}'s kind", sizes.gpt2 ? "GPT-2" : "Llama"),
          model_shape(spec, sizes.vocab),
          {}};
}

}  // namespace mtl
