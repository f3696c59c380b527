#include "runtime/interchange/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "common/version.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/interchange/foreign_model.h"
#include "runtime/interchange/hf_tokenizer.h"
#include "runtime/interchange/new_folder.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

// What is not divisible by 128 is padded in memory only.
void set_vocab(ModelShape& shape, int64_t vocab) {
  shape.vocab = vocab;
  shape.padded_vocab = round_up(vocab, shape.vocab_pad_to);
}

// As an element range is asked for, it is read from the files: no tensor is in memory as a whole.
CheckpointTensor streamed(const ParamRow& row, const ForeignWeights& weights) {
  CheckpointTensor tensor;
  tensor.name = row.name;
  tensor.shape = tensor.local_shape = row.shape;
  tensor.rects = {{Dims(row.shape.size(), 0), Dims(row.shape.size(), 0), row.shape}};
  tensor.count = row.numel();
  tensor.fetch = [tensor, &weights](int64_t at, int64_t count, void* to) {
    CheckpointTensor part = tensor;
    part.fetch = {};
    part.first = at;
    part.rects = clip_to_range(tensor.rects, tensor.local_shape, at, count);
    part.data = to;
    weights.read(part);
  };
  return tensor;
}

// A scalar of YAML that means the same text whatever is in it.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Puts the tokenizer's file into the run directory, which will be `place`. Returns what
// data.tokenizer says of it.
std::string write_tokenizer(const Tokenizer& tokenizer, const ImportOptions& options,
                            const NewFolder& folder, const fs::path& place) {
  if (tokenizer.to_json().value("type", "") == "bytes") return "{type: bytes}";
  const auto of_type = [&](const char* type, const char* name) {
    return fmt::format("{{type: {}, file: {}}}", type, quoted((place / name).string()));
  };
  try {
    folder.write("tokenizer.json", to_hf_tokenizer(tokenizer).dump() + "\n");
    return of_type("hf", "tokenizer.json");
  } catch (const Error& error) {
    if (error.diagnostics()[0].code != "data.tokenizer") throw;
  }
  // SentencePiece has a file of its own.
  fs::path model = options.tokenizer.empty() ? options.source : fs::path(options.tokenizer);
  if (fs::is_directory(model)) model /= "tokenizer.model";
  folder.write("tokenizer.model", read_file(model));
  return of_type("sentencepiece", "tokenizer.model");
}

}  // namespace

std::string train_yaml_of(const ModelShape& shape, const std::string& name, const fs::path& from,
                          const std::string& tokenizer, const std::string& comment) {
  const char* const positions[] = {"learned", "rope", "alibi", "none"};
  // A length to begin with; the model has positions for more.
  const int64_t seq_len = std::min<int64_t>(shape.max_seq, 1024);
  std::string text = comment;
  const auto line = [&](const char* format, const auto&... values) {
    text += fmt::format(fmt::runtime(format), values...) + "\n";
  };
  line("run:\n  name: {}", quoted(name));
  line("init:\n  from: {}", quoted(from.string()));
  line("model:");
  line("  layers: {}\n  hidden: {}\n  heads: {}\n  kv_heads: {}\n  head_dim: {}\n  ffn: {}",
       shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim,
       shape.dense_layers.empty() ? shape.ffn : shape.dense_layer_ffn);
  line("  activation: {}", activation_name(shape.activation));
  std::string norm =
      fmt::format("type: {}, eps: {}", shape.norm == NormType::rmsnorm ? "rmsnorm" : "layernorm",
                  shape.norm_eps);
  if (shape.norm_place != NormPlace::input) {
    norm += fmt::format(", place: {}", norm_place_name(shape.norm_place));
  }
  if (shape.norm_bias) norm += fmt::format(", bias: {}", *shape.norm_bias);
  if (shape.shared_norm) norm += ", shared: true";
  line("  norm: {{{}}}", norm);
  line("  position:\n    type: {}", positions[static_cast<size_t>(shape.position)]);
  if (shape.position == PositionType::rope) {
    line("    base: {}", shape.rope_base);
    if (shape.rope_fraction != 1) line("    fraction: {}", shape.rope_fraction);
    if (shape.rope_scaling.type != RopeScalingType::none) {
      line("    scaling:\n      type: {}", name_of(shape.rope_scaling.type));
      const nlohmann::json scaling = to_json(shape.rope_scaling);
      for (const auto& [key, value] : scaling.items()) {
        if (key != "type") line("      {}: {}", key, value.dump());
      }
    }
  }
  if (shape.window_rope_base > 0) line("    window_base: {}", shape.window_rope_base);
  if (!shape.unrotated_layers.empty()) {
    line("    skip: {{layers: [{}]}}", fmt::join(shape.unrotated_layers, ", "));
  }
  line("  max_seq: {}\n  bias: {}", shape.max_seq, shape.bias);
  if (shape.has_latents()) {
    const ModelShape::Latent& latent = shape.latent;
    line("  latent: {{kv_rank: {}, q_rank: {}, rope_dim: {}, value_dim: {}, norm_eps: {}}}",
         latent.kv_rank, latent.q_rank, latent.rope_dim, latent.value_dim, latent.norm_eps);
  }
  if (shape.qkv_bias != shape.bias) line("  qkv_bias: {}", shape.qkv_bias);
  if (shape.sliding_window > 0) line("  sliding_window: {}", shape.sliding_window);
  if (!shape.full_layers.empty()) {
    line("  full_attention: {{layers: [{}]}}", fmt::join(shape.full_layers, ", "));
  }
  if (shape.attention_scale > 0) line("  attention_scale: {}", shape.attention_scale);
  if (shape.attention_cap > 0) line("  attention_cap: {}", shape.attention_cap);
  if (shape.logit_cap > 0) line("  logit_cap: {}", shape.logit_cap);
  if (shape.attention_sinks) line("  attention_sinks: true");
  if (shape.glu_offset != 0) line("  glu_offset: {}", shape.glu_offset);
  if (shape.glu_clamp > 0) line("  glu_clamp: {}", shape.glu_clamp);
  if (shape.experts > 0) {
    line("  moe:\n    experts: {}\n    topk: {}", shape.experts, shape.experts_per_token);
    if (!shape.dense_layers.empty()) {
      line("    ffn: {}\n    dense_layers: [{}]", shape.ffn, fmt::join(shape.dense_layers, ", "));
    }
    if (shape.moe_scores.scale != 1) line("    scale: {}", shape.moe_scores.scale);
    if (shape.moe_scores.groups > 1) {
      line("    groups: {}\n    group_topk: {}", shape.moe_scores.groups,
           shape.moe_scores.group_topk);
      if (shape.moe_scores.group_best > 0) line("    group_best: {}", shape.moe_scores.group_best);
    }
    if (shape.moe_scores.sigmoid) line("    score: sigmoid");
    if (!shape.moe_scores.normalize) line("    normalize: false");
    if (shape.shared_ffn > 0) line("    shared_ffn: {}", shape.shared_ffn);
    if (shape.shared_gate) line("    shared_gate: true");
    if (shape.expert_bias) line("    expert_bias: true");
  }
  if (shape.qk_norm) line("  qk_norm: true");
  if (shape.qk_norm_whole) line("  qk_norm_whole: true");
  if (shape.parallel_residual) line("  parallel_residual: true");
  if (shape.residual_scale != 1) line("  residual_scale: {}", shape.residual_scale);
  if (shape.embedding_scale != 1) line("  embedding_scale: {}", shape.embedding_scale);
  if (shape.logit_scale != 1) line("  logit_scale: {}", shape.logit_scale);
  if (shape.head_bias) line("  head_bias: true");
  line("  tie_embeddings: {}\n  vocab_pad_to: {}", shape.tie_embeddings, shape.vocab_pad_to);
  line("train:\n  seq_len: {}\n  global_batch: 8\n  steps: 1000", seq_len);
  line("lr:\n  max: 2e-5\n  warmup: 50");
  line("data:\n  # train: corpus.txt");
  if (!tokenizer.empty()) line("  tokenizer: {}", tokenizer);
  line("checkpoint:\n  every: 200");
  return text;
}

ImportReport import_model(const ImportOptions& options) {
  ForeignModel foreign = open_foreign_model(options.source);
  ModelShape& shape = foreign.shape;
  ImportReport report{.kind = foreign.kind, .warnings = std::move(foreign.warnings)};
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(options.source, options.tokenizer);
  const auto warn = [&](const std::string& what, const std::string& help) {
    report.warnings.push_back({.code = "import.vocab",
                               .what = what,
                               .help = help,
                               .severity = Diagnostic::Severity::warning});
  };
  if (tokenizer == nullptr) {
    warn(options.source.string() +
             " has no tokenizer, so that the model neither reads nor writes "
             "text",
         "import it again with --tokenizer FILE");
  } else if (tokenizer->vocab_size() > shape.vocab) {
    throw Error(Exit::data,
                {.code = "import.vocab",
                 .what = fmt::format("the tokenizer has {} tokens, and the model knows {}",
                                     tokenizer->vocab_size(), shape.vocab),
                 .help = "is it the tokenizer of this model? --tokenizer FILE names another"});
  } else if (tokenizer->vocab_size() < shape.vocab) {
    warn(fmt::format("the model's vocabulary has {} rows and the tokenizer {} tokens: the rest, "
                     "which no text uses, is left out",
                     shape.vocab, tokenizer->vocab_size()),
         "nothing, if the tokenizer is the model's own");
    set_vocab(shape, tokenizer->vocab_size());
  }

  if (tokenizer != nullptr && options.tokenizer.empty()) {
    std::vector<int64_t> ends = hf_ends(options.source);
    const std::optional<int32_t> eod = tokenizer->eod();
    if (eod) std::erase(ends, *eod);
    if (!ends.empty()) {
      report.warnings.push_back(
          {.code = "import.ends",
           .what = fmt::format("transformers also ends a text at id {}, and mtl at {} alone",
                               fmt::join(ends, ", "),
                               eod ? fmt::format("the tokenizer's {}", *eod) : "its length"),
           .help = "of a model that answers, mtl generate --chat FORMAT ends there, and mtl ckpt "
                   "export --chat FORMAT says so in generation_config.json",
           .severity = Diagnostic::Severity::warning});
    }
  }

  NewFolder folder(options.out);
  const std::vector<ParamRow> table = shard_table(shape, false);
  std::vector<CheckpointTensor> tensors;
  for (const ParamRow& row : table) {
    tensors.push_back(streamed(row, foreign.weights));
    report.parameters += row.numel();
  }
  const CheckpointAttempt attempt{checkpoint_path(folder.path() / kCheckpoints, 0), 0};
  prepare_checkpoint(attempt);
  const std::vector<ChunkRecord> chunks = write_shards(attempt, 0, tensors);
  const nlohmann::json tokenizer_json = tokenizer ? tokenizer->to_json() : nlohmann::json();
  const nlohmann::json state = {
      {"step", 0},
      {"samples", 0},
      {"tokens", 0},
      {"mtl", version()},
      {"model", to_json(shape)},
      {"tokenizer", tokenizer_json},
      {"imported",
       {{"from", foreign.kind}, {"path", fs::absolute(options.source).lexically_normal()}}}};
  for (const Diagnostic& warning : commit_checkpoint(attempt, chunks, state, {})) {
    report.warnings.push_back(warning);
  }
  const fs::path place = fs::absolute(options.out).lexically_normal();
  std::string tokenizer_yaml;
  if (tokenizer) tokenizer_yaml = write_tokenizer(*tokenizer, options, folder, place);
  folder.write("train.yaml",
               train_yaml_of(shape, place.has_filename() ? place.filename().string() : "imported",
                             place, tokenizer_yaml,
                             fmt::format("# {}, imported by mtl ckpt import. Training goes on from "
                                         "its weights with a fresh optimizer:\n"
                                         "#   mtl launch train.yaml data.train=FILE\n",
                                         foreign.kind)));
  folder.commit();
  report.shape = shape;
  report.tokenizer = tokenizer != nullptr;
  report.checkpoint = checkpoint_path(place / kCheckpoints, 0);
  return report;
}

}  // namespace mtl
