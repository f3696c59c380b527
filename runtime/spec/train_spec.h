// What to train, with the names of train.yaml. Filled by load_spec() from one schema table
// (runtime/spec/schema.cpp), which also gives defaults, overrides, resolved.yaml, the JSON Schema
// and the reference page. A value here is checked for its own range; what depends on several values
// (divisibility, memory) is checked by runtime/plan.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"

namespace mtl {

// Layers of a model: the last of every `every`, 0 = none so, and those that are listed, from 0 on.
struct LayerChoice {
  int64_t every = 0;
  std::string choice = "none";  // none | [0, 1, ...]
  std::vector<int64_t> layers = {};
};

struct TrainSpec {
  struct Run {
    std::string name = "run";
    std::string dir = "runs";  // runs live in dir/name/<id>/
  } run;
  struct Model {
    int64_t layers = 0;    // required
    int64_t hidden = 0;    // required
    int64_t heads = 0;     // required
    int64_t kv_heads = 0;  // 0 = heads
    int64_t head_dim = 0;  // 0 = hidden / heads
    int64_t ffn = 0;       // 0 = 4 * hidden; with a gate 8/3 * hidden, up to 64s
    // gelu (tanh form, as GPT-2) | gelu_exact | swiglu | geglu | quick_geglu
    std::string activation = "gelu";
    double glu_offset = 0;  // of what a gate multiplies
    double glu_clamp = 0;   // of a gate from above, and of what it multiplies; 0 = none
    struct Norm {
      std::string type = "layernorm";  // layernorm | rmsnorm
      double eps = 1e-5;
      std::string place = "input";  // input | output | both: of attention and feed-forward block
      std::string bias = "auto";    // auto (layer norms have one, GPT-2's as bias) | true | false
      bool shared = false;          // blocks side by side read one
    } norm;
    struct Position {
      std::string type = "learned";  // learned | rope | alibi | none
      double base = 10000;           // of the rotary frequencies
      double fraction = 1;           // of each head, that is rotated
      double window_base = 0;        // of layers with a window, not scaled; 0 = as the others
      LayerChoice skip;              // layers that rotate nothing
      // A change of the rotary frequencies (model.position.scaling.*, runtime/plan/rope_scaling.h).
      struct Scaling {
        std::string type = "none";     // none | linear | llama3 | yarn | longrope
        double factor = 0;             // 0 = Llama 3.1's 8, longrope's max_seq / original_max_seq
        int64_t original_max_seq = 0;  // 0 = Llama 3.1's 8192; yarn and longrope have to give it
        double low_freq_factor = 1;    // llama3
        double high_freq_factor = 4;
        double beta_slow = 1;  // yarn
        double beta_fast = 32;
        bool truncate = true;
        double attention_factor = 0;  // 0 = what follows from factor
        // longrope: of each pair of a head.
        std::vector<double> short_factor = {}, long_factor = {};
      } scaling;
    } position;
    int64_t max_seq = 0;  // positions; 0 = train.seq_len
    bool bias = true;
    std::string qkv_bias = "auto";  // auto (as bias) | true | false: of queries, keys and values
    int64_t sliding_window = 0;     // newest positions that a query sees, its own too; 0 = all
    LayerChoice full_attention;     // layers without a window
    double attention_scale = 0;     // of scores; 0 = 1 / sqrt(head_dim)
    double attention_cap = 0;       // cap tanh(x / cap) of scores; 0 = none
    double logit_cap = 0;           // the same of logits
    bool attention_sinks = false;   // of every head a learned score of no key
    bool qk_norm = false;           // RMS norm of every query and key head
    bool qk_norm_whole = false;     // or of all of a token's queries, and all its keys, at once
    // Latent attention (model.latent.*): keys and values are made of few elements of a token.
    struct Latent {
      int64_t kv_rank = 0;     // 0 = keys and values are made of the stream
      int64_t q_rank = 0;      // the same of queries
      int64_t rope_dim = 64;   // of head_dim, the last elements, that are rotated
      int64_t value_dim = 0;   // 0 = head_dim - rope_dim
      double norm_eps = 1e-6;  // of the norms of these elements
    } latent;
    bool parallel_residual = false;  // attention and feed-forward block side by side
    double residual_scale = 1;       // of what each of them adds
    // Mixture of experts (model.moe.*): the feed-forward block of a layer is `experts` of them.
    struct Moe {
      int64_t experts = 0;  // 0 = one block for all tokens
      int64_t ffn = 0;      // width of an expert; 0 = model.ffn
      // Mixtures are layers 0, every, 2 every, ..., but for dense_layers (none | [0, 1, ...]).
      int64_t every = 1;
      std::string dense_choice = "none";
      std::vector<int64_t> dense_layers = {};
      int64_t topk = 2;               // experts of a token
      double aux_loss = 0;            // weight of the load-balancing loss
      double z_loss = 0;              // weight of the router's z-loss
      std::string score = "softmax";  // softmax | sigmoid: what the router makes of its scores
      bool normalize = true;          // a token's weights add up to 1
      double scale = 1;               // that they are multiplied by in the end
      int64_t groups = 1;             // of neighbouring experts
      int64_t group_topk = 1;         // groups that a token's experts are of
      int64_t group_best = 0;         // experts that a group's score is of; 0 = topk / group_topk
      int64_t shared_ffn = 0;         // width of the block that all tokens go through; 0 = none
      bool shared_gate = false;       // its output times the sigmoid of a score of its own
      bool expert_bias = false;       // balance by a bias of each expert, for the choice alone
      double bias_rate = 1e-3;        // that it moves by in a step
    } moe;
    bool tie_embeddings = true;
    double embedding_scale = 1;  // of tokens' vectors where they enter
    double logit_scale = 1;
    bool head_bias = false;  // of the output layer
    int64_t vocab_pad_to = 128;
    struct Dropout {
      double hidden = 0.0;
      double attention = 0.0;
    } dropout;
  } model;
  struct Parallel {
    int tp = 1;
    int pp = 1;
    int cp = 1;                     // ranks that divide the tokens of every sequence
    int ep = 1;                     // ranks that divide the experts, with sequences of their own
    double ep_room = 1.5;           // rows that fit, in parts of a rank's even share
    int dp = 0;                     // 0 = auto: world / (tp * cp * ep * pp)
    std::string sp = "auto";        // auto (on when tp > 1 and tokens divide) | true | false
    int virtual_stages = 1;         // chunks of layers per pipeline rank
    int64_t virtual_group = 0;      // micro-batches that take one chunk in turn; 0 = auto: pp
    std::string schedule = "1f1b";  // 1f1b (interleaved when virtual_stages > 1) | gpipe | zb-h1
    // Layers of each of the pp * virtual_stages virtual stages, in order; empty = stage_balance
    // decides (parallel.stage_layout: uniform | balanced | [3, 4, ...]).
    std::vector<int64_t> stage_layout;
    std::string stage_balance = "uniform";
    int zero = 1;  // divided over replicas: 1 optimizer state, 2 gradients too, 3 weights too
    // Neighbouring ranks of a stage that together have one copy of what is divided; 0 = auto: all
    int zero_ranks = 0;
    struct Overlap {
      bool grad_reduce = true;
      std::string param_gather = "auto";  // auto | true | false
      bool p2p = true;
      std::string tp = "auto";  // auto | true | false
    } overlap;
    double bucket_mb = 0;  // gradients that travel together, MB of fp32; 0 = auto
  } parallel;
  struct Train {
    int64_t micro_batch = 0;     // sequences per rank and micro-step; 0 = auto
    int64_t logits_rows = 8192;  // tokens whose logits are in memory at a time, at most
    int64_t global_batch = 0;    // sequences per step, required unless `accumulate` is given
    int64_t seq_len = 0;         // required
    int64_t steps = 0;           // one of steps, samples, tokens is required
    int64_t samples = 0;         // length of the run in sequences; 0 = not given
    int64_t tokens = 0;          // length of the run in tokens; 0 = not given
    // Micro-batches per step and rank from an epoch (accumulate_by) on: {0: 8, 4: 4, 8: 1};
    // a plain number is {0: n}. Empty = from global_batch.
    std::map<int64_t, int64_t> accumulate;
    std::string accumulate_by = "epoch";  // epoch | step
    // Global batch from a step on: {0: 32, 1000: 64}. Empty = global_batch always.
    std::map<int64_t, int64_t> batch_ramp;
    bool deterministic = true;
    uint64_t seed = 1234;
    struct Eval {
      int64_t every = 0;  // steps; 0 = only at the end
      int64_t iters = 0;  // global batches of the validation split; 0 = all of it
      // What the model writes behind prompts at every evaluation (train.eval.generate.*).
      struct Generate {
        std::vector<std::string> prompts;
        int64_t tokens = 64;       // of each, at most
        double temperature = 0.8;  // 0 = the likeliest token
      } generate;
    } eval;
  } train;
  struct Precision {
    std::string dtype = "fp32";        // fp32 | bf16 | fp16 | fp8
    std::string grad_reduce = "fp32";  // fp32 | bf16: gradients on their way between replicas
    // Dynamic loss scaling of fp16 (Megatron-LM's DynamicGradScaler).
    struct LossScale {
      double initial = 65536;
      double min = 1;
      int64_t window = 1000;   // steps without overflow after which it doubles
      int64_t hysteresis = 2;  // overflows before it halves
    } loss_scale;
    struct Fp8 {
      int64_t bf16_first_layers = 0, bf16_last_layers = 0;  // of the model, that stay in bf16
    } fp8;
  } precision;
  struct Recompute {
    std::string mode = "none";  // none | selective | full
    std::string method = "";    // full: uniform | block; "" = uniform
    int64_t layers = 0;  // uniform: per group; block: recomputed per chunk; 0 = auto (1, all)
    std::vector<std::string> modules = {"core_attn"};   // selective: core_attn, mlp_act, norm, mlp
    std::map<std::string, int64_t> module_layers = {};  // of these so many of each chunk, else all
    bool distribute = false;                            // full: saved inputs divided over TP
  } recompute;
  struct Optimizer {
    std::string type = "adamw";  // adamw | adam | sgd | lion | muon
    double momentum = 0.9;       // of sgd
    double beta1 = 0.9;          // optimizer.betas: [beta1, beta2]
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    // Weight decay moves from weight_decay to weight_decay_end over the run.
    std::string weight_decay_ramp = "constant";  // constant | linear | cosine
    double weight_decay_end = 0.1;
    double clip = 1.0;             // global gradient norm; 0 = off
    std::string offload = "none";  // none | cpu
    // Of matrices within layers; all else has AdamW.
    struct Muon {
      double momentum = 0.95;
      bool nesterov = true;
      int64_t steps = 5;                    // of Newton and Schulz
      std::string coefficients = "simple";  // simple | quintic | polar_express
      std::string scale = "spectral";       // spectral | shape | unit_rms
      double factor = 0.2;
    } muon;
  } optimizer;
  struct Lr {
    double max = 3e-4;
    double min = 0.0;
    // cosine | linear | constant | inverse_sqrt | wsd
    std::string schedule = "cosine";
    int64_t warmup = 0;     // steps of linear rise from max/warmup... to max
    int64_t decay = 0;      // step at which min is reached; 0 = train.steps
    int64_t wsd_decay = 0;  // wsd: steps of the final decay; 0 = auto: a tenth of `decay`
    std::string wsd_style = "cosine";  // exponential | linear | cosine | minus_sqrt
  } lr;
  struct Init {
    std::string from;  // path of a model whose weights the run starts from; "" = none
    double std = 0.02;
  } init;
  struct Lora {
    int64_t rank = 0;  // 0 = the whole model is trained
    double alpha = 0;  // 0 = as rank
    std::vector<std::string> targets = {"qkv", "proj", "up", "down"};
  } lora;
  struct Data {
    // A path, or several in one text ("p1 p2" or "w1 p1 w2 p2", as Megatron-LM's --data-path), or a
    // list; weight 0 = none is given. `train` is required.
    struct Source {
      std::string path;
      double weight = 0;
      bool operator==(const Source&) const = default;
    };
    std::string train, valid;
    std::vector<Source> train_list, valid_list;  // not empty: instead of the text
    // Instead of both: sets that are evaluated on one by one, by name.
    std::vector<std::pair<std::string, std::vector<Source>>> valid_sets;
    std::string format = "auto";  // auto | text | megatron | nanogpt | llmc
    int64_t vocab = 0;            // ids of a corpus without a tokenizer; 0 = the tokenizer's
    int64_t eod = -1;             // -1 = the tokenizer's
    std::vector<double> split = {90, 10};  // train, valid, test weights
    // random | sequential | megatron | single | cyclic | feistel | best_fit
    std::string sampler = "random";
    std::string cache;                 // folder of Megatron's indices; empty = none
    int64_t workers = 1;               // threads that read ahead
    std::string on_change = "refuse";  // refuse | accept: a resumed run whose data is another
    // Where a document of a packed sequence ends (its EOD token): positions begin anew, attention
    // does not look back, and what follows the token is not learned from it.
    bool reset_positions_at_eod = false;
    bool reset_attention_at_eod = false;
    bool mask_eod_loss = false;
    // Sequences are packed with whole documents, each of which is seen by itself.
    bool whole_documents() const { return sampler == "best_fit"; }
    bool resets_positions() const { return reset_positions_at_eod || whole_documents(); }
    bool resets_attention() const { return reset_attention_at_eod || whole_documents(); }
    struct Tokenizer {
      std::string type = "auto";  // auto | bytes | chars | gpt2-bpe | hf | sentencepiece
      std::string file;           // tokenizer.json, a folder with one, or *.model
      std::string vocab, merges;  // of gpt2-bpe
      std::string eod;            // the token that ends a document; empty: as the files say
    } tokenizer;
  } data;
  struct Checkpoint {
    int64_t every = 0;       // steps; 0 = only at the end
    int64_t every_time = 0;  // and seconds; 0 = no matter how long it takes
    bool async = true;       // written while training goes on
    int64_t keep_last = 3;   // 0 = keep all
    int64_t keep_every = 0;  // and those of every so manieth step; 0 = none
    struct KeepBest {
      int64_t k = 0;
      std::string metric = "valid_loss";  // valid_loss | loss
      std::string mode = "min";           // min | max
    } keep_best;
    std::string resume = "auto";  // auto | never | must
  } checkpoint;
  struct Log {
    int64_t every = 10;
    bool tensorboard = true;  // what is logged is also written for TensorBoard
  } log;
  struct Health {
    std::string nan = "stop";  // stop | skip: what a loss or gradient that is no number does
    double spike_factor = 10;  // of the usual distance from the mean of late; 0 = not looked for
    double straggler_factor = 1.25;  // of its peers' time, that a rank is slow at; 0 = no matter
    int64_t max_time = 0;            // seconds from the start of the job; 0 = no limit
  } health;
  struct Launch {
    std::string spawn = "processes";  // processes | threads: what the ranks of this machine are
    std::string via = "auto";         // auto | local | ssh | slurm | kubernetes: who starts them
    // What a job asks its scheduler for, by the launcher's names; one text, or those of a list.
    // What is not given is not there. The launcher checks what they say.
    std::map<std::string, std::vector<std::string>> slurm;
    std::map<std::string, std::vector<std::string>> kubernetes;
  } launch;
};

// Where a value came from, weakest first.
enum class Origin { built_in, default_config, train_yaml, environment, command_line };
// "built-in", "default_config.yaml", "train.yaml", "environment", "command line".
std::string origin_name(Origin origin);

struct SpecSources {
  std::string train_yaml;  // path
  // accelerate's default_config.yaml, already translated to keys of train.yaml ("precision.dtype",
  // "bf16"); the string of each value is read as YAML.
  std::vector<std::pair<std::string, std::string>> default_config = {};
  std::string default_config_path = {};
  // MTL_<SECTION>__<KEY>, as found.
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::vector<std::string> overrides = {};  // "key.path=value"
};

struct ResolvedSpec {
  TrainSpec spec;
  std::map<std::string, Origin> origins;  // by key path, for every key of the schema
  // Of the value that is in effect, for keys that are set anywhere: line and column in train.yaml,
  // or "command line", "environment variable MTL_...", the path of default_config.yaml.
  std::map<std::string, Place> places;
  std::string file;    // path of train.yaml
  std::string source;  // text of train.yaml, byte for byte
  // Everything that is required has a value: without one there is nothing to plan with. What was
  // misspelt or given badly has none, though nobody says that it is missing.
  bool complete = true;
  // Of the value in effect, or of train.yaml as a whole if the key is set nowhere.
  Place place_of(const std::string& key) const;
  Origin origin_of(const std::string& key) const;
};

// Reads, merges and checks every layer; all problems go to `diagnostics` (codes config.*, and
// yaml.* and file.* of the file). Integers may be written `1_000` and `1e9`; counts of steps also
// `10k`, `2M` (thousands, millions). An unknown MTL_ variable is a warning. Relative paths in
// `data` stay as written: they are relative to the working directory.
ResolvedSpec load_spec(const SpecSources& sources, Diagnostics& diagnostics);

// YAML with every key, its value and `# origin`; read back by load_spec with the same result. (What
// jobs could be given and are not, in launch.slurm and launch.kubernetes, is left out.)
std::string resolved_yaml(const ResolvedSpec& resolved);
// JSON Schema (draft-07) and the Markdown reference page, both from the schema table.
std::string spec_json_schema();
std::string spec_reference_markdown();
// All key paths ("train.micro_batch"), for suggestions and completion.
std::vector<std::string> spec_keys();

}  // namespace mtl
