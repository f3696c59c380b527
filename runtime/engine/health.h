// Finds the first number that is none: after a step whose loss or gradient is not finite, its
// passes run once more with a look at everything that is made. Costs nothing while all is well, and
// names the place instead of the consequence.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/device/device.h"
#include "runtime/engine/rank_groups.h"
#include "runtime/model/context.h"
#include "runtime/plan/plan.h"

namespace mtl {

class NotFiniteSearch {
 public:
  NotFiniteSearch(const Plan& plan, int rank, Device& device);

  void weights(const ParamRow& row, Tensor weights);
  // What is made from now on belongs to this instruction.
  void begin(const Instruction& in) { at_ = in; }
  // Looks at what a block has made.
  const Inspect& inspect() const { return inspect_; }
  void gradient(const ParamRow& row, Tensor grad);

  // Collective over `world`: the earliest finding of all ranks as a sentence.
  std::string agree(Communicator& world) const;

 private:
  bool is_new(Tensor tensor) const;
  void found(int64_t layer, const std::string& what);

  const Plan& plan_;
  const int rank_;
  Device& device_;
  Inspect inspect_;
  Instruction at_;
  // Orders findings: weights, then micro-batches, within one forward before backward, and layers
  // in the order in which they run.
  int64_t key_;
  std::string text_;
};

}  // namespace mtl
