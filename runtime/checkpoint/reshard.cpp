// A checkpoint's files as another layout would have written them (rewrite.h).
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/checkpoint/whole_tensor.h"
#include "runtime/checkpoint/write_parts.h"
#include "runtime/plan/param_layout.h"
#include "runtime/plan/schedule/pipeline.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

namespace {

// Rectangles of the whole tensor: `data` is all of it, so local places are global ones.
CheckpointTensor parts_of(const std::shared_ptr<CheckpointReader>& reader, const TensorInfo& tensor,
                          DType dtype, std::vector<ParamRect> rects) {
  CheckpointTensor part =
      streamed(tensor, dtype, [reader, tensor, dtype](int64_t at, int64_t n, void* to) {
        read_elements(*reader, tensor, dtype, at, n, to);
      });
  for (ParamRect& rect : rects) rect.local_offset = rect.global_offset;
  part.rects = std::move(rects);
  return part;
}

[[noreturn]] void fail_layout(const std::string& what, const std::string& help) {
  throw Error(Exit::usage, Diagnostic{.code = "usage.value", .what = what, .help = help});
}

// The row of a tensor: its own, or, of optimizer state, that of its parameter.
const ParamRow* row_of(const std::vector<ParamRow>& table, const std::string& tensor) {
  const ParamRow* found = nullptr;
  for (const ParamRow& row : table) {
    const bool its_own = tensor == row.name;
    const bool its_state = tensor.starts_with(row.name + ".") &&
                           tensor.find('.', row.name.size() + 1) == std::string::npos;
    if (its_own || its_state) found = found && found->name.size() > row.name.size() ? found : &row;
  }
  return found;
}

int stage_of(const ParamRow& row, const std::vector<std::vector<ChunkRange>>& stages) {
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (const ChunkRange& chunk : stages[stage]) {
      if (row.layer < 0 && chunk.embedding) return static_cast<int>(stage);
      if (row.layer >= chunk.first_layer && row.layer < chunk.end_layer()) {
        return static_cast<int>(stage);
      }
      // Behind the last layer: final norm and head.
      if (row.layer >= chunk.end_layer() && chunk.head) return static_cast<int>(stage);
    }
  }
  return 0;
}

using Ranks = std::vector<std::vector<CheckpointTensor>>;

Ranks ranks_of_layout(const std::shared_ptr<CheckpointReader>& reader, const NewLayout& layout,
                      const std::string& where) {
  const ModelShape shape = model_shape_from_json(reader->state().at("model"));
  if (shape.heads % layout.tp != 0 || layout.pp > std::max<int64_t>(1, shape.layers)) {
    fail_layout(fmt::format("{} heads and {} layers cannot be spread over tp {} and pp {}",
                            shape.heads, shape.layers, layout.tp, layout.pp),
                "give degrees that divide the heads and are no more than the layers");
  }
  GridSizes sizes;
  sizes[Axis::tp] = layout.tp;
  sizes[Axis::dp] = layout.dp;
  sizes[Axis::pp] = layout.pp;
  const Grid grid(sizes);
  const std::vector<ParamRow> table = shard_table(shape, false);
  const auto stages = pipeline_layout(balanced_layers(shape.layers, layout.pp, 1.0), layout.pp, 1);
  Ranks ranks(static_cast<size_t>(grid.world()));
  size_t turn = 0;
  std::string parameter;
  for (const TensorInfo& tensor : tensors_of(*reader)) {
    const DType dtype = dtype_of(tensor, where);
    const ParamRow* const row = row_of(table, tensor.name);
    if (row == nullptr || row->shape != tensor.shape) {
      const Dims zero(tensor.shape.size(), 0);
      ranks[0].push_back(parts_of(reader, tensor, dtype, {{zero, zero, tensor.shape}}));
      continue;
    }
    // A parameter and its optimizer state stay together; replicas take turns.
    if (row->name != parameter) ++turn;
    parameter = row->name;
    const int stage = stage_of(*row, stages);
    for (int tp = 0; tp < layout.tp; tp += tp_copies(*row, layout.tp)) {
      Coord coord;
      coord[Axis::tp] = tp;
      coord[Axis::pp] = stage;
      coord[Axis::dp] = static_cast<int>(turn % static_cast<size_t>(layout.dp));
      std::vector<ParamRect> rects = local_rects(*row, sizes, coord);
      if (rects.empty()) continue;
      ranks[static_cast<size_t>(grid.rank(coord))].push_back(
          parts_of(reader, tensor, dtype, std::move(rects)));
    }
  }
  return ranks;
}

// Cuts tensors along their first axis where a file is full.
Ranks ranks_of_size(const std::shared_ptr<CheckpointReader>& reader, int shards,
                    const std::string& where) {
  const std::vector<TensorInfo> tensors = tensors_of(*reader);
  int64_t total = 0;
  for (const TensorInfo& tensor : tensors) {
    total += tensor.elements * bytes_of(dtype_of(tensor, where));
  }
  Ranks ranks(static_cast<size_t>(shards));
  int64_t done = 0;
  for (const TensorInfo& tensor : tensors) {
    const DType dtype = dtype_of(tensor, where);
    const int64_t bytes = tensor.elements * bytes_of(dtype);
    const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const int64_t row_bytes = rows == 0 ? 0 : bytes / rows;
    int64_t row = 0;
    do {
      const auto file = static_cast<size_t>(std::min<int64_t>(
          shards - 1, total == 0 ? 0
                                 : static_cast<int64_t>(static_cast<double>(done) /
                                                        static_cast<double>(total) * shards)));
      const int64_t end_of_file = file + 1 == static_cast<size_t>(shards)
                                      ? total
                                      : static_cast<int64_t>(static_cast<double>(total) / shards *
                                                             static_cast<double>(file + 1));
      int64_t take = rows - row;
      if (row_bytes > 0 && file + 1 < static_cast<size_t>(shards)) {
        take = std::clamp<int64_t>((end_of_file - done + row_bytes - 1) / row_bytes, 1, take);
      }
      ParamRect rect{Dims(tensor.shape.size(), 0), {}, tensor.shape};
      if (!tensor.shape.empty()) {
        rect.global_offset[0] = row;
        rect.extent[0] = take;
      }
      if (!ranks[file].empty() && ranks[file].back().name == tensor.name) {
        ranks[file].back().rects.back().extent[0] += take;  // it goes on where it ended
      } else {
        ranks[file].push_back(parts_of(reader, tensor, dtype, {std::move(rect)}));
      }
      row += std::max<int64_t>(take, 1);
      done += take * row_bytes;
    } while (row < rows);
  }
  return ranks;
}

}  // namespace

void reshard_checkpoint(const std::filesystem::path& checkpoint, const NewLayout& layout,
                        const std::filesystem::path& out) {
  const auto reader = std::make_shared<CheckpointReader>(checkpoint);
  const std::string where = checkpoint.string();
  const Ranks ranks = layout.shards > 0 ? ranks_of_size(reader, layout.shards, where)
                                        : ranks_of_layout(reader, layout, where);
  std::vector<ExtraFile> extras;
  for (const std::string& name : reader->extras()) extras.push_back({name, reader->extra(name)});
  write_new_checkpoint(out, reader->state(), extras, ranks);
}

}  // namespace mtl
