#include "sweep/settings.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace mtl::sweep {

void Settings::set(const std::string& key, const std::string& value) {
  erase(key);
  all_.emplace_back(key, value);
}

void Settings::erase(std::string_view key) {
  std::erase_if(all_, [&](const auto& setting) { return setting.first == key; });
}

std::string Settings::text(std::string_view key) const {
  const auto found = std::find_if(all_.begin(), all_.end(),
                                  [&](const auto& setting) { return setting.first == key; });
  return found == all_.end() ? std::string() : found->second;
}

int64_t Settings::number(std::string_view key, int64_t fallback) const {
  const std::string value = text(key);
  int64_t number = fallback;
  std::from_chars(value.data(), value.data() + value.size(), number);
  return number;
}

Settings Settings::with(const Settings& others) const {
  Settings both = *this;
  for (const auto& [key, value] : others.all_) both.set(key, value);
  return both;
}

std::vector<std::string> Settings::overrides() const {
  std::vector<std::string> words;
  for (const auto& [key, value] : all_) words.push_back(fmt::format("{}={}", key, value));
  return words;
}

int Settings::world() const {
  int64_t world = 1;
  for (const char* axis : {"tp", "pp", "cp", "ep", "dp"}) {
    world *= number(fmt::format("parallel.{}", axis), 1);
  }
  return static_cast<int>(world);
}

SpecSources sources_of(const Settings& settings, const std::string& train_yaml) {
  SpecSources sources;
  sources.train_yaml = train_yaml;
  sources.overrides = settings.overrides();
  return sources;
}

bool plan_of(const Settings& settings, const std::string& train_yaml, int64_t vocab,
             Planned& planned) {
  Diagnostics diagnostics;
  const ResolvedSpec resolved = load_spec(sources_of(settings, train_yaml), diagnostics);
  planned.refusal.clear();
  if (!diagnostics.has_errors() && resolved.complete) {
    planned.spec = resolved.spec;
    planned.plan =
        make_plan(resolved, {.vocab = vocab, .sequences = 100}, settings.world(), diagnostics);
    if (!diagnostics.has_errors()) return true;
  }
  for (const Diagnostic& diagnostic : diagnostics.all()) planned.refusal += render(diagnostic);
  return false;
}

}  // namespace mtl::sweep
