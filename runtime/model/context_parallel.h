// Context parallelism: each of the `cp` ranks has an even share of the tokens of every sequence,
// rank r those from r n on, and attention alone looks beyond it. For attention the ranks exchange
// tokens for heads (all-to-all; DeepSpeed-Ulysses, arXiv 2309.14509): each has all tokens of 1/cp
// of the heads, and the ops of attention are those of one rank. Of several sequences each goes its
// way after the other.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"

namespace mtl {

class ContextParallel {
 public:
  // `blocks`: memory for what is on its way of a sequence; empty where there is one rank. A pass
  // that `device` replays communicates anew each time. They outlive this.
  ContextParallel(Device& device, Communicator& group, Tensor blocks)
      : device_(device), group_(group), blocks_(blocks) {}

  int size() const { return group_.size(); }
  int rank() const { return group_.rank(); }

  // Columns of heads: q, k and v, say. Heads that are fewer than the ranks go to several of them.
  using Sections = std::array<ColumnSection, 3>;
  // Of `heads` heads of a TP rank, `head_dim` columns each.
  ColumnSection section(int64_t heads, int64_t head_dim) const;
  // `share` [sequences n, c], all heads of the rank's tokens, becomes `whole` [sequences size n,
  // w], its heads of all tokens.
  void scatter_heads(int64_t sequences, Tensor share, Tensor whole, const Sections& sections) const;
  // And back; of a head that several ranks have, the sum.
  void gather_heads(int64_t sequences, Tensor whole, Tensor share, const Sections& sections) const;
  // What a rank has of each of its tokens, of all tokens.
  void gather(int64_t sequences, Tensor share, Tensor whole) const;

 private:
  ColumnBlocks blocks_of(Tensor share, Tensor whole, const Sections& sections) const;
  void exchange(Tensor from, Tensor to) const;

  Device& device_;
  Communicator& group_;
  Tensor blocks_;
};

}  // namespace mtl
