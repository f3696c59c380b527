#include "runtime/metrics/record.h"

#include <cmath>
#include <limits>
#include <utility>

namespace mtl {

namespace {

constexpr const char* kPeak = "peak";

// What a line has, and its group.
constexpr std::pair<const char*, const char*> kScalars[] = {
    {"loss", "train/loss"},
    {"lr", "train/lr"},
    {"grad_norm", "train/grad_norm"},
    {"loss_scale", "train/loss_scale"},
    {"skipped", "train/skipped"},
    {"moe_aux_loss", "train/moe_aux_loss"},
    {"moe_z_loss", "train/moe_z_loss"},
    {"valid_loss", "valid/loss"},
    {"tokens_per_s", "speed/tokens_per_s"},
    {"learned_share", "train/learned_share"},
    {"step_time_s", "speed/step_time_s"},
    {"mfu", "speed/mfu"},
    {"moe_turns", "speed/moe_turns"},
    {"memory_bytes", "memory/bytes"},
};

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

// What the driver does not say is not there.
Json gpus_json(const GpusReport& gpus) {
  Json json = Json::object();
  if (gpus.power_w > 0) json["power_w"] = gpus.power_w;
  if (gpus.memory_bytes > 0) json["memory_bytes"] = gpus.memory_bytes;
  if (gpus.temperature_c > 0) json["temperature_c"] = gpus.temperature_c;
  if (gpus.clock_mhz > 0) {
    json["clock_mhz"] = gpus.clock_mhz;
    json["slowest_rank"] = gpus.slowest_rank;
  }
  if (!gpus.slowed.empty()) json["slowed"] = gpus.slowed;
  return json;
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
  if (report.learned_share < 1) json["learned_share"] = report.learned_share;
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
  if (report.gpus) json["gpus"] = gpus_json(*report.gpus);
  return json;
}

Json straggler_json(const StragglerReport& report) {
  Json json;
  json["rank"] = report.rank;
  json["host"] = report.host;
  json["device"] = report.device;
  json["phase"] = report.phase;
  json["factor"] = report.factor;
  json["job_speed"] = report.job_speed;
  return json;
}

std::vector<TaggedScalar> tagged_scalars(const Json& line) {
  std::vector<TaggedScalar> scalars;
  for (const auto& [key, tag] : kScalars) {
    if (line.contains(key)) scalars.push_back({tag, number(line, key)});
  }
  for (const auto& [key, value] : line.items()) {
    if (key.starts_with(kSetLoss)) {
      scalars.push_back({"valid/loss/" + key.substr(kSetLoss.size()), number(line, key.c_str())});
    }
  }
  const auto gpus = line.find("gpus");
  if (gpus == line.end()) return scalars;
  for (const auto& [key, value] : gpus->items()) {
    if (value.is_number()) scalars.push_back({"gpu/" + key, value.get<double>()});
  }
  return scalars;
}

StepReport step_from_json(const Json& record) {
  StepReport report;
  report.step = integer(record, "step");
  report.steps = integer(record, "steps");
  report.loss = number(record, "loss");
  report.lr = number(record, "lr");
  report.grad_norm = number(record, "grad_norm");
  report.tokens_per_s = number(record, "tokens_per_s");
  if (record.contains("learned_share")) report.learned_share = number(record, "learned_share");
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
  if (const auto gpus = record.find("gpus"); gpus != record.end() && gpus->is_object()) {
    report.gpus = GpusReport{.power_w = gpus->contains("power_w") ? number(*gpus, "power_w") : 0,
                             .memory_bytes = integer(*gpus, "memory_bytes"),
                             .clock_mhz = static_cast<int>(integer(*gpus, "clock_mhz")),
                             .slowest_rank = static_cast<int>(integer(*gpus, "slowest_rank")),
                             .temperature_c = static_cast<int>(integer(*gpus, "temperature_c")),
                             .slowed = {}};
  }
  return report;
}

}  // namespace mtl
