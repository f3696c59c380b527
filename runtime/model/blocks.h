// The blocks of a GPT decoder, each with a hand-written forward and backward. What forward saves
// for backward is declared in the memory plan (runtime/plan/memory/memory_activations.cpp) and
// looked up by name; what recompute drops from that list, backward makes again.
//
// The last thing that a layer's block does forward is to add to the residual stream, the first is
// to normalise it: the one is left to the next block, which does both at once.
//
// Backward works on the gradient of the residual stream, in place: a block adds what flows through
// it to `dresidual`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/model/branch_end.h"
#include "runtime/model/dispatch.h"
#include "runtime/model/float8_rows.h"
#include "runtime/model/input_gradient.h"
#include "runtime/model/latent_qkv.h"
#include "runtime/model/linear.h"
#include "runtime/model/norm.h"
#include "runtime/model/shared_expert.h"
#include "runtime/model/whole_norm.h"

namespace mtl {

// tokens -> residual stream: token embedding (split over the vocabulary) + learned positions if the
// model has them, dropout.
class EmbeddingBlock {
 public:
  // `output`: the planned buffer of the residual stream.
  EmbeddingBlock(const BlockContext& context, const std::string& output);
  void forward(const Pass& pass) const;
  void backward(const Pass& pass) const;

 private:
  // Times model.embedding_scale: the tokens' vectors, or their gradient.
  void scale(Tensor rows) const;
  void add_positions(const Pass& pass, Tensor stream) const;
  void positions_backward(const Pass& pass, Tensor dx) const;
  // The positions of this rank's rows, where they do not simply count.
  Tensor stream_position_ids(const Pass& pass) const;

  const BlockContext& context_;
  VocabShard shard_;
  Parameter tokens_, positions_;
  // With a tied head on the same rank the gradient is collected by distinct token: row ids, rows.
  Buffer tied_slots_, tied_grad_;
  Buffer ids_, output_, branch_, position_ids_, dresidual_;
};

// The attention of one of `parts` ranks (tp x cp) that divide the heads, but for the sequences, the
// dropout's key and the first head.
AttentionShape attention_of(const ModelShape& shape, int64_t layer, int parts);

// x + dropout(proj(attention(qkv(norm(x))))), or with norms elsewhere (branch_end.h); heads split
// over TP, and from qkv to proj over CP too.
class AttentionBlock {
 public:
  // `again`: what backward makes again of it.
  AttentionBlock(const BlockContext& context, int64_t layer, const PartsAgain& again);
  // `before` makes the block's input, if that is still to be done; returns what makes its output.
  ResidualAdd forward(const Pass& pass, const ResidualAdd& before) const;
  void backward(const Pass& pass) const;
  // What backward of the same pass has left for later: the gradients of the linears' weights and
  // biases.
  void weight_grads(const Pass& pass) const;

  // The parts of the above, for parallel_layer.h. From all rows of the normalised stream to
  // attention's result, and from there to the rank's part of the block's, with its bias or without.
  const Norm& norm() const { return norm_; }
  void attend_to(const Pass& pass, Tensor x) const;
  void project(const Pass& pass, Tensor branch, bool with_bias) const;
  // And back. `dbranch`: of all rows; `dstream`: the rank's, of what the bias was added to.
  void project_backward(const Pass& pass, Tensor dbranch, Tensor dstream) const;
  // `to`: but for dnormed and amax, which are the block's.
  void backward(const Pass& pass, InputGradient to) const;

 private:
  // Of a pass as whole_sequences() makes it, as all here but where it says otherwise.
  AttentionShape attention_shape(const Pass& whole) const;
  // The norms of Q and K, each head's, then rotary positions, in place.
  void place_heads(const Pass& whole) const;
  void place_heads_backward(const Pass& whole, Tensor dqkv) const;
  HeadNorm head_norm(const Pass& whole, bool query) const;
  // Of what the TP rank has for each of its heads, the part of the heads whose attention is here.
  Tensor own_heads(Tensor of_tp_rank) const;
  Rope rope(const Pass& whole, Tensor qkv) const;
  // Where q, k and v of the rank's own tokens are made, and from there to attention's result of
  // these (of a pass as the rank has it).
  Tensor own_qkv(const Pass& pass) const;
  // From there to those of the rank's heads, where the sequence is divided.
  void scatter_qkv(const Pass& pass) const;
  void attend(const Pass& pass) const;
  Tensor lse(const Pass& pass, const AttentionShape& shape) const;
  // From the gradient of that result to those of q, k and v of the rank's own tokens.
  void attend_backward(const Pass& pass) const;
  void sinks_backward(const Pass& whole, const AttentionShape& shape, Tensor out,
                      Tensor dout) const;
  bool divides_sequence() const { return context_.cp.size() > 1; }
  // The gradient of the rank's own tokens, and of what the block has added to the stream.
  Tensor own_dqkv(const Pass& pass) const { return rows_of(dqkv_, in_later(pass)); }
  Tensor later_dstream(const Pass& pass) const {
    return stream_rows_of(context_, later_dstream_, in_later(pass));
  }
  // The normalised stream, for backward.
  Tensor normed_again(const Pass& pass) const;
  // From there on to the rank's part of the gradient of the normalised stream.
  void qkv_backward(const Pass& pass, Tensor dnormed) const;
  ContextParallel::Sections qkv_sections() const;
  ContextParallel::Sections attended_sections() const;

  const BlockContext& context_;
  int64_t layer_;
  PartsAgain again_;
  int64_t heads_, kv_heads_;  // of this rank's attention
  Norm norm_;
  BranchEnd end_;
  Linear qkv_linear_, proj_linear_;  // the first of no latents
  std::optional<LatentQkv> latents_;
  WholeNorm whole_norm_;
  Parameter q_norm_, k_norm_, sinks_;
  // `_by_head`: of all tokens of the rank's heads, where the sequence is divided.
  Buffer qkv_, raw_, q_rstd_, k_rstd_, lse_, attended_, attended_by_head_, output_;
  Buffer branch_, gathered_, dresidual_, dattended_, own_qkv_, dqkv_, dnormed_;
  Buffer later_dstream_;  // empty where nothing is left for later
  Buffer dattended_by_head_, dqkv_by_head_;
  // Of what it multiplies in FP8, and of what the block below does: dresidual, before and after.
  // Empty where that is not what these ops read and write (parallel_layer.h).
  Buffer dbranch_amax_, dinput_amax_;
  Tensor room_, rope_table_;
  Buffer first_key_, position_ids_;  // of documents in a sequence
};

// x + dropout(down(act(up(norm(x))))), act = GELU or SwiGLU; the inner dimension split over TP.
class MlpBlock {
 public:
  // `again` as of AttentionBlock; `output`: the planned buffer of the residual stream behind this
  // layer.
  MlpBlock(const BlockContext& context, int64_t layer, const PartsAgain& again,
           const std::string& output);
  // As AttentionBlock's; with pass.again there is no output.
  ResidualAdd forward(const Pass& pass, const ResidualAdd& before) const;
  void backward(const Pass& pass) const;
  void weight_grads(const Pass& pass) const;
  Tensor output(const Pass& pass) const { return stream_rows_of(context_, output_, pass); }

  Tensor branch(const Pass& pass) const { return rows_of(branch_, pass); }
  Tensor dresidual(const Pass& pass) const { return stream_rows_of(context_, dresidual_, pass); }

  // The parts of the above, as of AttentionBlock: up and activation, from all rows of the
  // normalised stream (GELU's exact form and SwiGLU only up with pass.again); down, which writes or
  // adds; and what makes the layer's output of the sum.
  const Norm& norm() const { return norm_; }
  void expand(const Pass& pass, Tensor x) const;
  void contract(const Pass& pass, Tensor sum, bool add) const;
  ResidualAdd output_of(const Pass& pass) const;
  // The gradient of the sum: dresidual, or of what dropout has let through, in `branch`.
  Tensor output_backward(const Pass& pass) const;
  void backward(const Pass& pass, Tensor dbranch, Tensor dstream, InputGradient to) const;

 private:
  // What the activation makes, of what `up` has made.
  void activate(const Pass& pass) const;
  // From the gradient of what `down` makes to that of the activation's input; writes `made`, if it
  // is one, again.
  void activation_backward(const Pass& pass, Tensor dbranch, Tensor made) const;
  Tensor dbefore_act(const Pass& pass) const { return rows_of(dbefore_act_, in_later(pass)); }
  Tensor later_dstream(const Pass& pass) const {
    return stream_rows_of(context_, later_dstream_, in_later(pass));
  }

  const BlockContext& context_;
  PartsAgain again_;
  bool leaves_weights_ = false;  // for weight_grads()
  Activation activation_;
  bool gated_;
  Norm norm_;
  BranchEnd end_;
  Linear up_, down_;
  Buffer before_act_, activated_, output_;
  Buffer branch_, gathered_, dresidual_, dbefore_act_, dactivated_, dnormed_;
  Buffer later_dstream_;  // as in AttentionBlock; of blocks side by side that one
  Buffer dbranch_amax_, dinput_amax_, activated_amax_, dbefore_act_amax_;  // as in AttentionBlock
};

// The same with experts: x + dropout(sum over a token's experts of weight *
// down(act(up(norm(x))))), SwiGLU (Mixtral, arXiv 2401.04088), and in the sum, if the model has it,
// what a block for all tokens makes. The router sees all tokens on every
// TP rank and decides the same there; the inner dimension of every expert is split over TP. Routing
// needs the numbers of tokens per expert on the host: one small copy forward and one backward.
class MoeBlock {
 public:
  // As MlpBlock's.
  MoeBlock(const BlockContext& context, int64_t layer, const PartsAgain& again,
           const std::string& output);
  ResidualAdd forward(const Pass& pass, const ResidualAdd& before) const;
  void backward(const Pass& pass) const;
  // Of tokens that went through the experts in turns these are made at once, since only one turn's
  // rows are there at a time; all else is as in MlpBlock.
  void weight_grads(const Pass& pass) const;
  Tensor output(const Pass& pass) const { return stream_rows_of(context_, output_, pass); }

 private:
  struct Expert {
    Linear up, down;
  };
  static std::vector<Expert> experts_of(const BlockContext& context, int64_t layer);
  // Calls work(expert, first row, rows) for every expert of the rank that has rows, idle(expert)
  // for others.
  static constexpr auto kNothing = [](const Expert&) {};
  template <class Work, class Idle = decltype(kNothing)>
  void each_expert(const Turn& turn, const Work& work, const Idle& idle = kNothing) const;
  // Where tokens [first, first + tokens) of a pass go. Counts of all ranks are in `counts`.
  ExpertRoutes routes(const Pass& pass, int64_t first, int64_t tokens, Tensor counts) const;
  ExpertRoutes routes(const Pass& pass) const;
  ExpertScores scores() const;
  // Whether what the experts make here has their biases: of what TP ranks add up one has them.
  bool adds_output_bias() const;
  // Scores all rows x of the normalised stream and chooses their experts.
  RowCounts route(const Pass& pass, Tensor x) const;
  // Calls work(turn) for all tokens at once, or for as many at a time as fit.
  template <class Work>
  void each_turn(const Pass& pass, const RowCounts& counts, const Work& work) const;
  // Rows for the experts and up, from the turn's rows of the normalised stream.
  void expand(const Turn& turn, Tensor x) const;
  // From x to the rank's part of the block's result, in `sum`.
  void through_experts(const Pass& pass, Tensor x, Tensor sum) const;
  void backward_through_experts(const Pass& pass) const;
  // Of a turn; x, dbranch, dnormed: all rows of the pass.
  void backward(const Turn& turn, Tensor x, Tensor dbranch, Tensor dnormed) const;
  void backward_inputs(const Turn& turn, Tensor x) const;
  // Of one linear of all experts, from what it was given and the gradient of what it gave, whose
  // largest magnitude is taken (Kind::dy) or there.
  void backward_weights(const Turn& turn, Linear Expert::*linear, Tensor x, Tensor dy,
                        Float8Rows::Kind dy_amax) const;
  // The gradient of the router's logits, from that of the weights; adds up the router's losses.
  void route_backward(const Pass& pass) const;
  void make_weight_grads(const Pass& pass) const;
  // Rows of what is left for later, or of scratch.
  Tensor dbefore_act(const Pass& pass, int64_t rows) const;
  Tensor dlogits(const Pass& pass) const;
  Tensor later_dstream(const Pass& pass) const {
    return stream_rows_of(context_, later_dstream_, in_later(pass));
  }

  const BlockContext& context_;
  PartsAgain again_;
  bool leaves_weights_ = false;  // for weight_grads()
  Norm norm_;
  BranchEnd end_;
  Linear router_;
  std::vector<Expert> experts_;  // of this rank
  const bool trains_experts_;    // beside adapters they stay as they are
  Float8Rows float8_;
  Dispatch dispatch_;
  std::optional<SharedExpert> shared_;
  Buffer logits_, weights_, chosen_, rows_, assignments_, counts_, turn_counts_;
  Buffer before_act_, activated_, output_;
  Buffer branch_, gathered_, dresidual_, dbefore_act_, dactivated_, dnormed_;
  Buffer dweights_, dlogits_, losses_, dinput_amax_;
  Buffer later_dstream_, later_dweighted_;
  Buffer sequence_experts_;  // of all tokens of sequences that are divided
  Tensor loss_sums_;         // of aux and z
  // Of the layer, with balance by biases: these, and the tokens of the step under way.
  Tensor expert_bias_, expert_counts_;
};

// Final norm, logits over the rank's part of the vocabulary, vocabulary-parallel cross-entropy.
// Logits are large and short-lived: they exist for as many tokens at a time as "logits" has rows,
// and become their own gradient, and the gradients that follow from it, while they are there. So
// forward of a training pass makes the gradients of the weight and of the norm's output as well.
class HeadBlock {
 public:
  explicit HeadBlock(const BlockContext& context);
  // Fills the losses per token, unless the pass has none; in training also adds to or writes the
  // gradient of the head.
  // `before` as of the other blocks.
  void forward(const Pass& pass, const ResidualAdd& before) const;
  // From what forward of the pass has left; writes the gradient of the residual stream.
  void backward(const Pass& pass) const;
  // Of the rows that it multiplies.
  Tensor losses(const Pass& pass) const { return loss_.in(pass.slot).slice(0, rows(pass)); }
  // After forward of a pass without losses: what the rank's part of the vocabulary [rows], padding
  // included, scores as the token that follows `row` of the pass.
  Tensor logits(const Pass& pass, int64_t row) const;

 private:
  static int64_t rows(const Pass& pass) {
    return pass.head_rows > 0 ? pass.head_rows : pass.tokens();
  }
  // Of `rows` rows that it multiplies from `first` on, in the first rows of the logits.
  CrossEntropy cross_entropy(const Pass& pass, int64_t first, int64_t rows) const;
  // Times model.logit_scale: what the head multiplies, or the gradient of that.
  void scale(Tensor rows) const;
  void make_logits(Tensor x, Tensor logits) const;
  // Of all rows of the pass, what the head multiplies, and the ones among them that it takes.
  Tensor normed_rows(const Pass& pass) const;
  Tensor taken(const Pass& pass, Tensor all) const;
  // From the gradient of these to that of all.
  void give_back(const Pass& pass, Tensor dtaken, Tensor dall) const;
  // And in training, in place of the logits, their gradient.
  void make_losses(const Pass& pass, const CrossEntropy& args, Tensor sums) const;

  const BlockContext& context_;
  VocabShard shard_;
  Norm norm_;
  Parameter head_, bias_;
  Buffer logits_, targets_, rows_, places_, row_max_, sums_, loss_;
  Buffer taken_, gathered_, dnormed_, dresidual_, dinput_amax_;
};

}  // namespace mtl
