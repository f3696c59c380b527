// Batch, length, number formats, optimizer and learning rate.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section train_section() {
  return {
      .docs =
          {
              {"train", "Batch, length and seed."},
              {"train.eval", "Loss on the validation split."},
          },
      .rows =
          {
              {.key = "train.micro_batch",
               .field = [](TrainSpec& s) -> Field { return &s.train.micro_batch; },
               .doc = "Sequences that a replica takes at once; the rest of its share of the global "
                      "batch "
                      "follows in further micro-batches.",
               .auto_doc = "`train.global_batch` / dp, all at once",
               .min = 1,
               .max = kMany,
               .known_as = {"micro_batch_size", "batch_size", "per_device_train_batch_size",
                            "train_micro_batch_size_per_gpu"}},
              {.key = "train.global_batch",
               .field = [](TrainSpec& s) -> Field { return &s.train.global_batch; },
               .doc = "Sequences per step, over all ranks.",
               .example = "32",
               .required = true,
               .min = 1,
               .max = kMany,
               .known_as = {"global_batch_size", "train_batch_size"}},
              {.key = "train.seq_len",
               .field = [](TrainSpec& s) -> Field { return &s.train.seq_len; },
               .doc = "Tokens per sequence.",
               .example = "1024",
               .required = true,
               .min = 1,
               .max = 1 << 27,
               .known_as = {"seq_length", "sequence_length", "max_seq_length", "max_length",
                            "context", "block_size"}},
              {.key = "train.steps",
               .field = [](TrainSpec& s) -> Field { return &s.train.steps; },
               .doc = "Optimizer steps of the whole run.",
               .example = "1000",
               .required = true,
               .suffixes = true,
               .min = 1,
               .max = kSteps,
               .known_as = {"train_iters", "max_steps", "iterations", "max_iters", "num_steps",
                            "iters", "num_training_steps", "total_steps"}},
              {.key = "train.seed",
               .field = [](TrainSpec& s) -> Field { return &s.train.seed; },
               .doc = "Decides initial weights, dropout and the order of the data.",
               .min = 0,
               .max = 0x1p53,
               .known_as = {"random_seed"}},
              {.key = "train.eval.every",
               .field = [](TrainSpec& s) -> Field { return &s.train.eval.every; },
               .doc = "Steps between evaluations; 0: only at the end.",
               .suffixes = true,
               .min = 0,
               .max = kSteps,
               .known_as = {"eval_interval", "eval_steps", "eval_every"}},
              {.key = "train.eval.iters",
               .field = [](TrainSpec& s) -> Field { return &s.train.eval.iters; },
               .doc = "Global batches of the validation split per evaluation; 0: all of it.",
               .suffixes = true,
               .min = 0,
               .max = kSteps,
               .known_as = {"eval_iters", "eval_batches"}},
          },
      .unavailable =
          {
              {"train.samples", "the length of a run is given by `train.steps`"},
              {"train.tokens", "the length of a run is given by `train.steps`"},
              {"train.epochs", "the length of a run is given by `train.steps`"},
              {"train.accumulate",
               "`train.micro_batch` and `train.global_batch` decide how often gradients "
               "accumulate"},
              {"train.loss_norm", "the loss is the mean over the global batch's tokens"},
              {"train.deterministic", "there is no other mode to choose"},
          },
  };
}

Section precision_section() {
  return {
      .docs =
          {
              {"precision", "Number formats."},
          },
      .rows =
          {
              {.key = "precision.dtype",
               .field = [](TrainSpec& s) -> Field { return &s.precision.dtype; },
               .doc =
                   "Type of the computation; master weights and optimizer state are always fp32.",
               .choices = {{"fp32", "single precision"},
                           {"bf16", "bfloat16 with fp32 accumulation"}},
               .refused = {{"fp16", "", "not available yet; bf16 needs no loss scaling"},
                           {"float16", "", "not available yet; bf16 needs no loss scaling"},
                           {"half", "", "not available yet; bf16 needs no loss scaling"},
                           {"fp8", "", "not available yet"},
                           {"float32", "fp32", ""},
                           {"float", "fp32", ""},
                           {"f32", "fp32", ""},
                           {"no", "fp32", ""},
                           {"bfloat16", "bf16", ""}},
               .known_as = {"mixed_precision", "torch_dtype", "params_dtype"}},
          },
      .unavailable =
          {
              {"precision.grad", "gradients are fp32"},
              {"precision.master", "master weights are fp32"},
              {"precision.fp8", "the types are fp32 and bf16"},
          },
  };
}

Section optimizer_section() {
  return {
      .docs =
          {
              {"optimizer", "The optimizer."},
          },
      .rows =
          {
              {.key = "optimizer.type",
               .field = [](TrainSpec& s) -> Field { return &s.optimizer.type; },
               .doc = "The optimizer.",
               .choices = {{"adamw", "Adam with decoupled weight decay"}},
               .refused = {{"adam", "adamw", ""},
                           {"adamw_torch", "adamw", ""},
                           {"sgd", "", kNotYet},
                           {"lion", "", kNotYet},
                           {"muon", "", kNotYet},
                           {"adafactor", "", kNotYet}}},
              {.key = "optimizer.betas",
               .field = [](TrainSpec& s) -> Field {
                 return DoublePair{&s.optimizer.beta1, &s.optimizer.beta2};
               },
               .doc = "Decay of the moving averages of the gradient and of its square.",
               .min = 0,
               .max = 1,
               .below_max = true,
               .known_as = {"adam_betas", "adam_beta1", "adam_beta2", "beta1", "beta2"}},
              {.key = "optimizer.eps",
               .field = [](TrainSpec& s) -> Field { return &s.optimizer.eps; },
               .doc = "Added to the root of the second moment.",
               .min = 0,
               .max = 1,
               .above_min = true,
               .known_as = {"adam_eps", "adam_epsilon", "epsilon"}},
              {.key = "optimizer.weight_decay",
               .field = [](TrainSpec& s) -> Field { return &s.optimizer.weight_decay; },
               .doc = "Decoupled decay, of parameters with two or more dimensions.",
               .min = 0,
               .max = 100,
               .known_as = {"wd", "decay"}},
              {.key = "optimizer.clip",
               .field = [](TrainSpec& s) -> Field { return &s.optimizer.clip; },
               .doc = "Largest global norm of the gradient; 0: no clipping.",
               .min = 0,
               .max = 1e9,
               .known_as = {"clip_grad", "grad_clip", "max_grad_norm", "gradient_clipping",
                            "gradient_clip_val", "clip_grad_norm"}},
          },
      .unavailable =
          {
              {"optimizer.offload", "the optimizer state stays with the parameters"},
          },
  };
}

Section lr_section() {
  return {
      .docs =
          {
              {"lr", "The learning rate over the steps."},
          },
      .rows =
          {
              {.key = "lr.max",
               .field = [](TrainSpec& s) -> Field { return &s.lr.max; },
               .doc = "Learning rate after the warm-up.",
               .min = 0,
               .max = 1e3,
               .above_min = true,
               .known_as = {"learning_rate", "lr", "max_lr"}},
              {.key = "lr.min",
               .field = [](TrainSpec& s) -> Field { return &s.lr.min; },
               .doc = "Learning rate at the end of the decay.",
               .min = 0,
               .max = 1e3,
               .known_as = {"min_lr", "final_lr"}},
              {.key = "lr.schedule",
               .field = [](TrainSpec& s) -> Field { return &s.lr.schedule; },
               .doc = "What follows the warm-up.",
               .choices = {{"cosine", "falls to `lr.min` along a half cosine"},
                           {"constant", "stays at `lr.max`"}},
               .refused = {{"linear", "", kNotYet},
                           {"wsd", "", kNotYet},
                           {"WSD", "", kNotYet},
                           {"inverse-square-root", "", kNotYet},
                           {"constant_with_warmup", "constant", ""}},
               .known_as = {"lr_scheduler_type", "lr_decay_style", "lr_scheduler", "scheduler"}},
              {.key = "lr.warmup",
               .field = [](TrainSpec& s) -> Field { return &s.lr.warmup; },
               .doc = "Steps of linear rise to `lr.max`.",
               .suffixes = true,
               .min = 0,
               .max = kSteps,
               .known_as = {"warmup_steps", "lr_warmup_iters", "warmup_iters", "num_warmup_steps"}},
              {.key = "lr.decay",
               .field = [](TrainSpec& s) -> Field { return &s.lr.decay; },
               .doc = "Step at which `lr.min` is reached.",
               .auto_doc = "`train.steps`",
               .suffixes = true,
               .min = 1,
               .max = kSteps,
               .known_as = {"lr_decay_iters", "decay_steps"}},
          },
  };
}

}  // namespace mtl::spec
