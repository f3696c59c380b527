#include "runtime/metrics/record.h"

#include <cmath>
#include <limits>

namespace mtl {

namespace {

constexpr const char* kPeak = "peak";

double number(const Json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end() || !found->is_number()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return found->get<double>();
}

int64_t integer(const Json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

}  // namespace

std::string json_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json step_json(const StepReport& report, const std::string& time) {
  Json json;
  json["step"] = report.step;
  json["time"] = time;
  json["loss"] = report.loss;
  json["lr"] = report.lr;
  json["grad_norm"] = report.grad_norm;
  json["tokens_per_s"] = report.tokens_per_s;
  json["step_time_s"] = report.step_time_s;
  json["mfu"] = report.mfu;
  json["mfu_of"] = report.mfu_of_peak ? kPeak : "measured";
  json["mfu_of_flops"] = report.mfu_of;
  json["memory_bytes"] = report.memory_bytes;
  if (report.loss_scale > 0) json["loss_scale"] = report.loss_scale;
  if (report.moe_aux_loss > 0) {
    json["moe_aux_loss"] = report.moe_aux_loss;
    json["moe_z_loss"] = report.moe_z_loss;
  }
  if (report.moe_turns > 0) json["moe_turns"] = report.moe_turns;
  if (report.skipped > 0) json["skipped"] = report.skipped;
  return json;
}

StepReport step_from_json(const Json& record) {
  StepReport report;
  report.step = integer(record, "step");
  report.steps = integer(record, "steps");
  report.loss = number(record, "loss");
  report.lr = number(record, "lr");
  report.grad_norm = number(record, "grad_norm");
  report.tokens_per_s = number(record, "tokens_per_s");
  report.step_time_s = number(record, "step_time_s");
  report.mfu = number(record, "mfu");
  report.mfu_of = number(record, "mfu_of_flops");
  report.mfu_of_peak = record.value("mfu_of", "") == kPeak;
  report.memory_bytes = integer(record, "memory_bytes");
  report.eta_s = number(record, "eta_s");
  report.skipped = integer(record, "skipped");
  if (record.contains("loss_scale")) report.loss_scale = number(record, "loss_scale");
  if (record.contains("moe_aux_loss")) {
    report.moe_aux_loss = number(record, "moe_aux_loss");
    report.moe_z_loss = number(record, "moe_z_loss");
  }
  if (record.contains("moe_turns")) report.moe_turns = number(record, "moe_turns");
  return report;
}

}  // namespace mtl
