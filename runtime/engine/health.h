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
  NotFiniteSearch(const Plan& plan, Device& device);

  // What the step began with; `row` is the parameter's in the plan's table.
  void weights(size_t row, Tensor weights);
  // What is made from now on belongs to this instruction.
  void begin(const Instruction& in) { at_ = in; }
  // Looks at what a block has made.
  const Inspect& inspect() const { return inspect_; }
  // Looks at a gradient after `layer` has added to it (a tied embedding has two layers that do).
  void gradient(int64_t layer, const ParamRow& row, Tensor grad);

  // Collective over `world`: the earliest finding of all ranks as a sentence.
  std::string agree(Communicator& world) const;

 private:
  bool is_new(Tensor tensor) const;
  void found(int64_t layer, const std::string& what);

  const Plan& plan_;
  Device& device_;
  Inspect inspect_;
  Instruction at_;
  // Orders findings: weights as in the shard table, then micro-batches, within one forward before
  // backward, and layers in the order in which they run.
  int64_t key_;
  std::string text_;  // without the rank: several may have found the same
};

}  // namespace mtl
