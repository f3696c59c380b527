// Megatron-LM's checkpoints in `torch` format:
//   latest_checkpointed_iteration.txt            a number, or "release"
//   iter_0000500/mp_rank_TT[_PPP]/model_optim_rng.pt
// Files of all ranks are joined: tensor-parallel shards, pipeline stages with their virtual ones,
// both generations of names (Megatron core's and the older ones). The optimizer's state is left.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "common/text.h"
#include "runtime/interchange/foreign_model.h"
#include "runtime/interchange/megatron_args.h"
#include "runtime/interchange/megatron_layout.h"
#include "runtime/interchange/torch_file.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

std::optional<int> whole_number(std::string_view text) {
  const auto number = to_number<int>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

fs::path iteration_folder(const fs::path& path) {
  const fs::path tracker = path / "latest_checkpointed_iteration.txt";
  if (!fs::exists(tracker)) return path;
  std::string text = read_file(tracker, 64);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  if (text == "release") return path / text;
  const auto iteration = whole_number(text);
  if (!iteration) fail_data("import.file", tracker.string() + " names no iteration", "");
  return path / fmt::format("iter_{:07}", *iteration);
}

// By (tp rank, pp rank).
std::map<std::pair<int, int>, fs::path> rank_files(const fs::path& folder) {
  std::map<std::pair<int, int>, fs::path> files;
  std::error_code error;
  bool distributed = false;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    distributed |= name == "metadata.json" || name == ".metadata" || name.ends_with(".distcp");
    if (!name.starts_with("mp_rank_")) continue;
    std::vector<std::optional<int>> numbers;
    for (std::string_view rest = std::string_view(name).substr(8); !rest.empty();) {
      const size_t end = std::min(rest.find('_'), rest.size());
      numbers.push_back(whole_number(rest.substr(0, end)));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (numbers.empty() || numbers.size() > 3 ||
        std::count(numbers.begin(), numbers.end(), std::nullopt) > 0) {
      continue;
    }
    if (numbers.size() == 3) {
      fail_data("import.family", entry.path().string() + " is of a model with expert parallelism",
                "export it to Hugging Face with Megatron's tools and import that");
    }
    fs::path file = entry.path() / "model_optim_rng.pt";
    if (!fs::exists(file)) file = entry.path() / "model_rng.pt";
    if (!fs::exists(file)) {
      fail_data("import.missing", entry.path().string() + " has no model_optim_rng.pt",
                "copy the folders of all ranks");
    }
    files[{*numbers[0], numbers.size() > 1 ? *numbers[1] : 0}] = file;
  }
  if (files.empty() && distributed) {
    fail_data(
        "import.family", folder.string() + " is in Megatron's torch_dist format",
        "convert it: start Megatron with --ckpt-convert-format torch --ckpt-convert-save DIR");
  }
  if (files.empty()) {
    fail_data("import.missing", folder.string() + " has no mp_rank_* folders",
              "copy the folders of all ranks");
  }
  return files;
}

// What older versions call it, in Megatron core's words.
std::string core_name(std::string name) {
  const auto drop = [&](std::string_view prefix) {
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
  };
  drop("module.");
  drop("language_model.");
  for (const char* stack : {"encoder.", "transformer."}) {
    if (name.starts_with(stack)) name = "decoder." + name.substr(std::string_view(stack).size());
  }
  static const std::pair<std::string_view, std::string_view> kWords[] = {
      {".attention.", ".self_attention."},
      {".query_key_value.", ".linear_qkv."},
      {".self_attention.dense.", ".self_attention.linear_proj."},
      {".dense_h_to_4h.", ".linear_fc1."},
      {".dense_4h_to_h.", ".linear_fc2."},
      {".input_norm.", ".input_layernorm."},
      {".post_attention_layernorm.", ".pre_mlp_layernorm."},
      {".post_attention_norm.", ".pre_mlp_layernorm."},
      {".final_norm.", ".final_layernorm."},
      {".self_attention.linear_qkv.layer_norm_", ".input_layernorm."},
      {".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm."}};
  for (const auto& [old, core] : kWords) {
    if (const size_t at = name.find(old); at != std::string::npos) {
      name.replace(at, old.size(), core);
    }
  }
  return name;
}

using Named = std::map<std::string, Pickle::Id>;

// Nested dicts, with the keys joined by dots. A dict may hold itself, so there is a limit.
constexpr size_t kMostNames = 1'000'000;
void flatten(const TorchFile& file, Pickle::Id id, const std::string& prefix, int depth,
             Named& into, size_t& seen) {
  const Pickle& pickle = file.pickle();
  const Pickle::Value& value = pickle[id];
  if (value.kind != Pickle::Kind::dict) {
    if (value.kind == Pickle::Kind::call) into.emplace(core_name(prefix), id);
    return;
  }
  for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
    const Pickle::Value& key = pickle[value.items[i]];
    if (key.kind != Pickle::Kind::text) continue;
    if (depth > 16 || key.text.size() > 1000 || ++seen > kMostNames) {
      fail_data("import.file", file.path().string() + ": its 'model' is nested without end", "");
    }
    flatten(file, value.items[i + 1],
            prefix.empty() ? std::string(key.text) : prefix + "." + std::string(key.text),
            depth + 1, into, seen);
  }
}

Pickle::Id id_of(const TorchFile& file, const std::string& key) {
  const Pickle::Value& root = file.root();
  for (size_t i = 0; i + 1 < root.items.size(); i += 2) {
    if (file.pickle()[root.items[i]].text == key) return root.items[i + 1];
  }
  return UINT32_MAX;
}

// The tensors of one rank: one set, or one per virtual stage.
std::vector<Named> models_of(const TorchFile& file) {
  std::vector<Named> models;
  size_t seen = 0;
  if (file.root().kind == Pickle::Kind::dict) {
    if (const Pickle::Id id = id_of(file, "model"); id != UINT32_MAX) {
      flatten(file, id, "", 0, models.emplace_back(), seen);
    }
    for (int chunk = 0; models.empty() || chunk > 0; ++chunk) {
      const Pickle::Id id = id_of(file, fmt::format("model{}", chunk));
      if (id == UINT32_MAX) break;
      flatten(file, id, "", 0, models.emplace_back(), seen);
    }
  }
  if (models.empty()) {
    fail_data("import.file", file.path().string() + " has no 'model'",
              "it is not a checkpoint of Megatron's training");
  }
  return models;
}

int64_t layers_in(const Named& model) {
  constexpr std::string_view kLayers = "decoder.layers.";
  std::set<int> layers;
  for (const auto& [name, id] : model) {
    if (!name.starts_with(kLayers)) continue;
    const size_t dot = std::min(name.find('.', kLayers.size()), name.size());
    if (const auto layer =
            whole_number(std::string_view(name).substr(kLayers.size(), dot - kLayers.size()))) {
      layers.insert(*layer);
    }
  }
  return static_cast<int64_t>(layers.size());
}

bool is_left_out(const std::string& name, bool tied) {
  return name.ends_with("_extra_state") || name.find("rotary_pos_emb") != std::string::npos ||
         name.ends_with("inv_freq") || name == "word_embeddings_for_head.weight" ||
         (tied && name == "output_layer.weight");
}

// The files of all ranks, by {TP rank, PP rank}.
struct RankFiles {
  int tp = 1, pp = 1;
  std::map<std::pair<int, int>, std::unique_ptr<TorchFile>> files;
  const TorchFile& at(int t, int stage) const { return *files.at({t, stage}); }
  const TorchFile& first() const { return at(0, 0); }
};
// The tensors of each: of its virtual stages, of which every rank has as many.
using RankModels = std::map<std::pair<int, int>, std::vector<Named>>;

RankFiles open_rank_files(const fs::path& folder) {
  const auto paths = rank_files(folder);
  RankFiles ranks;
  ranks.tp = std::prev(paths.end())->first.first + 1;
  for (const auto& [rank, file] : paths) ranks.pp = std::max(ranks.pp, rank.second + 1);
  // Counted before anything is made for each: the numbers are names of folders.
  const auto tp = static_cast<size_t>(ranks.tp), pp = static_cast<size_t>(ranks.pp);
  if (tp > paths.size() || pp > paths.size() || tp * pp != paths.size()) {
    fail_data("import.missing",
              fmt::format("{} has {} of the {} folders mp_rank_* of tp {} x pp {}", folder.string(),
                          paths.size(), int64_t{ranks.tp} * ranks.pp, tp, pp),
              "copy the folders of all ranks");
  }
  for (const auto& [rank, file] : paths) ranks.files[rank] = std::make_unique<TorchFile>(file);
  return ranks;
}

// What the first rank says of the run, against the folders that are there.
void check_args(const RankFiles& ranks, MegatronArgs& args) {
  for (const auto& [key, degree] : {std::pair("tensor_model_parallel_size", ranks.tp),
                                    std::pair("pipeline_model_parallel_size", ranks.pp)}) {
    if (args.find(key) != nullptr && args.size(key) != degree) {
      args.refuse(
          fmt::format("args.{} is {}, and there are folders of {}", key, args.size(key), degree));
    }
  }
  const TorchFile& first = ranks.first();
  double version = 0;
  if (const Pickle::Value* const said = first.pickle().find(first.root(), "checkpoint_version")) {
    if (said->kind == Pickle::Kind::real) version = said->number;
    if (said->kind == Pickle::Kind::integer) version = static_cast<double>(said->integer);
  }
  if (version < 2) {
    args.refuse(
        fmt::format("its checkpoint_version is {}: before 2.0 the rows of Q, K and V were "
                    "in another order",
                    version));
  }
}

// Rows that the first rank has of the vocabulary.
int64_t rows_of_embedding(const RankFiles& ranks, const RankModels& models) {
  const Named& first = models.at({0, 0})[0];
  const auto found = first.find("embedding.word_embeddings.weight");
  std::string other;
  const auto words =
      found == first.end() ? std::nullopt : ranks.first().tensor(found->second, other);
  if (!words || words->shape.size() != 2) {
    fail_data("import.tensor", ranks.first().path().string() + " has no word embeddings",
              "it is not a checkpoint of a GPT model");
  }
  return words->shape[0];
}

// `padded`: rows of all ranks.
void set_vocabulary(ModelShape& shape, MegatronArgs& args, int64_t padded) {
  shape.vocab = std::min(padded, args.find("vocab_size") ? args.size("vocab_size") : padded);
  shape.vocab_pad_to = TrainSpec::Model().vocab_pad_to;
  shape.padded_vocab = round_up(shape.vocab, shape.vocab_pad_to);
}

struct Joiner {
  const ModelShape& shape;
  const std::vector<ParamRow>& table;
  ForeignWeights& weights;
  std::vector<std::string> notes = {};

  void join(const TorchFile& file, const Named& model, const MegatronRank& rank) {
    std::set<std::string> used;
    for (const ForeignTensor& wanted : megatron_tensors(shape, table, rank)) {
      used.insert(wanted.name);
      const auto found = model.find(wanted.name);
      std::string other;
      const auto tensor = found == model.end() ? std::nullopt : file.tensor(found->second, other);
      if (!tensor) {
        notes.push_back(
            fmt::format("{}: {} {}", file.path().string(), wanted.name,
                        found == model.end() ? "is missing" : "is no tensor of floats"));
        continue;
      }
      if (tensor->shape != wanted.shape) {
        notes.push_back(fmt::format("{}: {} is {}, and by args it is {}", file.path().string(),
                                    wanted.name, to_string(tensor->shape),
                                    to_string(wanted.shape)));
        continue;
      }
      // Copies are read from the first rank.
      if (wanted.replicated && rank.tp_rank != 0) continue;
      for (const ForeignPart& part : wanted.parts) {
        weights.add(
            table[part.row].name, table[part.row].shape,
            {.rect = part.rect, .source = *tensor, .at = part.at, .transposed = part.transposed});
      }
    }
    for (const auto& [name, id] : model) {
      if (used.contains(name) || is_left_out(name, shape.tie_embeddings)) continue;
      notes.push_back(fmt::format("{}: {} is unexpected", file.path().string(), name));
    }
  }

  // Virtual stages take turns.
  void join_all(const RankFiles& ranks, const RankModels& models, int64_t vocab_rows) {
    const size_t chunks = models.at({0, 0}).size();
    for (const auto& [rank, own] : models) {
      if (own.size() == chunks) continue;
      fail_data("import.tensor",
                ranks.files.at(rank)->path().string() +
                    " has another number of virtual stages than the first rank",
                "the folders are of different runs");
    }
    MegatronRank rank{.tp = ranks.tp, .vocab_rows = vocab_rows};
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      for (int stage = 0; stage < ranks.pp; ++stage) {
        rank.layers = layers_in(models.at({0, stage})[chunk]);
        rank.embedding = chunk == 0 && stage == 0;
        rank.head = chunk == chunks - 1 && stage == ranks.pp - 1;
        if (rank.first_layer + rank.layers > shape.layers) break;
        for (int t = 0; t < ranks.tp; ++t) {
          rank.tp_rank = t;
          join(ranks.at(t, stage), models.at({t, stage})[chunk], rank);
        }
        rank.first_layer += rank.layers;
      }
    }
    if (rank.first_layer != shape.layers) {
      notes.push_back(
          fmt::format("its stages have not {} layers, as args.num_layers says", shape.layers));
    }
  }
};

}  // namespace

ForeignModel open_megatron_folder(const fs::path& path) {
  const fs::path folder = iteration_folder(path);
  const RankFiles ranks = open_rank_files(folder);
  Diagnostics diagnostics;
  MegatronArgs args(ranks.first(), diagnostics);
  ForeignModel foreign{.kind = "Megatron", .shape = args.shape(), .weights = {}, .warnings = {}};
  check_args(ranks, args);
  if (const std::string obstacle = megatron_obstacle(foreign.shape, ranks.tp); !obstacle.empty()) {
    args.refuse(obstacle);
  }
  diagnostics.throw_if_errors(Exit::data);

  RankModels models;
  for (const auto& [rank, file] : ranks.files) models[rank] = models_of(*file);
  const int64_t vocab_rows = rows_of_embedding(ranks, models);
  set_vocabulary(foreign.shape, args, vocab_rows * ranks.tp);
  const std::vector<ParamRow> table = shard_table(foreign.shape, false);
  Joiner joiner{foreign.shape, table, foreign.weights};
  joiner.join_all(ranks, models, vocab_rows);
  if (!joiner.notes.empty()) {
    constexpr size_t kMostNotes = 12;
    const size_t count = joiner.notes.size();
    if (count > kMostNotes) {
      joiner.notes.resize(kMostNotes);
      joiner.notes.push_back(fmt::format("and {} more", count - kMostNotes));
    }
    throw Error(Exit::data, {.code = "import.tensor",
                             .what = folder.string() + ": its tensors are not those of the model "
                                                       "that its args describe",
                             .notes = std::move(joiner.notes),
                             .help = "is it a GPT model of Megatron-LM's?"});
  }
  foreign.weights.check_tiling();
  return foreign;
}

}  // namespace mtl
