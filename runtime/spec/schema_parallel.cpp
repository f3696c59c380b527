// How the ranks share the work.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section parallel_section() {
  return {
      .docs =
          {
              {"parallel", "How the ranks share the work. It never changes the model."},
          },
      .rows =
          {
              {.key = "parallel.tp",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.tp; },
               .doc = "Tensor parallelism: ranks that share every layer.",
               .min = 1,
               .max = 1 << 16,
               .known_as = {"tensor_model_parallel_size", "tp_degree", "tensor_parallel_size",
                            "tp_size", "megatron_lm_tp_degree", "tensor"}},
              {.key = "parallel.pp",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.pp; },
               .doc = "Pipeline parallelism: stages that the layers are divided into.",
               .min = 1,
               .max = 1 << 16,
               .known_as = {"pipeline_model_parallel_size", "pp_degree", "pipeline_parallel_size",
                            "pp_size", "megatron_lm_pp_degree", "pipeline"}},
              {.key = "parallel.dp",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.dp; },
               .doc = "Data parallelism: replicas of the model.",
               .auto_doc = "world size / (tp x pp)",
               .min = 1,
               .max = 1 << 20,
               .known_as = {"data_parallel_size", "dp_degree", "dp_size", "data"}},
          },
      .unavailable =
          {
              {"parallel.cp", "sequences are not divided over ranks"},
              {"parallel.ep", "there are no mixtures of experts"},
              {"parallel.sp", "activations between TP regions are replicated"},
              {"parallel.virtual_stages", "each rank holds one stage"},
              {"parallel.stage_layout", "layers are divided evenly over the stages"},
              {"parallel.zero", "every replica holds the whole optimizer state"},
              {"parallel.order", "ranks are ordered tp-dp-pp"},
              {"parallel.overlap", "communication does not overlap with computation"},
              {"parallel.bucket_mb", "gradients are reduced in one piece"},
              {"parallel.timeout", "there is no such limit to set"},
          },
  };
}

Section recompute_section() {
  return {
      .docs = {},
      .unavailable =
          {
              {"recompute", "activations are kept"},
          },
  };
}

Section launch_section() {
  return {
      .docs = {},
      .unavailable =
          {
              {"launch", "where to run stands in default_config.yaml, see `mtl config`"},
          },
  };
}

}  // namespace mtl::spec
