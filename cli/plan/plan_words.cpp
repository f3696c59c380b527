#include "cli/plan/plan_words.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/metrics/format.h"

namespace mtl {

namespace {

constexpr double kLeastShare = 5e-4;  // of work that is worth a word

}  // namespace

std::string count_of(int64_t count, const char* one) {
  const bool hiss = std::string_view(one).ends_with("ch");  // batches
  return fmt::format("{} {}{}", grouped(count), one, count == 1 ? "" : hiss ? "es" : "s");
}

const char* axis_word(Axis axis) {
  switch (axis) {
    case Axis::tp:
      return "tensor";
    case Axis::cp:
      return "context";
    case Axis::ep:
      return "expert";
    case Axis::dp:
      return "data";
    case Axis::pp:
      return "pipeline";
  }
  return "";
}

std::string model_words(const ModelShape& model) {
  std::string heads = count_of(model.heads, "head");
  if (model.kv_heads != model.heads) {
    heads += fmt::format(" ({})", count_of(model.kv_heads, "KV head"));
  }
  if (model.has_latents()) heads += fmt::format(" of {} latents", model.latent.kv_rank);
  std::string vocabulary = fmt::format("vocabulary {}", grouped(model.vocab));
  if (model.padded_vocab != model.vocab) {
    vocabulary += fmt::format(" ({} rows in memory)", grouped(model.padded_vocab));
  }
  return fmt::format("{}, hidden {}, {}, ffn {}, {}", count_of(model.layers, "layer"), model.hidden,
                     heads, model.dense_layers.empty() ? model.ffn : model.dense_layer_ffn,
                     vocabulary);
}

std::string scaling_words(const RopeScaling& scaling) {
  if (scaling.type == RopeScalingType::none) return "";
  const std::string by = fmt::format(" by {}", scaling.factor);
  if (scaling.type == RopeScalingType::llama3) return " scaled as Llama 3" + by;
  if (scaling.type == RopeScalingType::longrope) return " scaled as LongRoPE" + by;
  return (scaling.type == RopeScalingType::yarn ? " scaled as YaRN" : " scaled linearly") + by;
}

std::string blocks_words(const ModelShape& model) {
  std::string text = model.norm == NormType::rmsnorm ? "rmsnorm" : "layernorm";
  constexpr const char* kPlaces[] = {"", " behind blocks", " before and behind blocks"};
  text += kPlaces[static_cast<size_t>(model.norm_place)];
  constexpr const char* kActivations[] = {", gelu", ", swiglu", ", exact gelu", ", geglu",
                                          ", quick geglu"};
  text += kActivations[static_cast<size_t>(model.activation)];
  if (model.glu_offset != 0) text += fmt::format(" of {:+g}", model.glu_offset);
  if (model.glu_clamp > 0) text += fmt::format(" within {:g}", model.glu_clamp);
  if (model.experts > 0) {
    text += fmt::format(", {} of {} experts per token", model.experts_per_token, model.experts);
    if (model.shared_ffn > 0) text += fmt::format(" and a shared one of {}", model.shared_ffn);
    if (!model.dense_layers.empty()) {
      text += fmt::format(" of width {} in {}", model.ffn, count_of(model.mixtures(), "layer"));
    }
  }
  switch (model.position) {
    case PositionType::learned:
      text += ", learned positions";
      break;
    case PositionType::rope:
      text += ", rotary positions" + scaling_words(model.rope_scaling);
      if (model.rotary_dim() != model.head_dim) {
        text += fmt::format(" on {} of {} elements", model.rotary_dim(), model.head_dim);
      }
      if (model.window_rope_base > 0) {
        text += fmt::format(" (base {:g} in windows)", model.window_rope_base);
      }
      if (!model.unrotated_layers.empty()) {
        text += fmt::format(" but in {}", count_of(std::ssize(model.unrotated_layers), "layer"));
      }
      break;
    case PositionType::alibi:
      text += ", alibi";
      break;
    case PositionType::none:
      text += ", no positions";
      break;
  }
  if (model.qk_norm) text += model.qk_norm_whole ? ", QK-norm of all heads" : ", QK-norm";
  if (model.parallel_residual) text += ", parallel residual";
  if (model.shared_norm) text += " behind one norm";
  if (model.embedding_scale != 1) {
    text += fmt::format(", embeddings times {:.4g}", model.embedding_scale);
  }
  if (model.sliding_window > 0) {
    text += fmt::format(", window of {} positions", grouped(model.sliding_window));
    if (!model.full_layers.empty()) {
      text += fmt::format(" in {} of {}", model.layers - std::ssize(model.full_layers),
                          count_of(model.layers, "layer"));
    }
  }
  if (model.attention_scale > 0) {
    text += fmt::format(", scores times {:.4g}", model.attention_scale);
  }
  if (model.attention_cap > 0) text += fmt::format(", scores up to {:.4g}", model.attention_cap);
  if (model.attention_sinks) text += ", attention sinks";
  if (model.residual_scale != 1) {
    text += fmt::format(", what blocks add times {:.4g}", model.residual_scale);
  }
  if (model.logit_scale != 1) text += fmt::format(", logits times {:.4g}", model.logit_scale);
  if (model.logit_cap > 0) text += fmt::format(", logits up to {:.4g}", model.logit_cap);
  text += model.bias ? ", biases" : ", no biases";
  if (model.qkv_bias != model.bias) {
    text += model.qkv_bias ? " but of queries, keys and values" : " of queries, keys and values";
  }
  return text + (model.tie_embeddings ? ", tied embeddings" : ", untied head");
}

std::string grid_words(const Grid& grid) {
  std::string product;
  for (Axis axis : {Axis::pp, Axis::dp, Axis::ep, Axis::cp, Axis::tp}) {
    if (grid.sizes()[axis] == 1) continue;
    product +=
        fmt::format("{}{} {}", product.empty() ? "" : " x ", grid.sizes()[axis], axis_word(axis));
  }
  return count_of(grid.world(), "rank") + (product.empty() ? "" : " = " + product);
}

std::string precision_words(const Plan& plan) {
  if (plan.compute == DType::f32) return "fp32";
  std::string words = compute_name(plan.compute);
  if (plan.float8.on) {
    words = fmt::format("fp8 in the linears of {} of {}, else bf16", plan.float8.layers(plan.model),
                        count_of(plan.model.layers, "layer"));
  }
  return fmt::format("{}; master weights, gradients and optimizer in fp32{}", words,
                     plan.compute == DType::f16 ? ", dynamic loss scaling" : "");
}

std::string optimizer_words(const Plan& plan) {
  const std::string name =
      std::string(optimizer_name(plan.optimizer)) + (plan.offload ? " on the host" : "");
  const ParamLayout& layout = plan.stages.front().layout;
  if (layout.sharded) {
    const GridSizes& sizes = plan.grid.sizes();
    std::vector<const char*> axes = {"data"};
    if (sizes[Axis::ep] > 1) axes.push_back("expert");
    if (sizes[Axis::cp] > 1) axes.push_back("context");
    const std::string of_experts =
        sizes[Axis::ep] > 1
            ? fmt::format(", that of experts in {}", plan.grid.holders({}).expert_shards())
            : std::string();
    const std::string copies =
        sizes.copies > 1 ? fmt::format(", {} copies of each", sizes.copies) : std::string();
    return fmt::format("{}, state{} in {} shards over {}{}{} (ZeRO-{})", name,
                       layout.shards_weights()     ? ", gradients and weights"
                       : layout.shards_gradients() ? " and gradients"
                                                   : "",
                       plan.grid.holders({}).shards(), fmt::join(axes, " and "), of_experts, copies,
                       layout.zero);
  }
  return plan.grid.data_ranks() > 1 ? fmt::format("{}, whole state on every replica", name) : name;
}

std::string bucket_words(const Plan& plan) {
  size_t fewest = plan.stages.front().layout.buckets.size(), most = fewest;
  int64_t largest = 0;
  for (const StagePlan& stage : plan.stages) {
    fewest = std::min(fewest, stage.layout.buckets.size());
    most = std::max(most, stage.layout.buckets.size());
    for (const Bucket& bucket : stage.layout.buckets) largest = std::max(largest, bucket.numel);
  }
  return fmt::format("{}{}{}, {}{} of fp32", fewest == most ? "" : fmt::format("{} to ", fewest),
                     count_of(static_cast<int64_t>(most), "bucket"),
                     plan.stages.size() > 1 ? " per stage" : "", most > 1 ? "at most " : "",
                     human_bytes(static_cast<double>(largest * 4)));
}

std::string sequence_words(const Plan& plan) {
  const int tp = plan.grid.sizes()[Axis::tp], cp = plan.grid.sizes()[Axis::cp];
  std::string words;
  if (cp > 1)
    words = fmt::format("divided: 1/{} of the tokens per rank, in attention of the heads", cp);
  if (tp == 1) return words;
  if (cp > 1) words += "; ";
  if (!plan.sequence_parallel) {
    return words + fmt::format("not parallel: every tensor rank keeps all {}of the residual",
                               cp > 1 ? "these " : "tokens ");
  }
  return words + fmt::format("parallel: 1/{} of {} per rank in norms, dropout, residual", tp,
                             cp > 1 ? "these" : "the tokens");
}

std::string expert_words(const Plan& plan) {
  const int ep = plan.grid.sizes()[Axis::ep];
  const int64_t tokens = plan.micro_batch * plan.share();
  return fmt::format(
      "divided: {} of {} per rank, with room for {} rows of a micro-batch ({} if all "
      "get as many)",
      plan.model.experts / ep, plan.model.experts,
      grouped(expert_rows(plan.model, tokens, ep, plan.ep_room)),
      grouped(tokens * plan.model.experts_per_token));
}

std::string recompute_words(const Recompute& recompute) {
  switch (recompute.full) {
    case Recompute::Full::none:
      break;
    case Recompute::Full::uniform:
      return fmt::format(
          "full: all layers, {} from its input{}",
          recompute.layers == 1 ? "each" : fmt::format("each group of {}", recompute.layers),
          recompute.distribute ? ", which is divided over tensor" : "");
    case Recompute::Full::block:
      return fmt::format("full: the first {} of each chunk, each from its input{}",
                         count_of(recompute.layers, "layer"),
                         recompute.distribute ? ", which is divided over tensor" : "");
  }
  std::vector<std::string> parts;
  std::string words;
  const auto end_parts = [&](const std::string& layers) {
    if (parts.empty()) return;
    words += fmt::format("{}{} of {}", words.empty() ? "selective: " : "; ", fmt::join(parts, ", "),
                         layers);
    parts.clear();
  };
  const std::pair<const char*, FirstLayers> modules[] = {
      {"attention core", recompute.core_attention},
      {"norms", recompute.norms},
      {"latents' heads", recompute.latents},
      {"MLP", recompute.mlp},
      {"MLP activation", recompute.mlp.all() ? FirstLayers(false) : recompute.mlp_activation}};
  for (const auto& [name, layers] : modules) {
    if (layers.all()) parts.emplace_back(name);
  }
  end_parts("every layer");
  for (const auto& [name, layers] : modules) {
    if (!layers || layers.all()) continue;
    parts.emplace_back(name);
    end_parts(fmt::format("the first {} of each chunk", count_of(layers.count(), "layer")));
  }
  return words.empty() ? "none" : words;
}

std::string schedule_words(const ScheduleShape& shape) {
  const char* order = shape.weights_later ? "ZB-H1" : "1F1B";
  std::string name = order;
  if (shape.kind == ScheduleKind::gpipe) name = "GPipe";
  if (shape.kind == ScheduleKind::interleaved) {
    name = fmt::format("interleaved {} in groups of {}", order,
                       shape.group > 0 ? shape.group : shape.stages);
  }
  return fmt::format("{}, {}{}, {}", name, count_of(shape.stages, "stage"),
                     shape.chunks > 1 ? fmt::format(" x {} chunks", shape.chunks) : "",
                     count_of(shape.micro_batches, "micro-batch"));
}

std::string beside_words(const Plan& plan, const BesideSteps& beside) {
  const Occasions often = occasions(beside, 1, 0);
  std::vector<std::string> parts;
  if (often.evaluations > 0) {
    // In sequences that go forward: a step's go forward and backward.
    const BesideSeconds work = evaluations_by_steps(beside, 1, plan.seq, plan.grid.replicas());
    const auto trained = static_cast<double>(plan.batch.first_sample(plan.steps));
    const auto times = static_cast<double>(often.evaluations);
    std::string words = count_of(often.evaluations, "evaluation");
    if (const int64_t sequences = beside.eval_sequences(); sequences > 0) {
      words += fmt::format(" of {}", count_of(sequences, "sequence"));
    }
    if (beside.texts > 0) {
      words += fmt::format(", each with {} of {}", count_of(beside.texts, "text"),
                           count_of(beside.text_tokens, "token"));
    }
    const double share = times * (work.evaluation + work.texts) / trained;
    if (share >= kLeastShare) words += fmt::format(" ({:.1f} % of the steps' work)", 100 * share);
    parts.push_back(words);
  }
  if (often.saves > 0 || beside.save_every_s > 0) {
    std::string words = count_of(often.saves + 1, "checkpoint");
    if (beside.save_every_s > 0) {
      words += fmt::format(", and one after {} without",
                           compact_duration(static_cast<double>(beside.save_every_s)));
    }
    parts.push_back(words);
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace mtl
