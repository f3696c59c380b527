// Which rows of a pass the head multiplies. Targets that do not count in the loss (what is asked in
// a conversation, padding) need no logits, and a head is large: where they are many it takes the
// others alone, gathered, as cut cross-entropy (E. Wijmans et al., arXiv 2411.09009) leaves them
// out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mtl {

struct CountedRows {
  // How many the head multiplies; 0: all of the pass, as they lie, and nothing is filled below.
  // Of 16 sizes one: a device records a pass for each (Device::replay).
  int64_t rows = 0;
  // Of each of them: its row of the pass, and its target. The last ones fill up, without a target;
  // there is one at least.
  std::vector<int32_t> rows_of_pass, targets;
  // Of each row of the pass: where among them its gradient lies. Rows that do not count have that
  // of a filling one, which is 0.
  std::vector<int32_t> places;

  // `targets`: of a pass, negative where they do not count.
  void take(std::span<const int32_t> targets_of_pass);
};

}  // namespace mtl
