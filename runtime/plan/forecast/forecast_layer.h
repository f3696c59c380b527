// What a layer is made of and keeps, in closed form (memory.cpp has it buffer by buffer): for
// forecasts of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/forecast/stage_params.h"

namespace mtl {

// Rows and widths of a rank's tensors, in elements.
struct KeptSizes {
  KeptSizes(const Workload& work, const LayoutChoice& layout, const Software& software);
  double n, stream, h, heads, kv_heads, context, qkv, ffn, shared, rows;
  // Of latent attention, on the way to qkv: as many columns of scratch, of which backward leaves
  // the first so many for later.
  double head_dim, latent_pair, latents_kept, latents;
  double queries() const { return heads * head_dim; }
  double pairs() const { return heads * latent_pair; }
  double dense() const { return shared > 0 ? shared : ffn; }  // of the linears that are no expert's
  bool travels;                                               // rows, to experts of other ranks,
  double expert_rows;  // and so many have room at those of a rank
  double parts, vocab, e;
  // Of attention, per token of the rank: where ranks exchange heads, some may have copies.
  double own_kv_heads, own_qkv;
  double copies;  // of its result: by head and by token
  Float8Linears fp8;
};

// Bytes.
struct LayerKept {
  double always = 0;  // what a layer keeps with this recompute
  double again = 0;   // what it makes again, in one region for all layers
  double input = 0;   // of which its input
  double later = 0;   // what ZB-H1 leaves for later, beside that
};

// What a layer is made of, and what it keeps: of all, or of a mixture and of a dense layer.
struct LayerMemory {
  LayerMemory(const Workload& work, const LayoutChoice& layout, const Software& software);
  const LayerKept& kept(const PartsAgain& parts, bool in_float8) const;
  // What lies free in so many layers of a bucket, before it is filled up.
  StageParams free(int64_t layers) const;
  KeptSizes d;
  StageParams params, first_free, two_free;  // what lies free in one and in two of them
  double float8;                             // elements that have copies
  double backward;                           // bytes of its feed-forward block's backward

 private:
  struct KeptWith {
    PartsAgain parts;
    LayerKept plain, in_float8;
  };
  std::vector<KeptWith> kept_;  // with all parts that the layout's recompute has
};

StageParams sum(const StageParams& a, const StageParams& b);

}  // namespace mtl
