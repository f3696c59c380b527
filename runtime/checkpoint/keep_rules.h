// Which checkpoints of a run stay, as a function of their steps and metrics alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

struct KeepRules {
  int64_t last = 0;   // the newest so many; 0 = all stay, whatever the other rules say
  int64_t every = 0;  // beside them, those of every so manieth step; 0 = none
  int64_t best = 0;   // and so many with the best metric; 0 = none
  std::string metric = "valid_loss";  // under "metrics" in the state
  bool lowest = true;                 // is the best
};

struct SavedStep {
  int64_t step = 0;
  std::optional<double> metric = {};  // none, or not a number: never among the best
};

// Why one stays; not at all if nothing is true.
struct Kept {
  int64_t step = 0;
  bool last = false, every = false, best = false;
  bool stays() const { return last || every || best; }
  bool operator==(const Kept&) const = default;
};

// For each of `steps` (in any order, none twice), in their order. `fresh` is the one that has just
// been written: it counts as the newest and stays, wherever its step stands among the others.
std::vector<Kept> judge(const KeepRules& rules, const std::vector<SavedStep>& steps,
                        std::optional<int64_t> fresh = {});
// The step with the best metric; of equal ones the newest.
std::optional<int64_t> best_step(const KeepRules& rules, const std::vector<SavedStep>& steps);

}  // namespace mtl
