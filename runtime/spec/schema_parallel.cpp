// How the ranks share the work.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section parallel_section() {
  return {
      .docs =
          {
              {"parallel", "How the ranks share the work. It never changes the model."},
              {"parallel.overlap", "What communication runs beside computation."},
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
              {.key = "parallel.cp",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.cp; },
               .doc = "Context parallelism: ranks that share the tokens of every sequence, for "
                      "sequences whose activations one rank cannot hold. For attention they "
                      "exchange tokens for heads (DeepSpeed-Ulysses): `tp` x `cp` divides "
                      "`model.heads`, and a micro-batch is one sequence.",
               .min = 1,
               .max = 1 << 16,
               .known_as = {"context_parallel_size", "cp_size", "context_parallel_degree",
                            "ulysses_sequence_parallel_size", "ulysses_degree",
                            "megatron_lm_context_parallel_size", "context_parallel"}},
              {.key = "parallel.ep",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.ep; },
               .doc = "Expert parallelism: ranks that divide the experts of a mixture, and send "
                      "each other the rows of tokens for them. They have sequences of their own "
                      "and are replicas of all else. It divides `model.moe.experts`.",
               .min = 1,
               .max = 1 << 16,
               .known_as = {"expert_model_parallel_size", "expert_parallel_size", "ep_size",
                            "megatron_lm_expert_model_parallel_size", "expert_parallel_degree"}},
              {.key = "parallel.ep_room",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.ep_room; },
               .doc = "With `parallel.ep`, rows that a rank's experts have memory for, in parts of "
                      "an even share. No token is dropped: a micro-batch that sends some rank more "
                      "goes through the experts in turns, which takes longer.",
               .min = 1,
               .max = 1e6,
               .known_as = {"moe_expert_capacity_factor", "capacity_factor"}},
              {.key = "parallel.dp",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.dp; },
               .doc = "Data parallelism: replicas of the model (with `parallel.ep` there are ep x "
                      "dp).",
               .auto_doc = "world size / (tp x cp x ep x pp)",
               .min = 1,
               .max = 1 << 20,
               .known_as = {"data_parallel_size", "dp_degree", "dp_size", "data"}},
              {.key = "parallel.sp",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.sp; },
               .doc =
                   "Sequence parallelism: between the parts that tensor parallelism divides, each "
                   "of the tp ranks keeps its share of the tokens.",
               .choices = {{"auto", "where tp > 1 and the tokens divide"},
                           {"true", "always; an error where it cannot be"},
                           {"false", "never"}},
               .known_as = {"sequence_parallel", "sequence_parallelism", "sequence_parallel_size",
                            "megatron_lm_sequence_parallelism"}},
              {.key = "parallel.virtual_stages",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.virtual_stages; },
               .doc =
                   "Chunks of layers per pipeline rank (interleaved pipeline): the bubble is that "
                   "much smaller.",
               .min = 1,
               .max = 1 << 10,
               .known_as = {"virtual_pipeline_model_parallel_size", "vpp", "vp_size",
                            "num_layers_per_virtual_pipeline_stage",
                            "num_virtual_stages_per_pipeline_rank"}},
              {.key = "parallel.virtual_group",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.virtual_group; },
               .doc = "Micro-batches that take one chunk in turn, with several virtual stages.",
               .auto_doc = "`parallel.pp`",
               .min = 1,
               .max = kMany,
               .known_as = {"microbatch_group_size_per_vp_stage",
                            "microbatch_group_size_per_virtual_pipeline_stage"}},
              {.key = "parallel.schedule",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.schedule; },
               .doc = "Order of the micro-batches in the pipeline; the result is the same.",
               .choices =
                   {{"1f1b",
                     "one forward, one backward; interleaved with several virtual "
                     "stages"},
                    {"gpipe", "all forwards, then all backwards"},
                    {"zb-h1",
                     "1f1b, interleaved or not, whose stages make gradients of weights where "
                     "they would wait: a third of its bubble, and on no stage more under way "
                     "than it has on the first"}},
               .refused = {{"interleaved", "1f1b", ""},
                           {"interleaved1f1b", "1f1b", ""},
                           {"zb_h1", "zb-h1", ""},
                           {"zero-bubble", "zb-h1", ""},
                           {"zb1p", "zb-h1", ""},
                           {"interleavedzerobubble", "zb-h1", ""},
                           {"zbvzerobubble", "", kNotYet},
                           {"dualpipev", "", kNotYet}},
               .known_as = {"pipeline_schedule", "pipeline_parallel_schedule"}},
              {.key = "parallel.stage_layout",
               .field = [](TrainSpec& s) -> Field {
                 return WordOrList{&s.parallel.stage_balance, &s.parallel.stage_layout};
               },
               .doc =
                   "Layers of each virtual stage (pp x `virtual_stages` of them), in the order of "
                   "the model; or how they are divided.",
               .example = "[3, 4, 4, 3]",
               .min = 0,
               .max = 1e5,
               .choices = {{"uniform",
                            "the same number for each; an error where it does not divide"},
                           {"balanced", "the same work for each, embedding and head counted"}},
               .refused = {{"parameters", "balanced", ""}, {"even", "uniform", ""}},
               .known_as = {"pipeline_model_parallel_layout", "partition_method",
                            "decoder_first_pipeline_num_layers",
                            "decoder_last_pipeline_num_layers"}},
              {.key = "parallel.zero",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.zero; },
               .doc = "ZeRO: 0 keeps everything on every replica, 1 divides the optimizer state "
                      "over dp x ep x cp ranks, 2 the gradients too, 3 the weights too (FSDP). 2 "
                      "and 3 communicate with every micro-batch, and take no pipeline.",
               .min = 0,
               .max = 3,
               .known_as = {"use_distributed_optimizer", "zero_stage", "zero_optimization",
                            "distributed_optimizer", "megatron_lm_use_distributed_optimizer",
                            "stage"}},
              {.key = "parallel.zero_ranks",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.zero_ranks; },
               .doc = "With ZeRO, neighbouring ranks that together have one copy of what it "
                      "divides: usually those of a machine (FSDP's hybrid shards). Weights are "
                      "gathered among them alone, and gradients summed over the copies once per "
                      "step. A multiple of tp x cp x ep.",
               .auto_doc = "all ranks of a stage: one copy",
               .min = 1,
               .max = 1 << 20,
               .known_as = {"zero_hpz_partition_size", "mics_shard_size", "dp_shard_size",
                            "data_parallel_shard_degree", "parallelism_config_dp_shard_size"}},
              {.key = "parallel.overlap.grad_reduce",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.overlap.grad_reduce; },
               .doc =
                   "Gradients are reduced over dp x ep x cp ranks while the backward pass goes on.",
               .known_as = {"overlap_grad_reduce", "overlap_comm"}},
              {.key = "parallel.overlap.param_gather",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.overlap.param_gather; },
               .doc = "With ZeRO, weights are gathered while the next forward pass goes on; with "
                      "ZeRO-3 those of the next layer in every pass.",
               .choices = {{"auto", "where there is something to gather"},
                           {"true", "an error without ZeRO or `parallel.overlap.grad_reduce`"},
                           {"false",
                            "never: the step ends when all weights are there; with ZeRO-3 "
                            "each layer waits for its own"}},
               .known_as = {"overlap_param_gather"}},
              {.key = "parallel.overlap.p2p",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.overlap.p2p; },
               .doc = "What a pipeline stage sends leaves while it goes on computing.",
               .known_as = {"overlap_p2p_communication", "overlap_p2p_comm"}},
              {.key = "parallel.overlap.tp",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.overlap.tp; },
               .doc = "The gradient of the input is reduced over tp while that of the weight is "
                      "computed.",
               .choices = {{"auto", "where it takes nothing from the computation: on GPUs"},
                           {"true", "always"},
                           {"false", "never"}},
               .known_as = {"tp_comm_overlap", "async_tensor_model_parallel_allreduce"}},
              {.key = "parallel.bucket_mb",
               .field = [](TrainSpec& s) -> Field { return &s.parallel.bucket_mb; },
               .doc = "Gradients that travel together, in MB of fp32.",
               .auto_doc = "as the number of replicas asks; with ZeRO-2 and 3 a layer",
               .min = 0,
               .max = 1e6,
               .above_min = true,
               .known_as = {"bucket_cap_mb", "ddp_bucket_size", "bucket_size", "reduce_bucket_size",
                            "allreduce_bucket_size"}},
          },
      .unavailable =
          {
              {"parallel.order", "ranks are ordered tp-cp-ep-dp-pp"},
              {"parallel.timeout", "there is no such limit to set"},
          },
  };
}

Section recompute_section() {
  return {
      .docs =
          {
              {"recompute",
               "Activations that are computed again in the backward pass instead of being kept. It "
               "never changes the result."},
          },
      .rows =
          {
              {.key = "recompute.mode",
               .field = [](TrainSpec& s) -> Field { return &s.recompute.mode; },
               .doc = "What is computed again.",
               .choices = {{"none", "nothing"},
                           {"selective", "`recompute.modules`, of every layer or of some"},
                           {"full", "whole layers: only their inputs are kept"}},
               .refused = {{"true", "full", ""},
                           {"false", "none", ""},
                           {"null", "none", ""},
                           {"off", "none", ""}},
               .known_as = {"recompute_granularity", "recompute_activations",
                            "activation_checkpointing", "gradient_checkpointing",
                            "activations_checkpoint_granularity", "granularity",
                            "checkpoint_activations"}},
              {.key = "recompute.method",
               .field = [](TrainSpec& s) -> Field { return &s.recompute.method; },
               .doc = "Which layers, with mode full.",
               .auto_doc = "uniform",
               .choices = {{"uniform", "all, in groups of `recompute.layers` that share one input"},
                           {"block", "the first `recompute.layers` of each chunk"}},
               .known_as = {"recompute_method", "activations_checkpoint_method"}},
              {.key = "recompute.layers",
               .field = [](TrainSpec& s) -> Field { return &s.recompute.layers; },
               .doc =
                   "With mode full: layers per group (uniform), or layers of each chunk that are "
                   "computed again (block).",
               .auto_doc = "uniform: 1; block: all",
               .min = 1,
               .max = 1e5,
               .known_as = {"recompute_num_layers", "activations_checkpoint_num_layers",
                            "num_checkpoints", "number_checkpoints"}},
              {.key = "recompute.modules",
               .field = [](TrainSpec& s) -> Field {
                 return CountedWords{&s.recompute.modules, &s.recompute.module_layers};
               },
               .doc = "Parts of each layer, with mode selective; of one with a number only in so "
                      "many layers of each chunk, its first ones.",
               .example = "[norm, mlp_act: 7]",
               .min = 1,
               .max = 1e5,
               .choices = {{"core_attn", "attention between its two linear layers"},
                           {"mlp_act", "the activation of the feed-forward block"},
                           {"norm", "the normalisations"},
                           {"latent_up",
                            "queries, keys and values of `model.latent`, from the latents"},
                           {"mlp", "the feed-forward block"}},
               .refused = {{"core_attention", "core_attn", ""},
                           {"layernorm", "norm", ""},
                           {"mla_up_proj", "latent_up", ""},
                           {"moe_act", "", kNotYet},
                           {"moe", "", kNotYet}},
               .known_as = {"recompute_modules"}},
              {.key = "recompute.distribute",
               .field = [](TrainSpec& s) -> Field { return &s.recompute.distribute; },
               .doc = "With mode full, each of the tp ranks keeps its share of the saved inputs.",
               .known_as = {"distribute_saved_activations", "partition_activations"}},
          },
  };
}

}  // namespace mtl::spec
