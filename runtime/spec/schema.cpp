// The one table of train.yaml's keys.
#include "runtime/spec/schema.h"

#include <algorithm>
#include <cctype>

namespace mtl::spec {

namespace {

const std::string kNotYet = "not available in this version";
// Steps and sequences beyond this are slips, and products of two of them stay within 64 bits.
constexpr double kMany = 1e9;
constexpr double kSteps = 1e12;

std::vector<Row> make_schema() {
  return {
      {.key = "run.name",
       .field = [](TrainSpec& s) -> Field { return &s.run.name; },
       .doc = "Name of the run: the folder under `run.dir`.",
       .is_name = true,
       .known_as = {"run_name", "experiment_name", "wandb_exp_name"}},
      {.key = "run.dir",
       .field = [](TrainSpec& s) -> Field { return &s.run.dir; },
       .doc = "Where runs are kept: a run lives in `<run.dir>/<run.name>/<id>/`.",
       .is_path = true,
       .known_as = {"output_dir", "out_dir", "project_dir", "logging_dir"}},

      {.key = "model.layers",
       .field = [](TrainSpec& s) -> Field { return &s.model.layers; },
       .doc = "Transformer layers.",
       .example = "12",
       .required = true,
       .min = 1,
       .max = 1e5,
       .known_as = {"num_layers", "n_layer", "n_layers", "num_hidden_layers"}},
      {.key = "model.hidden",
       .field = [](TrainSpec& s) -> Field { return &s.model.hidden; },
       .doc = "Width of the residual stream.",
       .example = "768",
       .required = true,
       .min = 1,
       .max = 1 << 20,
       .known_as = {"hidden_size", "n_embd", "d_model", "dim", "embed_dim", "width"}},
      {.key = "model.heads",
       .field = [](TrainSpec& s) -> Field { return &s.model.heads; },
       .doc = "Attention heads; they share `model.hidden` evenly.",
       .example = "12",
       .required = true,
       .min = 1,
       .max = 1 << 16,
       .known_as = {"num_attention_heads", "num_heads", "n_head", "n_heads"}},
      {.key = "model.ffn",
       .field = [](TrainSpec& s) -> Field { return &s.model.ffn; },
       .doc = "Width inside the feed-forward block.",
       .auto_doc = "4 x `model.hidden`",
       .min = 1,
       .max = 1 << 24,
       .known_as = {"ffn_hidden_size", "intermediate_size", "n_inner", "d_ff", "ffn_hidden",
                    "mlp_hidden"}},
      {.key = "model.activation",
       .field = [](TrainSpec& s) -> Field { return &s.model.activation; },
       .doc = "Activation of the feed-forward block.",
       .choices = {{"gelu", "the tanh form, as GPT-2"}},
       .refused = {{"gelu_new", "gelu", ""},
                   {"gelu_pytorch_tanh", "gelu", ""},
                   {"swiglu", "", kNotYet},
                   {"geglu", "", kNotYet},
                   {"silu", "", kNotYet},
                   {"relu", "", kNotYet},
                   {"squared_relu", "", kNotYet}},
       .known_as = {"activation_function", "hidden_act", "act"}},
      {.key = "model.norm.type",
       .field = [](TrainSpec& s) -> Field { return &s.model.norm.type; },
       .doc = "Normalisation before attention, before the feed-forward block and at the end.",
       .choices = {{"layernorm", "with weight and bias"}},
       .refused = {{"LayerNorm", "layernorm", ""},
                   {"layer_norm", "layernorm", ""},
                   {"rmsnorm", "", kNotYet},
                   {"rms_norm", "", kNotYet}},
       .known_as = {"normalization"}},
      {.key = "model.norm.eps",
       .field = [](TrainSpec& s) -> Field { return &s.model.norm.eps; },
       .doc = "Added to the variance.",
       .min = 0,
       .max = 1,
       .above_min = true,
       .known_as = {"layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps",
                    "rms_norm_eps", "epsilon"}},
      {.key = "model.position.type",
       .field = [](TrainSpec& s) -> Field { return &s.model.position.type; },
       .doc = "How positions enter the model.",
       .choices = {{"learned", "one trained vector per position, added to the token's"}},
       .refused = {{"learned_absolute", "learned", ""},
                   {"absolute", "learned", ""},
                   {"rope", "", kNotYet},
                   {"rotary", "", kNotYet},
                   {"alibi", "", kNotYet},
                   {"none", "", kNotYet}},
       .known_as = {"position_embedding_type"}},
      {.key = "model.max_seq",
       .field = [](TrainSpec& s) -> Field { return &s.model.max_seq; },
       .doc = "Positions that the model has; at least `train.seq_len`.",
       .auto_doc = "`train.seq_len`",
       .min = 1,
       .max = 1 << 27,
       .known_as = {"max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx",
                    "block_size"}},
      {.key = "model.bias",
       .field = [](TrainSpec& s) -> Field { return &s.model.bias; },
       .doc = "Linear layers have a bias.",
       .known_as = {"add_bias_linear", "use_bias"}},
      {.key = "model.tie_embeddings",
       .field = [](TrainSpec& s) -> Field { return &s.model.tie_embeddings; },
       .doc = "The output layer uses the token embedding's weights.",
       .known_as = {"tie_word_embeddings", "tied_embeddings",
                    "untie_embeddings_and_output_weights"}},
      {.key = "model.vocab_pad_to",
       .field = [](TrainSpec& s) -> Field { return &s.model.vocab_pad_to; },
       .doc = "The vocabulary is padded in memory to a multiple of this; checkpoints are unpadded.",
       .min = 1,
       .max = 1 << 16,
       .known_as = {"make_vocab_size_divisible_by", "pad_vocab_to"}},
      {.key = "model.dropout.hidden",
       .field = [](TrainSpec& s) -> Field { return &s.model.dropout.hidden; },
       .doc = "Share of activations dropped after the embedding, attention and feed-forward "
              "block.",
       .min = 0,
       .max = 1,
       .below_max = true,
       .known_as = {"hidden_dropout", "resid_pdrop", "embd_pdrop"}},
      {.key = "model.dropout.attention",
       .field = [](TrainSpec& s) -> Field { return &s.model.dropout.attention; },
       .doc = "Share of attention weights dropped.",
       .min = 0,
       .max = 1,
       .below_max = true,
       .known_as = {"attention_dropout", "attn_pdrop"}},

      {.key = "parallel.tp",
       .field = [](TrainSpec& s) -> Field { return &s.parallel.tp; },
       .doc = "Tensor parallelism: ranks that share every layer.",
       .min = 1,
       .max = 1 << 16,
       .known_as = {"tensor_model_parallel_size", "tp_degree", "tensor_parallel_size", "tp_size",
                    "megatron_lm_tp_degree", "tensor"}},
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

      {.key = "train.micro_batch",
       .field = [](TrainSpec& s) -> Field { return &s.train.micro_batch; },
       .doc = "Sequences that a replica takes at once; the rest of its share of the global batch "
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
       .known_as = {"seq_length", "sequence_length", "max_seq_length", "max_length", "context",
                    "block_size"}},
      {.key = "train.steps",
       .field = [](TrainSpec& s) -> Field { return &s.train.steps; },
       .doc = "Optimizer steps of the whole run.",
       .example = "1000",
       .required = true,
       .suffixes = true,
       .min = 1,
       .max = kSteps,
       .known_as = {"train_iters", "max_steps", "iterations", "max_iters", "num_steps", "iters",
                    "num_training_steps", "total_steps"}},
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

      {.key = "precision.dtype",
       .field = [](TrainSpec& s) -> Field { return &s.precision.dtype; },
       .doc = "Type of the computation; master weights and optimizer state are always fp32.",
       .choices = {{"fp32", "single precision"}, {"bf16", "bfloat16 with fp32 accumulation"}},
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

      {.key = "init.std",
       .field = [](TrainSpec& s) -> Field { return &s.init.std; },
       .doc = "Standard deviation of the initial weights.",
       .min = 0,
       .max = 100,
       .above_min = true,
       .known_as = {"init_method_std", "initializer_range", "init_std"}},

      {.key = "data.train",
       .field = [](TrainSpec& s) -> Field { return &s.data.train; },
       .doc = "The text to train on: a UTF-8 file. A relative path starts at the working "
              "directory.",
       .example = "input.txt",
       .required = true,
       .is_path = true,
       .known_as = {"data_path", "train_data_path", "train_file", "dataset", "dataset_name",
                    "path"}},
      {.key = "data.split",
       .field = [](TrainSpec& s) -> Field { return &s.data.split; },
       .doc = "Weights of the training and the validation part of the text.",
       .min = 0,
       .max = 1e12,
       .known_as = {"train_valid_test_split", "splits"}},
      {.key = "data.sampler",
       .field = [](TrainSpec& s) -> Field { return &s.data.sampler; },
       .doc = "Order of the sequences; the same for every layout of ranks.",
       .choices = {{"random", "windows at random places, decided by `train.seed`"},
                   {"sequential", "one window after the other"}},
       .refused = {{"single", "sequential", ""},
                   {"cyclic", "random", ""},
                   {"shuffle", "random", ""}},
       .known_as = {"dataloader_type", "shuffle"}},
      {.key = "data.tokenizer.type",
       .field = [](TrainSpec& s) -> Field { return &s.data.tokenizer.type; },
       .doc = "How text becomes tokens.",
       .choices = {{"bytes", "one token per byte: 256 tokens, any text"},
                   {"chars", "one token per character that occurs in the training text"}},
       .refused = {{"byte", "bytes", ""},
                   {"char", "chars", ""},
                   {"gpt2-bpe", "", kNotYet},
                   {"gpt2", "", kNotYet},
                   {"bpe", "", kNotYet},
                   {"tiktoken", "", kNotYet},
                   {"sentencepiece", "", kNotYet},
                   {"hf", "", kNotYet}},
       .known_as = {"tokenizer_type"}},

      {.key = "checkpoint.every",
       .field = [](TrainSpec& s) -> Field { return &s.checkpoint.every; },
       .doc = "Steps between checkpoints; 0: only at the end.",
       .suffixes = true,
       .min = 0,
       .max = kSteps,
       .known_as = {"save_interval", "save_steps", "checkpointing_steps", "save_every"}},
      {.key = "checkpoint.keep_last",
       .field = [](TrainSpec& s) -> Field { return &s.checkpoint.keep_last; },
       .doc = "Checkpoints that are kept; older ones are deleted. 0: all are kept.",
       .min = 0,
       .max = kMany,
       .known_as = {"save_total_limit", "total_limit", "keep"}},
      {.key = "checkpoint.resume",
       .field = [](TrainSpec& s) -> Field { return &s.checkpoint.resume; },
       .doc = "Whether a run goes on from its newest checkpoint.",
       .choices = {{"auto", "from the newest complete one, else from the start"},
                   {"never", "always from the start"},
                   {"must", "an error if there is none"}},
       .refused = {{"true", "auto", ""}, {"false", "never", ""}, {"latest", "auto", ""}},
       .known_as = {"resume_from_checkpoint", "load"}},

      {.key = "log.every",
       .field = [](TrainSpec& s) -> Field { return &s.log.every; },
       .doc = "Steps between log lines.",
       .suffixes = true,
       .min = 1,
       .max = kSteps,
       .known_as = {"log_interval", "logging_steps", "log_every"}},
  };
}

}  // namespace

std::string Row::section() const {
  return key.substr(0, key.rfind('.'));
}

std::string Row::name() const {
  return key.substr(key.rfind('.') + 1);
}

const std::vector<Row>& schema() {
  static const std::vector<Row> rows = make_schema();
  return rows;
}

const std::vector<Unavailable>& unavailable() {
  static const std::vector<Unavailable> keys = {
      {"model.kv_heads", "every head has its own keys and values"},
      {"model.head_dim", "it is `model.hidden` / `model.heads`"},
      {"model.qk_norm", "queries and keys are not normalised"},
      {"model.moe", "there are no mixtures of experts"},
      {"model.position.base", "there are no rotary positions"},
      {"model.position.scaling", "there are no rotary positions"},
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
      {"train.samples", "the length of a run is given by `train.steps`"},
      {"train.tokens", "the length of a run is given by `train.steps`"},
      {"train.epochs", "the length of a run is given by `train.steps`"},
      {"train.accumulate",
       "`train.micro_batch` and `train.global_batch` decide how often gradients accumulate"},
      {"train.loss_norm", "the loss is the mean over the global batch's tokens"},
      {"train.deterministic", "there is no other mode to choose"},
      {"precision.grad", "gradients are fp32"},
      {"precision.master", "master weights are fp32"},
      {"precision.fp8", "the types are fp32 and bf16"},
      {"recompute", "activations are kept"},
      {"optimizer.offload", "the optimizer state stays with the parameters"},
      {"init.layout_invariant", "initial weights never depend on the layout"},
      {"data.valid", "the validation text is a part of `data.train`, see `data.split`"},
      {"data.cache", "texts are tokenised when a run starts"},
      {"data.workers", "batches are cut from memory"},
      {"data.reset_positions_at_eod", "documents are not told apart"},
      {"data.mask_eod_loss", "documents are not told apart"},
      {"data.tokenizer.vocab", "tokenizers need no files"},
      {"data.tokenizer.merges", "tokenizers need no files"},
      {"checkpoint.dir", "checkpoints live in the run's folder, see `run.dir`"},
      {"checkpoint.keep_best", "the last ones are kept, see `checkpoint.keep_last`"},
      {"checkpoint.async", "checkpoints are written between steps"},
      {"log.mfu", "it is always logged"},
      {"log.timers", "the step time is always logged"},
      {"log.tensorboard", "the log is metrics.jsonl in the run's folder"},
      {"log.jsonl", "metrics.jsonl is always written, in the run's folder"},
      {"health", "there are no settings for it"},
      {"launch", "where to run stands in default_config.yaml, see `mtl config`"},
  };
  return keys;
}

const Row* find_row(std::string_view key) {
  for (const Row& row : schema()) {
    if (row.key == key) return &row;
  }
  return nullptr;
}

std::string section_doc(std::string_view section) {
  static const std::vector<std::pair<std::string, std::string>> docs = {
      {"run", "The run and where it is kept."},
      {"model", "The model's shape: a decoder-only transformer of the GPT-2 family."},
      {"model.norm", "Normalisation."},
      {"model.position", "Positions."},
      {"model.dropout", "Dropout; the pattern does not depend on the layout of ranks."},
      {"parallel", "How the ranks share the work. It never changes the model."},
      {"train", "Batch, length and seed."},
      {"train.eval", "Loss on the validation split."},
      {"precision", "Number formats."},
      {"optimizer", "The optimizer."},
      {"lr", "The learning rate over the steps."},
      {"init", "Initial weights."},
      {"data", "What to train on."},
      {"data.tokenizer", "The tokenizer."},
      {"checkpoint", "Checkpoints."},
      {"log", "Logging."},
  };
  for (const auto& [name, doc] : docs) {
    if (name == section) return doc;
  }
  return {};
}

const std::vector<std::string>& sections() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> found;
    for (const Row& row : schema()) {
      for (size_t dot = row.key.find('.'); dot != std::string::npos;
           dot = row.key.find('.', dot + 1)) {
        const std::string section = row.key.substr(0, dot);
        if (std::find(found.begin(), found.end(), section) == found.end()) {
          found.push_back(section);
        }
      }
    }
    return found;
  }();
  return all;
}

bool is_section(std::string_view path) {
  return std::find(sections().begin(), sections().end(), path) != sections().end();
}

std::string environment_name(std::string_view key) {
  std::string name = "MTL_";
  for (const char c : key) {
    if (c == '.') {
      name += "__";
    } else {
      name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
  }
  return name;
}

}  // namespace mtl::spec
