// The model as numbers: what is needed to know every parameter and buffer. Pure data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/plan/rope_scaling.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

// The first multiple that is not below `value`.
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

enum class NormType { layernorm, rmsnorm };
enum class NormPlace { input, output, both };  // of a block: of what it reads, of what it adds
enum class Activation { gelu_tanh, swiglu, gelu_exact, geglu, quick_geglu };
// As train.yaml has them.
const char* activation_name(Activation activation);
const char* norm_place_name(NormPlace place);
enum class PositionType { learned, rope, alibi, none };

// Whose names and weight layouts the parameters have in public: GPT-2's (Conv1D, [in, out], one
// fused QKV) where the model is one, else Llama's ([out, in], Q, K and V apart).
enum class Family { gpt2, llama };

struct ModelShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;  // token ids are 0..vocab-1
  int64_t vocab_pad_to = 1;
  int64_t padded_vocab = 0;  // rows in memory: vocab rounded up to vocab_pad_to, whatever TP is
  int64_t max_seq = 0;
  NormType norm = NormType::layernorm;
  double norm_eps = 1e-5;
  NormPlace norm_place = NormPlace::input;
  std::optional<bool> norm_bias;  // of layer norms, where it is not the usual one
  Activation activation = Activation::gelu_tanh;
  double glu_offset = 0, glu_clamp = 0;  // of a gated one (device/op_arguments.h, GatedUnit)
  PositionType position = PositionType::learned;
  double rope_base = 10000;
  double rope_fraction = 1;  // of each head, that is rotated: its first elements
  RopeScaling rope_scaling;
  // Of layers with a window, whose frequencies are not scaled (Gemma 3); 0 = as of the others.
  double window_rope_base = 0;
  std::vector<int64_t> unrotated_layers;  // rotate nothing; ascending, not all
  bool qk_norm = false;
  bool qk_norm_whole = false;  // of all queries of a token at once, and of all keys
  // A layer adds attention and feed-forward block of its own input, each behind its own norm, at
  // once (GPT-NeoX); or else the one behind the other.
  bool parallel_residual = false;
  bool shared_norm = false;   // of such a layer: both read the result of one
  double residual_scale = 1;  // what a block adds is multiplied by
  // Latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are made of kv_rank elements
  // of a token behind an RMS norm, and the last rope_dim of a head's head_dim, alone rotated, are
  // one key for all heads; queries are made of q_rank elements likewise, or of the stream (0).
  // kv_rank 0 = no such attention.
  struct Latent {
    int64_t kv_rank = 0, q_rank = 0, rope_dim = 0, value_dim = 0;
    double norm_eps = 1e-6;
  } latent;
  bool bias = true;
  bool qkv_bias = true;  // of the projection to queries, keys and values: Qwen2 has this one alone
  // Queries see the newest this many positions, their own included (Mistral); 0 = all before them.
  int64_t sliding_window = 0;
  std::vector<int64_t> full_layers;  // have no window all the same; ascending, not all
  double attention_scale = 0;        // of scores; 0 = 1 / sqrt(head_dim)
  double attention_cap = 0;          // of scaled scores (device/op_arguments.h); 0 = none
  double logit_cap = 0;
  bool attention_sinks = false;  // each head has a score of no key (device/op_arguments.h)
  // Mixture of experts (Mixtral): the feed-forward block of a layer is this many, each of width
  // `ffn`, of which each token takes `experts_per_token`; 0 = one block for all.
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  // Layers that are no mixtures all the same, ascending, not all; and the width of their blocks.
  std::vector<int64_t> dense_layers;
  int64_t dense_layer_ffn = 0;
  double moe_aux_loss = 0;  // weights of the two losses of a router (device/op_arguments.h)
  double moe_z_loss = 0;
  // What an expert weighs (device/op_arguments.h).
  struct MoeScores {
    bool sigmoid = false, normalize = true;
    double scale = 1;
    int64_t groups = 1, group_topk = 1;
    int64_t group_best = 0;  // 0 = topk / group_topk
    int64_t best_of_group(int64_t topk) const {
      if (group_best > 0 && groups > 1) return group_best;
      return std::max<int64_t>(1, topk / group_topk);
    }
  } moe_scores;
  // Width of the block that all tokens go through beside their experts, 0 = none; and whether its
  // output is multiplied with the sigmoid of a score (Qwen2-MoE).
  int64_t shared_ffn = 0;
  bool shared_gate = false;
  bool expert_bias = false;  // experts are chosen by score + a bias, which balances them
  bool tie_embeddings = true;
  double embedding_scale = 1;  // what the tokens' vectors are multiplied by, but not a tied head
  double logit_scale = 1;      // what logits are multiplied by, before their cap
  bool head_bias = false;
  double dropout_hidden = 0;
  double dropout_attention = 0;
  double init_std = 0.02;
  // Low-rank adapters (LoRA, arXiv 2106.09685), which are trained in place of all else: beside a
  // linear W of out x in, A of rank x in and B of out x rank, y = W x + alpha / rank B A x. Linears
  // that make queries, keys and values have one A together, and so have gate and up.
  struct Lora {
    int64_t rank = 0;  // 0 = none
    double alpha = 0;
    bool qkv = false, proj = false, up = false, down = false;
    explicit operator bool() const { return rank > 0; }
    double scale() const { return alpha / static_cast<double>(rank); }
    // Whether the linear of that slot of a layer (shard_table.h) has one; experts have none.
    bool adapts(const std::string& slot) const;
  } lora;

  Family family() const;
  bool has_latents() const { return latent.kv_rank > 0; }
  // Elements of a head's values, and of what attention makes of them.
  int64_t value_dim() const { return has_latents() ? latent.value_dim : head_dim; }
  int64_t query_width() const { return heads * head_dim; }
  int64_t key_width() const { return kv_heads * head_dim; }
  int64_t value_width() const { return kv_heads * value_dim(); }
  int64_t context_width() const { return heads * value_dim(); }
  // Of latents: what the first product of keys and values gives, and, for each head, the second.
  int64_t latent_width() const { return latent.kv_rank + latent.rope_dim; }
  int64_t latent_pair() const { return head_dim - latent.rope_dim + latent.value_dim; }
  // Elements of a head that are rotated; rounded down, as transformers and Megatron do.
  int64_t rotary_dim() const {
    if (has_latents()) return latent.rope_dim;
    return static_cast<int64_t>(static_cast<double>(head_dim) * rope_fraction);
  }
  // Positions that the queries of a layer see; 0 = all before them. And in how many of the layers
  // [begin, end) they see all in spite of sliding_window.
  int64_t window_of(int64_t layer) const;
  int64_t full_layers_in(int64_t begin, int64_t end) const;
  // Whether a layer rotates queries and keys, and whether with frequencies of windows alone.
  bool rotates(int64_t layer) const;
  bool rotates_by_window(int64_t layer) const {
    return window_rope_base > 0 && window_of(layer) > 0 && rotates(layer);
  }
  // Whether norms have a bias. Layer norms usually have one whatever the linear layers have, as
  // torch's and Megatron's; only a GPT-2 without biases has none there either, as nanoGPT's.
  bool has_norm_bias() const;
  // Whether the gradient of what a block adds, before a norm behind it, is that of the stream.
  bool adds_as_it_is() const { return dropout_hidden == 0 && residual_scale == 1; }
  bool norms_inputs() const { return norm_place != NormPlace::output; }
  bool norms_outputs() const { return norm_place != NormPlace::input; }
  // Whether one matrix of the MLP is a gate of another.
  bool gated() const {
    return activation != Activation::gelu_tanh && activation != Activation::gelu_exact;
  }
  // Columns of the MLP's first matmul per unit of ffn: gate and up, or up alone.
  int64_t mlp_parts() const { return gated() ? 2 : 1; }
  // Which layers are mixtures; and of layers [begin, end) how many.
  bool is_mixture(int64_t layer) const;
  int64_t mixtures_in(int64_t begin, int64_t end) const;
  int64_t mixtures() const { return mixtures_in(0, layers); }
  // The model as its dense layers see it, without experts. What tells of one layer (what follows
  // here, flops_per_token_of_layer, layer_linears, ...) tells of a mixture where the shape has
  // experts: of a dense layer it is asked with this one.
  ModelShape of_dense_layers() const;
  // The model as it is without adapters.
  ModelShape without_adapters() const;
  // Width of the feed-forward block that all tokens go through.
  int64_t dense_ffn() const { return experts > 0 ? shared_ffn : ffn; }
  // Whether experts have Mixtral's names, or those of Qwen's mixtures and DeepSeek's.
  bool names_of_mixtral() const;
  // Width of all feed-forward blocks that a token goes through.
  int64_t active_ffn() const { return experts > 0 ? experts_per_token * ffn + shared_ffn : ffn; }
  // Feed-forward blocks that a token chooses, or the one that there is; each of width ffn.
  int64_t active_experts() const { return experts > 0 ? experts_per_token : 1; }
};

// The shape of each layer of a model, for what tells of one; its window and its rotation, which no
// parameter knows of, are asked for by its number.
class LayerShapes {
 public:
  explicit LayerShapes(const ModelShape& model) : model_(model) {
    if (!model.dense_layers.empty()) dense_ = model.of_dense_layers();
  }
  const ModelShape& of(int64_t layer) const {
    return dense_ && !model_.is_mixture(layer) ? *dense_ : model_;
  }

 private:
  const ModelShape& model_;
  std::optional<ModelShape> dense_;
};

ModelShape model_shape(const TrainSpec& spec, int64_t vocab);

// What a checkpoint says of its model: everything that its weights depend on.
nlohmann::json to_json(const ModelShape& shape);
ModelShape model_shape_from_json(const nlohmann::json& json);

}  // namespace mtl
