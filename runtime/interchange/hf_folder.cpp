// Hugging Face folders: config.json and model.safetensors, whole or in shards with an index;
// pytorch_model.bin where nothing else is there.
#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/strict_json.h"
#include "runtime/interchange/foreign_model.h"
#include "runtime/interchange/hf_architectures.h"
#include "runtime/interchange/hf_layout.h"
#include "runtime/interchange/hf_mxfp4.h"
#include "runtime/interchange/torch_file.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostJson = size_t{64} << 20;

nlohmann::json read_json(const fs::path& path) {
  try {
    const MappedFile file(path);
    if (file.bytes().size() > kMostJson) throw JsonProblem("larger than 64 MiB");
    return parse_strict_json(file.bytes());
  } catch (const JsonProblem& problem) {
    fail_data("import.file", fmt::format("{}: {}", path.string(), problem.what()),
              "the file is damaged; fetch it again");
  }
}

// A name in an index leads to a file beside it, nowhere else.
bool is_beside(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

ForeignTensors read_one(const fs::path& path) {
  return path.extension() == ".safetensors" ? read_safetensors(path) : read_torch_tensors(path);
}

// Everything of the shards that an index names.
ForeignTensors read_sharded(const fs::path& index) {
  const nlohmann::json json = read_json(index);
  const auto bad = [&](const std::string& what) {
    fail_data("import.file", fmt::format("{}: {}", index.string(), what),
              "the index is damaged or not of this model; fetch it again");
  };
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) bad("it has no 'weight_map'");
  std::set<std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_beside(file.get<std::string>())) {
      bad(fmt::format("'{}' is said to be in {}, which is no name of a file in the folder", name,
                      file.dump(-1, ' ', true)));
    }
    files.insert(file.get<std::string>());
  }
  ForeignTensors all;
  std::map<std::string, std::string> where;
  for (const std::string& file : files) {
    if (!fs::exists(index.parent_path() / file)) {
      fail_data("import.missing",
                fmt::format("{} is not there, and {} names it",
                            (index.parent_path() / file).string(), index.filename().string()),
                "fetch the missing shards");
    }
    ForeignTensors some = read_one(index.parent_path() / file);
    const auto take = [&](const std::string& name) {
      const auto [known, fresh] = where.emplace(name, file);
      if (!fresh) bad(fmt::format("tensor '{}' is in {} and in {}", name, known->second, file));
    };
    for (auto& [name, tensor] : some.tensors) {
      take(name);
      all.tensors.emplace(name, std::move(tensor));
    }
    for (auto& [name, dtype] : some.others) {
      take(name);
      all.others.emplace(name, dtype);
    }
    all.bytes.merge(some.bytes);
  }
  for (const auto& [name, file] : map->items()) {
    const auto found = where.find(name);
    if (found == where.end() || found->second != file.get<std::string>()) {
      bad(fmt::format("tensor '{}' is not in {}", name, file.get<std::string>()));
    }
  }
  return all;
}

ForeignTensors read_weights(const fs::path& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"}) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) continue;
    return path.extension() == ".json" ? read_sharded(path) : read_one(path);
  }
  fail_data("import.missing", folder.string() + " has a config.json and no weights",
            "model.safetensors, or model.safetensors.index.json with its shards, belongs there");
}

// Buffers that older versions saved beside the weights.
bool is_buffer(const std::string& name) {
  for (const char* end : {".attn.bias", ".attn.masked_bias", ".attention.bias",
                          ".attention.masked_bias", ".rotary_emb.inv_freq"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

bool is_head(const std::string& name) {
  return name == "lm_head.weight" || name == "embed_out.weight" ||
         name == "language_model.lm_head.weight";
}

// What a tensor may be called: a base model's names lack the first part, and the text part of a
// model that sees pictures is inside that one.
std::vector<std::string> names_of(const std::string& wanted, bool with_pictures) {
  std::vector<std::string> names = {wanted};
  if (with_pictures) names.push_back("language_model." + wanted);
  if (is_head(wanted)) return names;
  const std::string behind_first = wanted.substr(wanted.find('.') + 1);
  names.push_back(behind_first);
  if (with_pictures) names.push_back("model.language_model." + behind_first);
  return names;
}

bool is_of_pictures(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.");
}

// Of a layer behind those of the model (HfModel::layers_ahead).
bool is_ahead(const HfModel& model, std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  if (!name.starts_with("layers.")) return false;
  name.remove_prefix(7);
  int64_t layer = -1;
  const auto end = std::from_chars(name.data(), name.data() + name.size(), layer);
  const int64_t first = model.shape.layers;
  return end.ec == std::errc() && layer >= first && layer - first < model.layers_ahead;
}

// The parameters that a tensor holds parts of get them.
void add_parts(const ForeignTensor& wanted, const StridedTensor& tensor,
               const std::vector<ParamRow>& table, ForeignWeights& weights) {
  for (const ForeignPart& part : wanted.parts) {
    weights.add(table[part.row].name, table[part.row].shape,
                {.rect = part.rect,
                 .source = view_of(part, tensor),
                 .at = Dims(part.rect.extent.size(), 0),
                 .transposed = part.transposed,
                 .plus = part.plus});
  }
}

void assign(const HfModel& model, const ForeignTensors& there, const fs::path& folder,
            ForeignModel& foreign) {
  constexpr size_t kMostNotes = 12;
  std::vector<std::string> notes;
  std::set<std::string> used;
  const std::vector<ParamRow> table = shard_table(model.shape, false);
  for (const ForeignTensor& wanted : hf_tensors(model, table)) {
    const std::vector<std::string> names = names_of(wanted.name, model.with_pictures);
    if (wanted.mxfp4) {
      const auto joined = join_mxfp4(there, names, wanted.shape, used, notes);
      if (joined) add_parts(wanted, *joined, table, foreign.weights);
      continue;
    }
    const auto is_there = [&](const std::string& one) {
      return there.tensors.contains(one) || there.others.contains(one);
    };
    const auto known = std::find_if(names.begin(), names.end(), is_there);
    if (known == names.end()) {
      notes.push_back(fmt::format("missing: {} {}", wanted.name, to_string(wanted.shape)));
      continue;
    }
    const std::string& name = *known;
    used.insert(name);
    const auto tensor = there.tensors.find(name);
    if (tensor == there.tensors.end()) {
      notes.push_back(fmt::format("{} is of type {}", name, there.others.at(name)));
    } else if (tensor->second.shape != wanted.shape) {
      notes.push_back(fmt::format("{} is {}, and by config.json it is {}", name,
                                  to_string(tensor->second.shape), to_string(wanted.shape)));
    } else {
      add_parts(wanted, tensor->second, table, foreign.weights);
    }
  }
  int64_t ahead = 0;
  const auto unexpected = [&](const std::string& name) {
    if (is_ahead(model, name)) {
      ++ahead;
      return;
    }
    // A tied head is the embedding, whatever else the file says (as transformers does it).
    const bool tied = model.shape.tie_embeddings && is_head(name);
    const bool pictures = model.with_pictures && is_of_pictures(name);
    if (!used.contains(name) && !is_buffer(name) && !tied && !pictures) {
      notes.push_back("unexpected: " + name);
    }
  };
  for (const auto& [name, tensor] : there.tensors) unexpected(name);
  for (const auto& [name, dtype] : there.others) unexpected(name);
  if (ahead > 0) {
    foreign.warnings.push_back(
        {.code = "import.tensor",
         .what =
             fmt::format("{} tensors of {} behind the model's {} are left out: they predict "
                         "tokens further ahead ('num_nextn_predict_layers'), which mtl does "
                         "not do",
                         ahead,
                         model.layers_ahead == 1 ? "the layer"
                                                 : fmt::format("the {} layers", model.layers_ahead),
                         model.shape.layers),
         .help = "nothing: the model itself is whole without them",
         .severity = Diagnostic::Severity::warning});
  }
  if (notes.empty()) return;
  const size_t count = notes.size();
  if (count > kMostNotes) {
    notes.resize(kMostNotes);
    notes.push_back(fmt::format("and {} more", count - kMostNotes));
  }
  throw Error(Exit::data,
              {.code = "import.tensor",
               .what = fmt::format("{}: its tensors are not those of the model that its "
                                   "config.json describes",
                                   folder.string()),
               .notes = std::move(notes),
               .help = "fetch config.json and weights of the same model; adapters (LoRA) have to "
                       "be merged into it first"});
}

}  // namespace

ForeignTensors read_safetensors(const fs::path& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  const auto header = parse_safetensors_header(
      file->bytes(), static_cast<int64_t>(file->bytes().size()), path.string());
  ForeignTensors all;
  for (const SafetensorsEntry& entry : header.entries) {
    StridedTensor tensor{.file = file,
                         .byte_offset = header.data_start + entry.begin,
                         .shape = entry.shape,
                         .strides = contiguous_strides(entry.shape)};
    if (float_dtype(entry.dtype, tensor.dtype)) {
      all.tensors.emplace(entry.name, std::move(tensor));
    } else {
      all.others.emplace(entry.name, entry.dtype);
      tensor.dtype = DType::u8;
      if (entry.dtype == safetensors_name(DType::u8)) {
        all.bytes.emplace(entry.name, std::move(tensor));
      }
    }
  }
  return all;
}

ForeignModel open_hf_folder(const fs::path& path) {
  Diagnostics diagnostics;
  const fs::path config = path / "config.json";
  const HfModel model = model_from_hf_config(read_json(config), config.string(), diagnostics);
  diagnostics.throw_if_errors(Exit::data);
  // The class that the folder is of, not that of its text part.
  const std::string name = model.with_pictures ? *hf_architecture("gemma3") : model.architecture;
  ForeignModel foreign{.kind = "Hugging Face " + name,
                       .shape = model.shape,
                       .weights = {},
                       .warnings = diagnostics.all()};
  assign(model, read_weights(path), path, foreign);
  return foreign;
}

bool is_foreign_model(const fs::path& path) {
  if (fs::exists(path / "config.json") || fs::exists(path / "latest_checkpointed_iteration.txt")) {
    return true;
  }
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    if (entry.path().filename().string().starts_with("mp_rank_")) return true;
  }
  return false;
}

ForeignModel open_foreign_model(const fs::path& path) {
  if (fs::exists(path / "config.json")) return open_hf_folder(path);
  if (is_foreign_model(path)) return open_megatron_folder(path);
  if (fs::exists(path / "manifest.json") || fs::exists(path / "resolved.yaml")) {
    fail_data("import.missing", path.string() + " is mtl's own already",
              "use it as it is: mtl generate, mtl ckpt, init.from of a train.yaml");
  }
  if (fs::exists(path / "adapter_config.json")) {
    fail_data("import.missing", path.string() + " holds adapters (PEFT) and not their model",
              "merge them into it with PEFT (merge_and_unload()), and give the folder of that");
  }
  fail_data(
      "import.missing",
      path.string() + (fs::exists(path) ? " holds no model that mtl can read" : " is not there"),
      "give a Hugging Face folder (config.json and safetensors) or a Megatron checkpoint in torch "
      "format (latest_checkpointed_iteration.txt, or a folder with mp_rank_*)");
}

}  // namespace mtl
