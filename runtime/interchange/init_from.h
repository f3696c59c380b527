// init.from: a run that starts from somebody's weights, in any layout, with a fresh optimizer.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/data.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

class Trainer;

class InitialWeights {
 public:
  // A run or checkpoint of mtl, a Hugging Face folder, or a Megatron checkpoint. Throws Error
  // (Exit::data), code init.missing when it is none of them, else as their readers.
  explicit InitialWeights(const std::string& path);
  ~InitialWeights();

  // One error init.mismatch for each setting that makes `model` another model. Learned positions
  // and vocabulary may be more there than here: the first ones are taken.
  void check(const ModelShape& model, const std::function<Place(const std::string& key)>& place_of,
             Diagnostics& diagnostics) const;
  // An error init.tokenizer if some of `ids`, which `here` has made of what is trained on, are
  // other texts by the model's own tokenizer. Whose tokenizer is not known is not held to it.
  void check_tokens(const Tokenizer& here, std::span<const int32_t> ids, const Place& place,
                    Diagnostics& diagnostics) const;
  // As model_beside_adapters().
  nlohmann::json origin() const;
  // Fills the parts that a rank owns. The tensor's shape is set to what it is there.
  void read(CheckpointTensor& tensor) const;

 private:
  struct Impl;
  std::unique_ptr<Tokenizer> tokenizer() const;  // null = it has none that can be read

  std::string path_;
  ModelShape shape_;
  std::unique_ptr<Impl> impl_;
};

// What checkpoints with adapters say of the model that these stand beside: where it was, {"from"},
// and what it was there, {"kind"}, as ForeignModel has it, if mtl was given it by others.
nlohmann::json model_beside_adapters(const std::string& path);

// Each rank reads its rectangles into the master weights. After Trainer::initialise(). Throws Error
// (Exit::data) init.range where fp16 cannot hold a weight that is not trained.
void load_initial_weights(const std::string& path, Trainer& trainer);

}  // namespace mtl
