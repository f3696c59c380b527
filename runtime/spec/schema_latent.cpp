// Attention whose keys and values are made of few elements of a token.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section latent_section() {
  return {
      .docs = {{"model.latent",
                "Latent attention (DeepSeek): keys and values are made of few elements of a token, "
                "its latents, behind an RMS norm."}},
      .rows = {{.key = "model.latent.kv_rank",
                .field = [](TrainSpec& s) -> Field { return &s.model.latent.kv_rank; },
                .doc = "Elements that all heads' keys and values are made of (DeepSeek-V3: 512). "
                       "`model.head_dim` is that of queries and keys then (192).",
                .auto_doc = "0: keys and values are made of the stream itself",
                .min = 0,
                .max = 1 << 20,
                .known_as = {"kv_lora_rank", "kv_latent_dim"}},
               {.key = "model.latent.q_rank",
                .field = [](TrainSpec& s) -> Field { return &s.model.latent.q_rank; },
                .doc =
                    "Elements that all heads' queries are made of, likewise (DeepSeek-V3: 1536).",
                .auto_doc = "0: queries are made of the stream itself (DeepSeek-V2-Lite)",
                .min = 0,
                .max = 1 << 20,
                .known_as = {"q_lora_rank"}},
               {.key = "model.latent.rope_dim",
                .field = [](TrainSpec& s) -> Field { return &s.model.latent.rope_dim; },
                .doc =
                    "Of a head's `model.head_dim` elements, what is rotated: its last ones, in "
                    "pairs of neighbours. Of keys they are one vector for all heads, made of the "
                    "stream.",
                .min = 2,
                .max = 1 << 16,
                .known_as = {"qk_rope_head_dim", "qk_pos_emb_head_dim"}},
               {.key = "model.latent.value_dim",
                .field = [](TrainSpec& s) -> Field { return &s.model.latent.value_dim; },
                .doc = "Width of a head's values, at most `model.head_dim`.",
                .auto_doc = "what of `model.head_dim` is not rotated",
                .min = 1,
                .max = 1 << 16,
                .known_as = {"v_head_dim"}},
               {.key = "model.latent.norm_eps",
                .field = [](TrainSpec& s) -> Field { return &s.model.latent.norm_eps; },
                .doc = "Added to the mean square in the norms of the latents.",
                .min = 0,
                .max = 1,
                .above_min = true}},
  };
}

}  // namespace mtl::spec
