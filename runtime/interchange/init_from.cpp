#include "runtime/interchange/init_from.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/elements.h"
#include "runtime/checkpoint/fp16_range.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/engine/checkpointing.h"
#include "runtime/interchange/export_source.h"
#include "runtime/interchange/foreign_model.h"
#include "runtime/interchange/hf_tokenizer.h"
#include "runtime/plan/shape_settings.h"

namespace mtl {

namespace fs = std::filesystem;

struct InitialWeights::Impl {
  fs::path folder;  // of the checkpoint, or of somebody else's model
  std::optional<CheckpointReader> reader;
  std::optional<ExportSource> merged;  // where the checkpoint has adapters
  std::optional<ForeignModel> foreign;
  std::map<std::string, std::vector<int64_t>> shapes;  // there, by name
};

InitialWeights::InitialWeights(const std::string& path)
    : path_(path), impl_(std::make_unique<Impl>()) {
  const fs::path folder(path);
  fs::path checkpoint = folder;
  if (!fs::exists(folder / "manifest.json") && fs::is_directory(folder / kCheckpoints)) {
    Diagnostics passed_over;
    checkpoint = newest_checkpoint(folder / kCheckpoints, passed_over);
    passed_over.throw_if_errors(Exit::data);
  }
  if (!checkpoint.empty() && fs::exists(checkpoint / "manifest.json")) {
    impl_->folder = checkpoint;
    impl_->reader.emplace(checkpoint);
    shape_ = model_shape_from_json(impl_->reader->state().at("model"));
    if (shape_.lora) impl_->merged.emplace(checkpoint);
    shape_ = shape_.without_adapters();
  } else if (is_foreign_model(folder)) {
    impl_->folder = folder;
    impl_->foreign = open_foreign_model(folder);
    shape_ = impl_->foreign->shape;
  } else {
    throw Error(
        Exit::data,
        {.code = "init.missing",
         .what = path + (fs::exists(folder / "adapter_config.json")
                             ? " holds adapters (PEFT) and not their model"
                         : fs::exists(folder) ? " holds no model"
                                              : " is not there"),
         .help =
             "init.from is a run of mtl (or its name) or a checkpoint, a Hugging Face folder, or a "
             "Megatron checkpoint in torch format"});
  }
  for (const ParamRow& row : shard_table(shape_, false)) impl_->shapes[row.name] = row.shape;
}

InitialWeights::~InitialWeights() = default;

void InitialWeights::check(const ModelShape& model,
                           const std::function<Place(const std::string& key)>& place_of,
                           Diagnostics& diagnostics) const {
  const nlohmann::json here = to_json(model), there = to_json(shape_);
  const auto differs = [&](const char* key, const std::string& mine, const std::string& theirs) {
    diagnostics.add(
        {.code = "init.mismatch",
         .what = fmt::format("{} is {} here, {} in the model of init.from", key, mine, theirs),
         .place = place_of(key),
         .notes = {"init.from is " + path_},
         .help = "give the model the shape of the one it starts from"});
  };
  for (const auto& [field, key] : kShapeSettings) {
    const nlohmann::json mine = here.value(field, nlohmann::json());
    const nlohmann::json theirs = there.value(field, nlohmann::json());
    const auto shown = [](const nlohmann::json& value) {
      return value.is_null() ? std::string("not set") : value.dump();
    };
    if (mine == theirs) continue;
    // Weights go on to a longer context under a scaling that they did not have.
    if (field == std::string_view("rope_scaling") && !mine.is_null()) {
      diagnostics.add({.code = "init.scaling",
                       .what = fmt::format("{} is {} here, {} in the model of init.from", key,
                                           shown(mine), shown(theirs)),
                       .place = place_of(key),
                       .notes = {"init.from is " + path_},
                       .help = "nothing, if its context is to grow: training adapts its weights "
                               "to the new rotations",
                       .severity = Diagnostic::Severity::warning});
      continue;
    }
    differs(key, shown(mine), shown(theirs));
  }
  if (model.vocab > shape_.vocab) {
    differs("data.tokenizer.type", fmt::format("of {} tokens", model.vocab),
            fmt::format("of {}", shape_.vocab));
  }
  if (model.position == PositionType::learned && model.max_seq > shape_.max_seq) {
    differs("model.max_seq", std::to_string(model.max_seq), std::to_string(shape_.max_seq));
  }
}

std::unique_ptr<Tokenizer> InitialWeights::tokenizer() const {
  try {
    if (!impl_->reader) return find_tokenizer(impl_->folder, "");
    const nlohmann::json json = impl_->reader->tokenizer();
    return json.is_null() ? nullptr : tokenizer_from_json(json);
  } catch (const Error&) {
    return nullptr;
  }
}

void InitialWeights::check_tokens(const Tokenizer& here, std::span<const int32_t> ids,
                                  const Place& place, Diagnostics& diagnostics) const {
  const std::unique_ptr<Tokenizer> there = tokenizer();
  if (!there || here.to_json() == there->to_json()) return;
  const auto is_of_numbers = [](const Tokenizer& one) {
    return one.to_json().value("type", "") == "ids";
  };
  if (is_of_numbers(here) || is_of_numbers(*there)) return;
  // Two files may be one tokenizer, and some take a space from before a text.
  const auto text_of = [](const Tokenizer& one, int32_t id) {
    const std::string text = one.decode({&id, 1});
    return text.substr(std::min(text.find_first_not_of(' '), text.size()));
  };
  std::set<int32_t> seen;
  for (const int32_t id : ids) {
    // Also what fills up sequences is no token.
    if (id < 0 || id == here.eod() || id == there->eod() || id >= there->vocab_size()) continue;
    if (!seen.insert(id).second) continue;
    const std::string mine = text_of(here, id), theirs = text_of(*there, id);
    // A byte of a longer character is shown by each in its own way.
    const char* const broken = "\xEF\xBF\xBD";
    if (mine == theirs || mine.find(broken) != mine.npos || theirs.find(broken) != theirs.npos)
      continue;
    const fs::path file = impl_->folder / kTokenizerFile;
    diagnostics.add(
        {.code = "init.tokenizer",
         .what = fmt::format("the model of init.from has another tokenizer: token {} is {} here, "
                             "{} there",
                             id, tokenizer::shown(mine), tokenizer::shown(theirs)),
         .place = place,
         .notes = {"init.from is " + path_},
         .help = fmt::format("take its own, data.tokenizer.type=auto data.tokenizer.file={}, or a "
                             "corpus that was made with it",
                             (fs::exists(file) ? file : impl_->folder).string())});
    return;
  }
}

namespace {

// With its parts of the whole.
void fill(const CheckpointTensor& tensor, const std::vector<float>& whole) {
  ElementWriter elements(tensor);
  for (const ParamRect& rect : tensor.rects) {
    for (RunCursor run(tensor.shape, rect.global_offset, tensor.local_shape, rect.local_offset,
                       rect.extent);
         !run.done(); run.next()) {
      elements.write(run.b() - tensor.first, {reinterpret_cast<const char*>(whole.data() + run.a()),
                                              static_cast<size_t>(run.length()) * sizeof(float)});
    }
  }
  elements.flush();
}

}  // namespace

void InitialWeights::read(CheckpointTensor& tensor) const {
  const auto found = impl_->shapes.find(tensor.name);
  if (found != impl_->shapes.end()) tensor.shape = found->second;
  if (impl_->merged) {
    if (tensor.rects.empty()) return;  // nothing of it is this rank's
    fill(tensor, impl_->merged->read(tensor.name, tensor.shape));
  } else if (impl_->reader) {
    impl_->reader->read(tensor);
  } else {
    impl_->foreign->weights.read(tensor);
  }
}

nlohmann::json InitialWeights::origin() const {
  nlohmann::json origin = {{"from", path_}};
  if (impl_->foreign) origin["kind"] = impl_->foreign->kind;
  if (!impl_->reader || impl_->merged) return origin;
  const nlohmann::json imported =
      impl_->reader->state().value("imported", nlohmann::json::object());
  // A run that has trained the model since has no such entry.
  if (imported.contains("from")) origin["kind"] = imported.at("from");
  if (imported.contains("path")) origin["from"] = imported.at("path");
  return origin;
}

nlohmann::json model_beside_adapters(const std::string& path) {
  return path.empty() ? nlohmann::json() : InitialWeights(path).origin();
}

namespace {

// What fp16 has no number for would be infinite, and nothing would train it smaller.
void require_numbers_of_fp16(CheckpointTensor& tensor) {
  tensor.store = [name = tensor.name, store = tensor.store](int64_t at, int64_t n,
                                                            const void* from) {
    const auto* const values = static_cast<const float*>(from);
    for (int64_t i = 0; i < n; ++i) {
      if (!is_beyond_fp16(values[i])) continue;
      fail_data("init.range",
                fmt::format("'{}' has a weight of {}, and the largest number of fp16 is 65504",
                            name, values[i]),
                "use precision.dtype=bf16, which holds it");
    }
    store(at, n, from);
  };
}

}  // namespace

void load_initial_weights(const std::string& path, Trainer& trainer) {
  const InitialWeights weights(path);
  for (const ParameterState& parameter : trainer.state()) {
    if (is_adapter(*parameter.row)) continue;  // of this run alone
    CheckpointTensor tensor;
    tensor.name = parameter.row->name;
    tensor.shape = parameter.row->shape;
    tensor.local_shape = parameter.local_shape;
    tensor.rects = parameter.rects;
    tensor.first = parameter.part.first;
    point_at(tensor, trainer.device(), parameter.master);
    const bool is_fp16 = parameter.master.weights && !parameter.master.rests &&
                         parameter.master.weights.dtype == DType::f16;
    if (is_fp16) require_numbers_of_fp16(tensor);
    weights.read(tensor);
  }
  trainer.weights_changed();
}

}  // namespace mtl
