// Mixture of experts.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section experts_section() {
  return {
      .docs =
          {
              {"model.moe",
               "Mixture of experts, as Mixtral: every layer has several feed-forward blocks, and "
               "each token goes through some of them; none is dropped."},
          },
      .rows =
          {
              {.key = "model.moe.experts",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.experts; },
               .doc = "Feed-forward blocks of a layer, each of width `model.moe.ffn`; 0: one for "
                      "all tokens, without a router.",
               .min = 0,
               .max = 1024,
               .known_as = {"num_experts", "num_local_experts", "n_experts", "n_routed_experts",
                            "moe_num_experts"}},
              {.key = "model.moe.topk",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.topk; },
               .doc = "Experts that each token goes through: those that the router scores highest, "
                      "weighted by their scores. With `model.moe.normalize` one alone would always "
                      "weigh 1, and the router would not learn.",
               .min = 1,
               .max = 1024,
               .known_as = {"moe_router_topk", "num_experts_per_tok", "router_topk", "top_k",
                            "experts_per_token", "num_experts_per_token"}},
              {.key = "model.moe.ffn",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.ffn; },
               .doc = "Width of an expert, where it is not that of the dense layers.",
               .auto_doc = "`model.ffn`",
               .min = 1,
               .max = 1 << 24,
               .known_as = {"moe_ffn_hidden_size", "moe_intermediate_size", "expert_ffn"}},
              {.key = "model.moe.every",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.every; },
               .doc =
                   "Mixtures are layers 0, N, 2 N, ...; the others are dense, one block of width "
                   "`model.ffn`. 1: all are mixtures.",
               .min = 1,
               .max = 1e5,
               .known_as = {"moe_layer_freq", "moe_layer_frequency"}},
              {.key = "model.moe.dense_layers",
               .field = [](TrainSpec& s) -> Field {
                 return WordOrList{&s.model.moe.dense_choice, &s.model.moe.dense_layers};
               },
               .doc = "Layers that are dense all the same, numbered from 0: those at the beginning "
                      "of DeepSeek-V3, any in others.",
               .example = "[0, 1, 2]",
               .min = 0,
               .max = 1e5,
               .choices = {{"none", "`model.moe.every` decides alone"}},
               .known_as = {"first_k_dense_replace", "mlp_only_layers", "first_dense"}},
              {.key = "model.moe.aux_loss",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.aux_loss; },
               .doc = "Weight of the load-balancing loss of every layer; it is that of each "
                      "sequence, 1 when balanced. 0.01 is usual; 0: none.",
               .min = 0,
               .max = 1000,
               .known_as = {"moe_aux_loss_coeff", "router_aux_loss_coef", "aux_loss_coeff",
                            "load_balancing_loss"}},
              {.key = "model.moe.z_loss",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.z_loss; },
               .doc = "Weight of the z-loss of every layer, which keeps the router's scores small. "
                      "0.001 is usual; 0: none.",
               .min = 0,
               .max = 1000,
               .known_as = {"moe_z_loss_coeff", "router_z_loss_coef", "z_loss_coeff"}},
              {.key = "model.moe.score",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.score; },
               .doc = "What an expert weighs.",
               .choices = {{"softmax", "its probability among all experts"},
                           {"sigmoid", "of its own score, whatever the others have (DeepSeek-V3)"}},
               .known_as = {"moe_router_score_function", "scoring_func", "score_function"}},
              {.key = "model.moe.normalize",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.normalize; },
               .doc = "The weights of a token's experts are divided by their sum. Mixtral and "
                      "Qwen3 do that, Qwen2's mixtures do not.",
               .known_as = {"norm_topk_prob", "normalize_topk"}},
              {.key = "model.moe.scale",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.scale; },
               .doc = "The weights of a token's experts are multiplied by this in the end "
                      "(DeepSeek-V3: 2.5). The losses of the router do not see it.",
               .min = 0,
               .max = 1e4,
               .above_min = true,
               .known_as = {"moe_router_topk_scaling_factor", "routed_scaling_factor",
                            "topk_scaling_factor", "route_scale"}},
              {.key = "model.moe.groups",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.groups; },
               .doc = "Neighbouring experts form this many groups of the same size, and a token "
                      "takes experts of its best `model.moe.group_topk` groups alone; 1: of all.",
               .min = 1,
               .max = 64,
               .known_as = {"moe_router_num_groups", "n_group", "num_expert_group", "num_groups"}},
              {.key = "model.moe.group_topk",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.group_topk; },
               .doc = "Groups of a token. The score of a group is the sum of those of its best "
                      "`model.moe.group_best` experts, with `model.moe.expert_bias` the biased "
                      "ones.",
               .min = 1,
               .max = 64,
               .known_as = {"moe_router_group_topk", "topk_group"}},
              {.key = "model.moe.group_best",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.group_best; },
               .doc = "Experts of a group whose scores add up to its own (DeepSeek-V2: 1, V3: 2).",
               .auto_doc = "`model.moe.topk` / `model.moe.group_topk`, rounded down, as "
                           "Megatron-LM has it",
               .min = 1,
               .max = 1 << 16},
              {.key = "model.moe.shared_ffn",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.shared_ffn; },
               .doc = "Width of one more block in every layer, which all tokens go through beside "
                      "their experts; 0: none.",
               .min = 0,
               .max = 1 << 24,
               .known_as = {"moe_shared_expert_intermediate_size",
                            "shared_expert_intermediate_size", "shared_expert_ffn"}},
              {.key = "model.moe.shared_gate",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.shared_gate; },
               .doc =
                   "The output of that block is multiplied with the sigmoid of a score that each "
                   "token gets for it (Qwen2's mixtures).",
               .known_as = {"moe_shared_expert_gate", "shared_expert_gate"}},
              {.key = "model.moe.expert_bias",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.expert_bias; },
               .doc =
                   "Balance without a loss (DeepSeek-V3): experts are chosen by score plus a bias "
                   "of each expert, which after every step rises where the global batch brought "
                   "fewer tokens than the mean, and falls where it brought more. It needs "
                   "`model.moe.score: sigmoid`.",
               .known_as = {"moe_router_enable_expert_bias", "use_expert_bias",
                            "e_score_correction_bias"}},
              {.key = "model.moe.bias_rate",
               .field = [](TrainSpec& s) -> Field { return &s.model.moe.bias_rate; },
               .doc =
                   "How much the biases of `model.moe.expert_bias` move in a step; 0 leaves them "
                   "as they are.",
               .min = 0,
               .max = 1,
               .known_as = {"moe_router_bias_update_rate", "bias_update_speed",
                            "bias_update_rate"}},
          },
      .unavailable =
          {
              {"model.moe.capacity", "no token is dropped"},
              {"model.moe.dispatcher", "rows travel by all-to-all (parallel.ep)"},
          },
  };
}

}  // namespace mtl::spec
