// Which setting of a train.yaml a field of to_json(ModelShape) comes from, for those whose value
// makes another model. Not among them: max_seq and vocab, which weights may go on to with other
// values.
#pragma once

#include <utility>

namespace mtl {

inline constexpr std::pair<const char*, const char*> kShapeSettings[] = {
    {"layers", "model.layers"},
    {"hidden", "model.hidden"},
    {"heads", "model.heads"},
    {"kv_heads", "model.kv_heads"},
    {"head_dim", "model.head_dim"},
    {"ffn", "model.ffn"},
    {"activation", "model.activation"},
    {"norm", "model.norm.type"},
    {"norm_eps", "model.norm.eps"},
    {"norm_place", "model.norm.place"},
    {"norm_bias", "model.norm.bias"},
    {"position", "model.position.type"},
    {"rope_base", "model.position.base"},
    {"rope_fraction", "model.position.fraction"},
    {"rope_scaling", "model.position.scaling.type"},
    {"window_rope_base", "model.position.window_base"},
    {"unrotated_layers", "model.position.skip.layers"},
    {"bias", "model.bias"},
    {"qkv_bias", "model.qkv_bias"},
    {"qk_norm", "model.qk_norm"},
    {"qk_norm_whole", "model.qk_norm_whole"},
    {"latent_kv_rank", "model.latent.kv_rank"},
    {"latent_q_rank", "model.latent.q_rank"},
    {"latent_rope_dim", "model.latent.rope_dim"},
    {"latent_value_dim", "model.latent.value_dim"},
    {"latent_norm_eps", "model.latent.norm_eps"},
    {"parallel_residual", "model.parallel_residual"},
    {"shared_norm", "model.norm.shared"},
    {"residual_scale", "model.residual_scale"},
    {"embedding_scale", "model.embedding_scale"},
    {"logit_scale", "model.logit_scale"},
    {"head_bias", "model.head_bias"},
    {"sliding_window", "model.sliding_window"},
    {"full_layers", "model.full_attention.layers"},
    {"attention_scale", "model.attention_scale"},
    {"attention_cap", "model.attention_cap"},
    {"logit_cap", "model.logit_cap"},
    {"attention_sinks", "model.attention_sinks"},
    {"glu_offset", "model.glu_offset"},
    {"glu_clamp", "model.glu_clamp"},
    {"experts", "model.moe.experts"},
    {"experts_per_token", "model.moe.topk"},
    {"moe_score", "model.moe.score"},
    {"moe_normalize", "model.moe.normalize"},
    {"moe_scale", "model.moe.scale"},
    {"moe_groups", "model.moe.groups"},
    {"moe_group_topk", "model.moe.group_topk"},
    {"moe_group_best", "model.moe.group_best"},
    {"dense_layers", "model.moe.dense_layers"},
    {"expert_ffn", "model.moe.ffn"},
    {"shared_ffn", "model.moe.shared_ffn"},
    {"shared_gate", "model.moe.shared_gate"},
    {"expert_bias", "model.moe.expert_bias"},
    {"tie_embeddings", "model.tie_embeddings"}};

}  // namespace mtl
