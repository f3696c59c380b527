#include "runtime/plan/shard_table.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mtl {

namespace {

constexpr int64_t kAlignElements = 64;  // 256 bytes of f32: a cache line for every engine

// Builds rows with what a kind of parameter implies.
class TableBuilder {
 public:
  explicit TableBuilder(const ModelShape& shape) : shape_(shape) {}

  // `tp_axis` -1 = replicated over TP.
  void add(int layer, std::string slot, std::string name, std::vector<int64_t> dims, int tp_axis,
           InitKind init, double std = 0, int segments = 1) {
    ParamRow row;
    row.layer = layer;
    row.slot = std::move(slot);
    row.name = std::move(name);
    row.padded_rows = dims[0];
    row.decays = dims.size() >= 2;
    row.shape = std::move(dims);
    row.tp_axis = tp_axis;
    row.segments = segments;
    row.replicated_over = tp_axis < 0 ? AxisSet{Axis::tp, Axis::cp, Axis::ep, Axis::dp}
                                      : AxisSet{Axis::cp, Axis::ep, Axis::dp};
    row.grad_sum_over = {Axis::cp, Axis::ep, Axis::dp};
    row.init = init;
    row.init_std = std;
    rows_.push_back(std::move(row));
  }
  void add_vocab(int layer, std::string slot, std::string name) {
    add(layer, std::move(slot), std::move(name), {shape_.vocab, shape_.hidden}, 0, InitKind::normal,
        shape_.init_std);
    rows_.back().padded_rows = shape_.padded_vocab;
  }
  void add_norm(int layer, const std::string& slot, const std::string& name) {
    add(layer, slot + ".weight", name + ".weight", {shape_.hidden}, -1, InitKind::ones);
    if (shape_.bias)
      add(layer, slot + ".bias", name + ".bias", {shape_.hidden}, -1, InitKind::zeros);
  }
  // Weight [in, out]: Hugging Face's Conv1D layout for GPT-2.
  void add_linear(int layer, const std::string& slot, const std::string& name, int64_t in,
                  int64_t out, bool column_parallel, double std, int segments = 1) {
    add(layer, slot + ".weight", name + ".weight", {in, out}, column_parallel ? 1 : 0,
        InitKind::normal, std, segments);
    if (shape_.bias) {
      // A row-parallel bias is added once, after the reduction: replicated.
      add(layer, slot + ".bias", name + ".bias", {out}, column_parallel ? 0 : -1, InitKind::zeros,
          0, segments);
    }
  }
  std::vector<ParamRow> take() { return std::move(rows_); }

 private:
  const ModelShape& shape_;
  std::vector<ParamRow> rows_;
};

}  // namespace

int64_t ParamRow::numel() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::vector<ParamRow> shard_table(const ModelShape& shape) {
  TableBuilder table(shape);
  const double std = shape.init_std;
  // GPT-2: the two projections that write to the residual stream start smaller by sqrt(2 * layers).
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(shape.layers));
  table.add_vocab(-1, "tokens", "transformer.wte.weight");
  table.add(-1, "positions", "transformer.wpe.weight", {shape.max_seq, shape.hidden}, -1,
            InitKind::normal, std);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string base = fmt::format("transformer.h.{}.", layer);
    const int64_t h = shape.hidden;
    const int64_t width = shape.heads * shape.head_dim;
    table.add_norm(layer, "attn.norm", base + "ln_1");
    table.add_linear(layer, "attn.qkv", base + "attn.c_attn", h, 3 * width, true, std, 3);
    table.add_linear(layer, "attn.proj", base + "attn.c_proj", width, h, false, residual_std);
    table.add_norm(layer, "mlp.norm", base + "ln_2");
    table.add_linear(layer, "mlp.up", base + "mlp.c_fc", h, shape.ffn, true, std);
    table.add_linear(layer, "mlp.down", base + "mlp.c_proj", shape.ffn, h, false, residual_std);
  }
  const int head = static_cast<int>(shape.layers);
  table.add_norm(head, "norm", "transformer.ln_f");
  if (!shape.tie_embeddings) table.add_vocab(head, "head", "lm_head.weight");
  return table.take();
}

const ParamRow* find_row(const std::vector<ParamRow>& table, int layer, const std::string& slot) {
  for (const ParamRow& row : table) {
    if (row.layer == layer && row.slot == slot) return &row;
  }
  return nullptr;
}

VocabShard vocab_shard(const ModelShape& shape, int tp, int tp_rank) {
  VocabShard shard;
  shard.rows = (shape.padded_vocab + tp - 1) / tp;
  shard.first = shard.rows * tp_rank;
  shard.valid = std::clamp<int64_t>(shape.vocab - shard.first, 0, shard.rows);
  return shard;
}

std::vector<int64_t> local_shape(const ParamRow& row, const GridSizes& sizes) {
  std::vector<int64_t> dims = row.shape;
  dims[0] = row.padded_rows;
  if (row.tp_axis >= 0) {
    int64_t& split = dims[static_cast<size_t>(row.tp_axis)];
    split = (split + sizes[Axis::tp] - 1) / sizes[Axis::tp];
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
  const int64_t global_segment = row.shape[axis] / row.segments;
  const int64_t local_segment = local[axis] / row.segments;
  std::vector<ParamRect> rects;
  for (int segment = 0; segment < row.segments; ++segment) {
    const int64_t first = local_segment * coord[Axis::tp];
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

ParamLayout param_layout(const std::vector<ParamRow>& table, const GridSizes& sizes) {
  ParamLayout layout;
  for (size_t i = 0; i < table.size(); ++i) {
    ParamPlacement placement;
    placement.row = i;
    placement.shape = local_shape(table[i], sizes);
    placement.offset = layout.total;
    placement.numel = 1;
    for (int64_t d : placement.shape) placement.numel *= d;
    layout.total += (placement.numel + kAlignElements - 1) / kAlignElements * kAlignElements;
    layout.params.push_back(std::move(placement));
  }
  return layout;
}

}  // namespace mtl
