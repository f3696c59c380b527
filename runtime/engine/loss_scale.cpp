#include "runtime/engine/loss_scale.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace mtl {

LossScale::LossScale(const TrainSpec::Precision::LossScale& settings, bool dynamic)
    : settings_(settings),
      dynamic_(dynamic),
      value_(dynamic ? settings.initial : 1.0),
      overflows_left_(settings.hysteresis) {}

void LossScale::step_done(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    good_steps_ = 0;
    if (--overflows_left_ <= 0) value_ = std::max(settings_.min, value_ / 2);
    return;
  }
  if (++good_steps_ < settings_.window) return;
  good_steps_ = 0;
  overflows_left_ = settings_.hysteresis;
  value_ *= 2;
}

nlohmann::json LossScale::to_json() const {
  return {{"value", value_}, {"good_steps", good_steps_}, {"overflows_left", overflows_left_}};
}

void LossScale::restore(const nlohmann::json& json) {
  if (!dynamic_) return;
  json.at("value").get_to(value_);
  json.at("good_steps").get_to(good_steps_);
  json.at("overflows_left").get_to(overflows_left_);
}

}  // namespace mtl
