#include "launcher/settings/launch_config_place.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

namespace mtl {

namespace {

std::string home_expanded(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const char* home = std::getenv("HOME");
  return (home != nullptr ? home : "") + path.substr(1);
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace

std::string accelerate_config_path() {
  const std::string cache = variable("XDG_CACHE_HOME").value_or("~/.cache");
  const std::string home = variable("HF_HOME").value_or(cache + "/huggingface");
  return home_expanded(home) + "/accelerate/default_config.yaml";
}

std::string own_config_path() {
  std::string home = variable("XDG_CONFIG_HOME").value_or("");
  // The specification: a path that is not absolute is no path.
  if (!home.starts_with('/')) home = home_expanded("~/.config");
  return home + "/mtl/default_config.yaml";
}

std::string default_launch_config_path() {
  for (const std::string& path : {own_config_path(), accelerate_config_path()}) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return {};
}

bool means_no_config(const std::string& path) {
  std::error_code ignored;
  return path == "none" && !std::filesystem::exists(path, ignored);
}

}  // namespace mtl
