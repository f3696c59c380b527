// How latent attention makes queries, keys and values (DeepSeek-V2, arXiv 2405.04434, (9) to (19)):
//
//   latents = kv_down(x), kv = kv_up(norm(the first kv_rank of these)), and q =
//   q_up(norm(q_down(x))) or q_up(x); a head's key is its part of kv and the rest of the latents,
//   rotated
//
// All of it lies within the tensor-parallel region. What is made of x alone, every rank makes
// (kv_down, q_down and their norms); behind that it has its own heads. So the gradients of those
// are, on each rank, what its heads give, as that of x is (ParamRow::grad_sum_over).
#pragma once

#include "runtime/model/linear.h"

namespace mtl {

class LatentQkv {
 public:
  // `again`: what backward makes again of the layer.
  LatentQkv(const BlockContext& context, int64_t layer, const PartsAgain& again);
  // From all rows of the normalised stream to the qkv of the rank's own tokens, keys and queries
  // rotated.
  void forward(const Pass& pass, Tensor x, Tensor qkv) const;
  // The same from what forward has kept, where backward is to make it again.
  void forward_again(const Pass& pass, Tensor qkv) const;
  // From the gradient of qkv to the rank's part of that of x, and to those that
  // backward_weights() needs, of the same pass.
  void backward_input(const Pass& pass, Tensor dqkv, Tensor dx) const;
  void backward_weights(const Pass& pass, Tensor x) const;

 private:
  // A latent and its norm.
  struct Latent {
    Latent(const BlockContext& context, int64_t layer, const char* name, const std::string& norm);
    Parameter gamma;
    Buffer before, rstd, normed;
  };
  LayerNorm norm(const Pass& pass, const Latent& latent) const;
  Tensor norm_forward(const Pass& pass, const Latent& latent) const;
  // As forward has left it, or made again.
  Tensor normed(const Pass& pass, const Latent& latent) const;
  void norm_backward(const Pass& pass, const Latent& latent, Tensor dnormed, Tensor dbefore) const;
  LatentHeads heads(const Pass& pass, Tensor qkv) const;
  LatentHeads heads_backward(const Pass& pass, Tensor dqkv) const;
  bool has_query_latent() const { return context_.shape.latent.q_rank > 0; }
  // The first `columns` of scratch rows.
  Tensor dnormed(const Pass& pass, int64_t columns) const;

  const BlockContext& context_;
  bool norms_again_;
  Latent query_, key_;
  Linear q_down_, q_, kv_down_, kv_;
  Tensor rope_table_;
  Buffer position_ids_;
  // Of forward, which may keep the queries; and gradients, in scratch too or left for later.
  Buffer queries_, pairs_, latents_, rotary_key_;
  Buffer dqueries_, dpairs_, dlatents_, dquery_latent_, dkey_latent_;
  Tensor dnormed_;
};

}  // namespace mtl
