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

struct TrainSpec {
  struct Run {
    std::string name = "run";
    std::string dir = "runs";  // runs live in dir/name/<id>/
  } run;
  struct Model {
    int64_t layers = 0;               // required
    int64_t hidden = 0;               // required
    int64_t heads = 0;                // required
    int64_t ffn = 0;                  // 0 = 4 * hidden
    std::string activation = "gelu";  // gelu: the tanh form, as GPT-2
    struct Norm {
      std::string type = "layernorm";
      double eps = 1e-5;
    } norm;
    struct Position {
      std::string type = "learned";
    } position;
    int64_t max_seq = 0;  // positions; 0 = train.seq_len
    bool bias = true;
    bool tie_embeddings = true;
    int64_t vocab_pad_to = 128;
    struct Dropout {
      double hidden = 0.0;
      double attention = 0.0;
    } dropout;
  } model;
  struct Parallel {
    int tp = 1;
    int pp = 1;
    int dp = 0;  // 0 = auto: world / (tp * pp)
  } parallel;
  struct Train {
    int64_t micro_batch = 0;   // sequences per rank and micro-step; 0 = auto: global_batch / dp
    int64_t global_batch = 0;  // sequences per step, required
    int64_t seq_len = 0;       // required
    int64_t steps = 0;         // required
    uint64_t seed = 1234;
    struct Eval {
      int64_t every = 0;  // steps; 0 = only at the end
      int64_t iters = 0;  // global batches of the validation split; 0 = all of it
    } eval;
  } train;
  struct Precision {
    std::string dtype = "fp32";  // fp32 | bf16
  } precision;
  struct Optimizer {
    std::string type = "adamw";
    double beta1 = 0.9;  // optimizer.betas: [beta1, beta2]
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double clip = 1.0;  // global gradient norm; 0 = off
  } optimizer;
  struct Lr {
    double max = 3e-4;
    double min = 0.0;
    std::string schedule = "cosine";  // cosine | constant
    int64_t warmup = 0;               // steps of linear rise from max/warmup... to max
    int64_t decay = 0;                // step at which min is reached; 0 = train.steps
  } lr;
  struct Init {
    double std = 0.02;
  } init;
  struct Data {
    std::string train;                     // path of a UTF-8 text, required
    std::vector<double> split = {90, 10};  // train, valid weights
    std::string sampler = "random";        // random | sequential
    struct Tokenizer {
      std::string type = "bytes";  // bytes | chars
    } tokenizer;
  } data;
  struct Checkpoint {
    int64_t every = 0;            // steps; 0 = only at the end
    int64_t keep_last = 3;        // 0 = keep all
    std::string resume = "auto";  // auto | never | must
  } checkpoint;
  struct Log {
    int64_t every = 10;
  } log;
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
  std::vector<std::pair<std::string, std::string>> environment =
      {};                                   // MTL_<SECTION>__<KEY>, as found
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
  // Of the value in effect, or of train.yaml as a whole if the key is set nowhere.
  Place place_of(const std::string& key) const;
};

// Reads, merges and checks every layer; all problems go to `diagnostics` (codes config.*, and
// yaml.* and file.* of the file). Integers may be written `1_000` and `1e9`; counts of steps also
// `10k`, `2M` (thousands, millions). An unknown MTL_ variable is a warning. Relative paths in
// `data` stay as written: they are relative to the working directory.
ResolvedSpec load_spec(const SpecSources& sources, Diagnostics& diagnostics);

// YAML with every key, its value and `# origin`; read back by load_spec with the same result.
std::string resolved_yaml(const ResolvedSpec& resolved);
// JSON Schema (draft-07) and the Markdown reference page, both from the schema table.
std::string spec_json_schema();
std::string spec_reference_markdown();
// All key paths ("train.micro_batch"), for suggestions and completion.
std::vector<std::string> spec_keys();

}  // namespace mtl
