#include "launcher/agent/error_file.h"

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"

namespace mtl {

namespace {

constexpr size_t kMaxBytes = 4 << 20;  // a callstack of any depth

// A number, or one in quotes as torch writes it; 0 = none.
int64_t seconds_in(const nlohmann::json& object) {
  const auto found = object.find("timestamp");
  if (found == object.end()) return 0;
  if (found->is_number()) return static_cast<int64_t>(found->get<double>());
  if (!found->is_string()) return 0;
  return std::strtoll(found->get_ref<const std::string&>().c_str(), nullptr, 10);
}

}  // namespace

std::optional<ErrorFile> read_error_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  try {
    const auto whole = nlohmann::json::parse(read_file(path, kMaxBytes));
    const nlohmann::json& message = whole.at("message");
    ErrorFile error;
    int64_t seconds = 0;
    if (message.is_string()) {
      error.message = message.get<std::string>();
      seconds = seconds_in(whole);
    } else {
      error.message = message.at("message").get<std::string>();
      const auto extra = message.find("extraInfo");
      if (extra != message.end() && extra->is_object()) seconds = seconds_in(*extra);
    }
    if (seconds > 0 && seconds < int64_t{1} << 33) {
      error.when = std::chrono::system_clock::time_point(std::chrono::seconds(seconds + 1) -
                                                         std::chrono::milliseconds(1));
    }
    return error;
  } catch (const nlohmann::json::exception&) {
  } catch (const Error&) {
  }
  return std::nullopt;
}

}  // namespace mtl
