#include "sweep/shrink.h"

#include <map>
#include <vector>

namespace mtl::sweep {

namespace fs = std::filesystem;

namespace {

// Smaller values that a number may take.
std::vector<std::string> smaller(const std::string& key, const std::string& value) {
  static const std::map<std::string, std::vector<std::string>> kSmaller = {
      {"model.layers", {"1", "2", "3"}},
      {"model.heads", {"1", "2", "4"}},
      {"model.hidden", {"8", "16"}},
      {"train.steps", {"1", "2", "3"}},
      {"train.global_batch", {"1", "2", "4"}},
      {"train.seq_len", {"4", "8", "16"}},
      {"parallel.tp", {"2"}},
      {"parallel.pp", {"2"}},
      {"parallel.cp", {"2"}},
      {"parallel.dp", {"2"}},
      {"parallel.ep", {"2"}},
      {"model.moe.experts", {"2"}},
      {"parallel.virtual_stages", {"2"}},
      {"train.micro_batch", {"1"}}};
  std::vector<std::string> values;
  const auto found = kSmaller.find(key);
  if (found == kSmaller.end()) return values;
  for (const std::string& one : found->second) {
    if (one.size() < value.size() || (one.size() == value.size() && one < value)) {
      values.push_back(one);
    }
  }
  return values;
}

// Takes a setting away, where it is alone or in both layouts.
template <class Attempt>
bool try_without(const Case& smallest, Settings Case::*part, const std::string& key,
                 const Attempt& attempt) {
  Case candidate = smallest;
  (candidate.*part).erase(key);
  if (attempt(candidate)) return true;
  if (part != &Case::first || smallest.other.text(key).empty()) return false;
  candidate.other.erase(key);
  return attempt(candidate);
}

}  // namespace

Case shrink(const Case& drawn, const Failure& failure, const fs::path& folder, What what) {
  Case smallest = drawn;
  Tally ignored;
  bool found = true;
  const auto attempt = [&](const Case& candidate) {
    const auto now = check_case(candidate, folder, what, ignored);
    if (!now || now->kind != failure.kind) return false;
    smallest = candidate;
    found = true;
    return true;
  };
  while (found) {
    found = false;
    for (const Claim simpler : {Claim::same_bits, Claim::resumed_bits}) {
      if (smallest.claim <= simpler) break;
      Case candidate = smallest;
      candidate.claim = simpler;
      if (attempt(candidate)) break;
    }
    for (Settings Case::*part : {&Case::common, &Case::first, &Case::other, &Case::changed}) {
      const Settings before = smallest.*part;
      for (const auto& setting : before.all()) {
        if (try_without(smallest, part, setting.first, attempt)) continue;
        for (const std::string& less : smaller(setting.first, setting.second)) {
          Case candidate = smallest;
          (candidate.*part).set(setting.first, less);
          if (attempt(candidate)) break;
        }
      }
    }
  }
  return smallest;
}

}  // namespace mtl::sweep
