#include "runtime/metrics/run_state.h"

#include <algorithm>
#include <ctime>
#include <fstream>

#include <nlohmann/json.hpp>

#include "common/file_lock.h"
#include "rendezvous/network.h"
#include "runtime/metrics/format.h"

namespace mtl {

namespace {

constexpr int64_t kLongestSilence = 3600;  // seconds

std::string text_of_member(const nlohmann::json& json, const char* key) {
  if (!json.is_object()) return {};
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool was_launched_here(const std::filesystem::path& dir) {
  std::ifstream in(dir / "env.json");
  return text_of_member(nlohmann::json::parse(in, nullptr, false), "host") == host_name();
}

}  // namespace

std::string state_of_run(const std::filesystem::path& dir, const nlohmann::json& status,
                         const std::string& last_heard) {
  const std::string said = text_of_member(status, "state");
  if (said != "running" || is_locked(dir / kRunLock).value_or(true)) return said;
  // All times are UTC in one form, so text compares as they do.
  const std::string heard = std::max(last_heard, text_of_member(status, "time"));
  const bool silent = heard < utc_time(std::time(nullptr) - kLongestSilence);
  return silent || was_launched_here(dir) ? "lost" : said;
}

}  // namespace mtl
