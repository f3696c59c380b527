#include "runtime/plan/shard_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

namespace mtl {

namespace {

enum class Split { none, column, row };  // of a linear over TP

// Builds rows with what a kind of parameter implies.
class TableBuilder {
 public:
  TableBuilder(const ModelShape& shape, bool sequence_parallel)
      : shape_(shape), sequence_parallel_(sequence_parallel) {}

  // `tp_axis` -1 = replicated over TP.
  ParamRow& add(int layer, std::string slot, std::string name, std::vector<int64_t> dims,
                int tp_axis, InitKind init, double std = 0) {
    ParamRow row;
    row.layer = layer;
    row.slot = std::move(slot);
    row.name = std::move(name);
    row.padded_rows = dims[0];
    row.decays = dims.size() >= 2;
    row.shape = std::move(dims);
    row.tp_axis = tp_axis;
    const bool replicated = tp_axis < 0;
    row.replicated_over = replicated ? AxisSet{Axis::tp, Axis::cp, Axis::ep, Axis::dp}
                                     : AxisSet{Axis::cp, Axis::ep, Axis::dp};
    // What sequence-parallel ranks hold in common they apply to different tokens.
    row.grad_sum_over = replicated && sequence_parallel_
                            ? AxisSet{Axis::tp, Axis::cp, Axis::ep, Axis::dp}
                            : AxisSet{Axis::cp, Axis::ep, Axis::dp};
    row.init = init;
    row.init_std = std;
    rows_.push_back(std::move(row));
    return rows_.back();
  }
  void add_vocab(int layer, std::string slot, std::string name) {
    add(layer, std::move(slot), std::move(name), {shape_.vocab, shape_.hidden}, 0, InitKind::normal,
        shape_.init_std)
        .padded_rows = shape_.padded_vocab;
  }
  void add_norm(int layer, const std::string& slot, const std::string& name) {
    const size_t first = rows_.size();
    add(layer, slot + ".weight", name + ".weight", {shape_.hidden}, -1, InitKind::ones);
    if (shape_.has_norm_bias()) {
      add(layer, slot + ".bias", name + ".bias", {shape_.hidden}, -1, InitKind::zeros);
    }
    // Side by side blocks give the norms before them parts of sums (model/input_gradient.h).
    if (!shape_.parallel_residual || layer == shape_.layers) return;
    for (size_t i = first; i < rows_.size(); ++i) {
      rows_[i].grad_sum_over = {Axis::tp, Axis::cp, Axis::ep, Axis::dp};
    }
  }
  // A norm over the elements of each head: every TP rank sees its own heads only. Or over those of
  // all `heads`: a weight for each, divided as the projection's rows are.
  void add_head_norm(int layer, const std::string& slot, const std::string& name, int64_t heads) {
    const bool whole = shape_.qk_norm_whole;
    const int64_t numel = (whole ? heads : 1) * shape_.head_dim;
    ParamRow& row =
        add(layer, slot + ".weight", name + ".weight", {numel}, whole ? 0 : -1, InitKind::ones);
    if (whole && heads == shape_.heads) return;
    if (whole) row.units = heads;
    row.grad_sum_over = {Axis::tp, Axis::cp, Axis::ep, Axis::dp};
  }

  // A linear of which every TP rank has all, and the gradient that its own part of what follows
  // gives: scores of the experts or of the block of all, latents.
  void add_whole_linear(int layer, const std::string& slot, const std::string& name, int64_t out,
                        bool bias = false) {
    ParamRow& row = add(layer, slot + ".weight", name + ".weight", {out, shape_.hidden}, -1,
                        InitKind::normal, shape_.init_std);
    row.out_in = true;
    row.matrix = std::min(out, shape_.hidden) > 1;
    row.grad_sum_over = {Axis::tp, Axis::cp, Axis::ep, Axis::dp};
    if (bias) {
      add(layer, slot + ".bias", name + ".bias", {out}, -1, InitKind::zeros).grad_sum_over = {
          Axis::tp, Axis::cp, Axis::ep, Axis::dp};
    }
    add_adapter(layer, slot, shape_.hidden, {{name, out}}, Split::none);
  }
  // Of latents, which are made on every rank.
  void add_latent_norm(int layer, const std::string& slot, const std::string& name, int64_t rank) {
    add(layer, slot + ".weight", name + ".weight", {rank}, -1, InitKind::ones).grad_sum_over = {
        Axis::tp, Axis::cp, Axis::ep, Axis::dp};
  }

  // One matmul, whose output columns may be several parameters in public.
  struct Part {
    std::string name;
    int64_t out;
    int64_t units = 0;
    int segments = 1;
  };
  void add_linear(int layer, const std::string& slot, int64_t in, const std::vector<Part>& parts,
                  Split split, double std, bool bias) {
    const bool out_in = shape_.family() == Family::llama;
    const int out_axis = out_in ? 0 : 1;
    for (const Part& part : parts) {
      const std::vector<int64_t> dims =
          out_in ? std::vector{part.out, in} : std::vector{in, part.out};
      const int axis = split == Split::column ? out_axis : 1 - out_axis;
      ParamRow& row =
          add(layer, slot + ".weight", part.name + ".weight", dims, axis, InitKind::normal, std);
      row.out_in = out_in;
      row.matrix = std::min(in, part.out / part.segments) > 1;
      divide(row, part);
    }
    for (const Part& part : parts) {
      if (!bias) break;
      // A row-parallel bias is added once, after the reduction: replicated.
      ParamRow& row = add(layer, slot + ".bias", part.name + ".bias", {part.out},
                          split == Split::column ? 0 : -1, InitKind::zeros);
      divide(row, part);
    }
    add_adapter(layer, slot, in, parts, split);
  }
  size_t size() const { return rows_.size(); }
  // The rows from `first` on.
  void belongs_to_expert(size_t first, int expert) {
    const auto without_ep = [](const AxisSet& axes) {
      return axes.has(Axis::tp) ? AxisSet{Axis::tp, Axis::cp, Axis::dp}
                                : AxisSet{Axis::cp, Axis::dp};
    };
    for (size_t i = first; i < rows_.size(); ++i) {
      rows_[i].expert = expert;
      rows_[i].replicated_over = without_ep(rows_[i].replicated_over);
      // Whatever is sequence-parallel, every TP rank has all tokens of an expert.
      rows_[i].grad_sum_over = {Axis::cp, Axis::dp};
    }
  }
  std::vector<ParamRow> take() {
    for (ParamRow& row : rows_) row.frozen = shape_.lora && !is_adapter(row);
    return std::move(rows_);
  }

 private:
  // Of a linear, divided as its own matrix is. What TP ranks hold in common of it has on each the
  // gradient that the rank's part of the linear gives.
  void add_adapter(int layer, const std::string& slot, int64_t in, const std::vector<Part>& parts,
                   Split split) {
    if (!shape_.lora.adapts(slot)) return;
    const int64_t rank = shape_.lora.rank;
    const AxisSet all = {Axis::tp, Axis::cp, Axis::ep, Axis::dp};
    const auto add_matrix = [&](const char* which, const std::string& name,
                                const std::vector<int64_t>& dims, int axis, InitKind init,
                                double std) -> ParamRow& {
      ParamRow& row = add(layer, slot + which, name + ".weight", dims, axis, init, std);
      row.out_in = true;
      if (axis < 0) row.grad_sum_over = all;
      return row;
    };
    // The variance of torch's Linear; with B zero the model begins as it was.
    const double std = 1 / std::sqrt(3.0 * static_cast<double>(in));
    add_matrix(kAdapterIn, parts.front().name + ".lora_A", {rank, in}, split == Split::row ? 1 : -1,
               InitKind::normal, std);
    for (const Part& part : parts) {
      divide(add_matrix(kAdapterOut, part.name + ".lora_B", {part.out, rank},
                        split == Split::column ? 0 : -1, InitKind::zeros, 0),
             part);
    }
  }

  static void divide(ParamRow& row, const Part& part) {
    row.segments = part.segments;
    row.units = part.units;
    // Copies of one KV head each serve their own query heads.
    if (part.units > 0) row.grad_sum_over = {Axis::tp, Axis::cp, Axis::ep, Axis::dp};
  }

  const ModelShape& shape_;
  const bool sequence_parallel_;
  std::vector<ParamRow> rows_;
};

void add_gpt2(TableBuilder& table, const ModelShape& shape, double residual_std) {
  const double std = shape.init_std;
  const int64_t h = shape.hidden;
  table.add_vocab(-1, "tokens", "transformer.wte.weight");
  table.add(-1, "positions", "transformer.wpe.weight", {shape.max_seq, h}, -1, InitKind::normal,
            std);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string base = fmt::format("transformer.h.{}.", layer);
    const int64_t width = shape.query_width();
    table.add_norm(layer, "attn.norm", base + "ln_1");
    table.add_linear(layer, "attn.qkv", h, {{base + "attn.c_attn", 3 * width, 0, 3}}, Split::column,
                     std, shape.qkv_bias);
    table.add_linear(layer, "attn.proj", width, {{base + "attn.c_proj", h}}, Split::row,
                     residual_std, shape.bias);
    table.add_norm(layer, "mlp.norm", base + "ln_2");
    table.add_linear(layer, "mlp.up", h, {{base + "mlp.c_fc", shape.ffn}}, Split::column, std,
                     shape.bias);
    table.add_linear(layer, "mlp.down", shape.ffn, {{base + "mlp.c_proj", h}}, Split::row,
                     residual_std, shape.bias);
  }
  const int head = static_cast<int>(shape.layers);
  table.add_norm(head, "norm", "transformer.ln_f");
  if (!shape.tie_embeddings) table.add_vocab(head, "head", "lm_head.weight");
}

// Of latent attention, what makes queries, keys and values.
void add_latents(TableBuilder& table, const ModelShape& shape, int layer,
                 const std::string& attention) {
  const double std = shape.init_std;
  const ModelShape::Latent& latent = shape.latent;
  if (latent.q_rank > 0) {
    table.add_whole_linear(layer, "attn.q_down", attention + "q_a_proj", latent.q_rank);
    table.add_latent_norm(layer, "attn.q_down_norm", attention + "q_a_layernorm", latent.q_rank);
  }
  table.add_linear(layer, "attn.q", latent.q_rank > 0 ? latent.q_rank : shape.hidden,
                   {{attention + (latent.q_rank > 0 ? "q_b_proj" : "q_proj"), shape.query_width()}},
                   Split::column, std, false);
  table.add_whole_linear(layer, "attn.kv_down", attention + "kv_a_proj_with_mqa",
                         shape.latent_width());
  table.add_latent_norm(layer, "attn.kv_down_norm", attention + "kv_a_layernorm", latent.kv_rank);
  table.add_linear(layer, "attn.kv", latent.kv_rank,
                   {{attention + "kv_b_proj", shape.heads * shape.latent_pair()}}, Split::column,
                   std, false);
}

// The linears of a SwiGLU block, by their public names.
struct GatedNames {
  const char *gate, *up, *down;
};

// Mixtral's w1 is the gate, w3 up, w2 down.
void add_experts(TableBuilder& table, const ModelShape& shape, int layer,
                 const std::string& layer_base, double residual_std) {
  const int64_t h = shape.hidden;
  const bool mixtral = shape.names_of_mixtral();
  const std::string base = layer_base + (mixtral ? "block_sparse_moe." : "mlp.");
  const GatedNames qwen = {"gate_proj", "up_proj", "down_proj"};
  const GatedNames names = mixtral ? GatedNames{"w1", "w3", "w2"} : qwen;
  // gpt-oss's, the one public mixture with biases.
  table.add_whole_linear(layer, "mlp.router", base + (shape.bias ? "router" : "gate"),
                         shape.experts, shape.bias);
  if (shape.expert_bias) {
    table
        .add(layer, "mlp.expert_bias", base + "gate.e_score_correction_bias", {shape.experts}, -1,
             InitKind::zeros)
        .balances = true;
  }
  if (shape.shared_ffn > 0) {
    // DeepSeek's are several of one width, in one block.
    const std::string shared = base + (shape.shared_gate ? "shared_expert." : "shared_experts.");
    table.add_linear(layer, "mlp.up", h,
                     {{shared + qwen.gate, shape.shared_ffn}, {shared + qwen.up, shape.shared_ffn}},
                     Split::column, shape.init_std, false);
    table.add_linear(layer, "mlp.down", shape.shared_ffn, {{shared + qwen.down, h}}, Split::row,
                     residual_std, false);
    if (shape.shared_gate) {
      table.add_whole_linear(layer, "mlp.shared_gate", base + "shared_expert_gate", 1);
    }
  }
  for (int64_t e = 0; e < shape.experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", base, e);
    const size_t first = table.size();
    table.add_linear(layer, expert_slot(e, "up"), h,
                     {{expert + names.gate, shape.ffn}, {expert + names.up, shape.ffn}},
                     Split::column, shape.init_std, shape.bias);
    table.add_linear(layer, expert_slot(e, "down"), shape.ffn, {{expert + names.down, h}},
                     Split::row, residual_std, shape.bias);
    table.belongs_to_expert(first, static_cast<int>(e));
  }
}

void add_llama(TableBuilder& table, const ModelShape& shape, double residual_std) {
  const double std = shape.init_std;
  const int64_t h = shape.hidden;
  table.add_vocab(-1, "tokens", "model.embed_tokens.weight");
  if (shape.position == PositionType::learned) {
    table.add(-1, "positions", "model.embed_positions.weight", {shape.max_seq, h}, -1,
              InitKind::normal, std);
  }
  const int64_t ffn = shape.experts > 0 ? shape.dense_layer_ffn : shape.ffn;  // of dense layers
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string base = fmt::format("model.layers.{}.", layer);
    const std::string attention = base + "self_attn.", mlp = base + "mlp.";
    if (shape.norms_inputs()) table.add_norm(layer, "attn.norm", base + "input_layernorm");
    if (shape.has_latents()) {
      add_latents(table, shape, layer, attention);
    } else {
      table.add_linear(layer, "attn.qkv", h,
                       {{attention + "q_proj", shape.query_width()},
                        {attention + "k_proj", shape.key_width(), shape.kv_heads},
                        {attention + "v_proj", shape.value_width(), shape.kv_heads}},
                       Split::column, std, shape.qkv_bias);
    }
    if (shape.attention_sinks) {
      table.add(layer, "attn.sinks", attention + "sinks", {shape.heads}, 0, InitKind::normal, std);
    }
    if (shape.qk_norm) {
      table.add_head_norm(layer, "attn.q_norm", attention + "q_norm", shape.heads);
      table.add_head_norm(layer, "attn.k_norm", attention + "k_norm", shape.kv_heads);
    }
    table.add_linear(layer, "attn.proj", shape.context_width(), {{attention + "o_proj", h}},
                     Split::row, residual_std, shape.bias);
    // Gemma 2's and OLMo 2's names where outputs have norms: there what is "post attention" is.
    const bool outputs = shape.norms_outputs();
    if (outputs) table.add_norm(layer, "attn.norm_behind", base + "post_attention_layernorm");
    if (shape.norms_inputs() && !shape.shared_norm) {
      table.add_norm(layer, "mlp.norm",
                     base + (outputs ? "pre_feedforward_layernorm" : "post_attention_layernorm"));
    }
    if (shape.is_mixture(layer)) {
      add_experts(table, shape, layer, base, residual_std);
    } else {
      std::vector<TableBuilder::Part> up = {{mlp + "up_proj", ffn}};
      if (shape.gated()) up.insert(up.begin(), {mlp + "gate_proj", ffn});
      table.add_linear(layer, "mlp.up", h, up, Split::column, std, shape.bias);
      table.add_linear(layer, "mlp.down", ffn, {{mlp + "down_proj", h}}, Split::row, residual_std,
                       shape.bias);
    }
    if (outputs) table.add_norm(layer, "mlp.norm_behind", base + "post_feedforward_layernorm");
  }
  const int head = static_cast<int>(shape.layers);
  table.add_norm(head, "norm", "model.norm");
  if (!shape.tie_embeddings) table.add_vocab(head, "head", "lm_head.weight");
  if (shape.head_bias) {
    table.add(head, "head.bias", "lm_head.bias", {shape.vocab}, 0, InitKind::zeros).padded_rows =
        shape.padded_vocab;
  }
}

}  // namespace

int64_t ParamRow::numel() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

bool is_adapter(const ParamRow& row) {
  return row.slot.ends_with(kAdapterIn) || row.slot.ends_with(kAdapterOut);
}

std::vector<AdaptedRow> adapted_rows(const std::vector<ParamRow>& table) {
  // add_linear's order: the matrices of a linear, perhaps biases, then A, and a B for each matrix.
  std::vector<AdaptedRow> adapted;
  for (size_t i = 0; i < table.size(); ++i) {
    const ParamRow& a = table[i];
    if (!a.slot.ends_with(kAdapterIn)) continue;
    const std::string linear = a.slot.substr(0, a.slot.size() - std::strlen(kAdapterIn));
    const auto follows_on = [&](const ParamRow& row, const std::string& slot) {
      return row.layer == a.layer && row.slot == linear + slot;
    };
    size_t weight = i;
    while (weight > 0 &&
           (follows_on(table[weight - 1], ".weight") || follows_on(table[weight - 1], ".bias"))) {
      --weight;
    }
    for (size_t b = i + 1; b < table.size() && follows_on(table[b], kAdapterOut); ++b) {
      adapted.push_back({&table[weight++], &a, &table[b]});
    }
  }
  return adapted;
}

std::string expert_slot(int64_t expert, const char* linear) {
  return fmt::format("mlp.expert{}.{}", expert, linear);
}

std::vector<ParamRow> shard_table(const ModelShape& shape, bool sequence_parallel) {
  TableBuilder table(shape, sequence_parallel);
  // GPT-2: the two projections that write to the residual stream start smaller by sqrt(2 * layers).
  const double residual_std = shape.init_std / std::sqrt(2.0 * static_cast<double>(shape.layers));
  if (shape.family() == Family::gpt2) {
    add_gpt2(table, shape, residual_std);
  } else {
    add_llama(table, shape, residual_std);
  }
  return table.take();
}

VocabShard vocab_shard(const ModelShape& shape, int tp, int tp_rank) {
  VocabShard shard;
  shard.rows = (shape.padded_vocab + tp - 1) / tp;
  shard.first = shard.rows * tp_rank;
  shard.valid = std::clamp<int64_t>(shape.vocab - shard.first, 0, shard.rows);
  return shard;
}

int64_t local_kv_heads(const ModelShape& shape, int tp) {
  return std::max<int64_t>(1, shape.kv_heads / tp);
}

int tp_copies(const ParamRow& row, int tp) {
  if (row.tp_axis < 0) return tp;
  return row.units > 0 && row.units < tp ? tp / static_cast<int>(row.units) : 1;
}

std::vector<int64_t> local_shape(const ParamRow& row, const GridSizes& sizes) {
  std::vector<int64_t> dims = row.shape;
  dims[0] = row.padded_rows;
  if (row.tp_axis >= 0) {
    const int parts = sizes[Axis::tp] / tp_copies(row, sizes[Axis::tp]);
    int64_t& split = dims[static_cast<size_t>(row.tp_axis)];
    split = (split + parts - 1) / parts;
  }
  return dims;
}

std::vector<ParamRect> local_rects(const ParamRow& row, const GridSizes& sizes,
                                   const Coord& coord) {
  const std::vector<int64_t> local = local_shape(row, sizes);
  const size_t dims = row.shape.size();
  if (row.tp_axis < 0) {
    return {{std::vector<int64_t>(dims, 0), std::vector<int64_t>(dims, 0), row.shape}};
  }
  const auto axis = static_cast<size_t>(row.tp_axis);
  const int part = coord[Axis::tp] / tp_copies(row, sizes[Axis::tp]);
  const int64_t global_segment = row.shape[axis] / row.segments;
  const int64_t local_segment = local[axis] / row.segments;
  std::vector<ParamRect> rects;
  for (int segment = 0; segment < row.segments; ++segment) {
    const int64_t first = local_segment * part;
    // The last ranks of a padded dimension own fewer rows, or none.
    const int64_t count = std::clamp<int64_t>(global_segment - first, 0, local_segment);
    if (count == 0) continue;
    ParamRect rect{std::vector<int64_t>(dims, 0), std::vector<int64_t>(dims, 0), row.shape};
    rect.global_offset[axis] = segment * global_segment + first;
    rect.local_offset[axis] = segment * local_segment;
    rect.extent[axis] = count;
    rects.push_back(std::move(rect));
  }
  return rects;
}

std::vector<ParamRect> clip_to_range(const std::vector<ParamRect>& rects,
                                     const std::vector<int64_t>& local, int64_t first,
                                     int64_t count) {
  const size_t last = local.size() - 1;
  const bool matrix = last > 0;
  const int64_t width = local[last];
  std::vector<ParamRect> clipped;
  for (const ParamRect& rect : rects) {
    const int64_t columns = rect.extent[last];
    bool grows = false;  // the newest piece ends with a whole row
    for (int64_t row = 0; row < (matrix ? rect.extent[0] : 1); ++row) {
      const int64_t at = (matrix ? (rect.local_offset[0] + row) * width : 0) +
                         rect.local_offset[last];  // of the row's first element
      const int64_t from = std::clamp<int64_t>(first - at, 0, columns);
      const int64_t to = std::clamp<int64_t>(first + count - at, 0, columns);
      const bool whole = from == 0 && to == columns;
      if (from >= to) continue;
      if (grows && whole) {
        ++clipped.back().extent[0];
        continue;
      }
      ParamRect piece = rect;
      piece.global_offset[last] += from;
      piece.local_offset[last] += from;
      piece.extent[last] = to - from;
      if (matrix) {
        piece.global_offset[0] += row;
        piece.local_offset[0] += row;
        piece.extent[0] = 1;
      }
      clipped.push_back(std::move(piece));
      grows = whole && matrix;
    }
  }
  return clipped;
}

}  // namespace mtl
