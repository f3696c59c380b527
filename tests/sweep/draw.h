// Random runs: a model, a text and a length, ways to divide it that have to agree, and what happens
// to the runs on their way.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "support/hash.h"
#include "sweep/settings.h"

namespace mtl::sweep {

// Numbers that follow from the seed alone.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(test::splitmix64(seed)) {}
  // 0 .. n - 1
  int64_t below(int64_t n) {
    state_ = test::splitmix64(state_ + 0x9e3779b97f4a7c15u);
    return static_cast<int64_t>((state_ >> 11) % static_cast<uint64_t>(n));
  }
  bool chance(double p) { return static_cast<double>(below(1 << 20)) < p * (1 << 20); }
  template <class T>
  T pick(std::initializer_list<T> of) {
    return of.begin()[below(static_cast<int64_t>(of.size()))];
  }
  template <class T>
  const T& pick_of(const std::vector<T>& of) {
    return of[static_cast<size_t>(below(static_cast<int64_t>(of.size())))];
  }

 private:
  uint64_t state_;
};

// What is claimed of two ways to run the same. The first is also held against one plain rank, but
// for the last three.
enum class Claim {
  same_again,    // the very same run: the same bits
  same_bits,     // only the work is divided otherwise: the same bits
  resumed_bits,  // the first until a checkpoint, then divided otherwise: the same bits
  resumed_near,  // the same, but sums have another order: within the bounds
  killed_bits,   // ended at random moments and started again, each time otherwise: the same bits
  changed_bits,  // from a checkpoint of the first on something is changed (its batch, its text):
                 // the same bits in both layouts
  begun_bits,    // new runs that begin from the weights of the first: the same bits in both
};

// What new runs begin from (init.from): all of these have the weights of the first run.
enum class Source {
  run,           // its folder
  checkpoint,    // its last checkpoint
  resharded,     // that with the files of another layout
  hugging_face,  // exported
  imported,      // exported and imported
};

struct Case {
  uint64_t seed = 0;
  Claim claim = Claim::same_bits;
  Settings common;  // what is trained
  Settings first;   // how, over it
  Settings other;
  Settings changed;  // what runs have besides that go on from the first, or begin from it
  Source source = Source::run;   // of the other's weights; the first's are those of the run
  bool batch_of_layout = false;  // train.accumulate: one rank would have another batch
  bool counts_links = false;     // the bytes of a step are held to the plan too
  bool diverges = false;         // numbers that are none, on purpose: nothing is near anything
};

// `folder` has the texts (texts.h) and an empty train.yaml.
Case draw_case(uint64_t seed, const std::string& folder);

}  // namespace mtl::sweep
