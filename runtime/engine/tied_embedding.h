// The gradient of a tied embedding whose two uses are on one rank. The input side's part is
// collected apart, a row for each distinct token of the step, and added to the head's part at the
// end: in that order the sum has the same bits as when the two parts come from two stages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/model/context.h"

namespace mtl {

class TiedEmbedding {
 public:
  // Does nothing where the plan has no "tied.grad".
  TiedEmbedding(Device& device, const Arena& arena, const Parameters& parameters,
                const VocabShard& shard);
  void begin_step();
  // Gives every token of a micro-batch its row, in the slot's "tied.slots".
  void load(std::span<const int32_t> tokens, int slot);
  // Adds the collected rows to the gradient.
  void merge();

 private:
  Device& device_;
  const VocabShard shard_;
  Buffer slots_;
  Tensor rows_, ids_, grad_;
  std::vector<int32_t> row_of_;       // by local id; -1 = none yet
  std::vector<int32_t> ids_of_rows_;  // global ids
  std::vector<int32_t> host_;
};

}  // namespace mtl
