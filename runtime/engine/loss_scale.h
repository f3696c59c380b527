// Dynamic loss scaling of fp16: small gradients would vanish, so the loss is multiplied by a scale
// that is doubled after `window` steps without overflow and halved when overflows use up the
// hysteresis (P. Micikevicius et al., arXiv 1710.03740; Megatron-LM's DynamicGradScaler).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/spec/train_spec.h"

namespace mtl {

class LossScale {
 public:
  // Scale 1 for ever unless `dynamic`.
  LossScale(const TrainSpec::Precision::LossScale& settings, bool dynamic);
  bool dynamic() const { return dynamic_; }
  double value() const { return value_; }
  // Whether it can still be lowered.
  bool at_minimum() const { return value_ <= settings_.min; }
  void step_done(bool overflow);

  nlohmann::json to_json() const;
  void restore(const nlohmann::json& json);

 private:
  TrainSpec::Precision::LossScale settings_;
  bool dynamic_;
  double value_ = 1;
  int64_t good_steps_ = 0;
  int64_t overflows_left_;
};

}  // namespace mtl
