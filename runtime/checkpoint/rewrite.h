// New files out of checkpoints: their mean, one file for everybody, another layout. All of it is
// streamed, in memory of a few pieces, and every byte that is read is verified.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "common/dtype.h"

namespace mtl {

// The mean of the weights of several checkpoints of one model, summed in f64, as a checkpoint
// without optimizer in `out`, which is not there yet. The state is that of the last one, with
// "average_of". Throws Error (Exit::data) ckpt.shape if they are of different models.
void average_checkpoints(const std::vector<std::filesystem::path>& checkpoints,
                         const std::filesystem::path& out);

// All weights, without optimizer, under their public names. `dtype`: of all floating-point weights;
// otherwise as stored. With `max_file_bytes` > 0, and more weights than that, the files are
// STEM-00001-of-0000N.safetensors and STEM.safetensors.index.json, as transformers reads them; a
// tensor is never cut. Returns the files. Throws Error: ckpt.exists (Exit::usage) where `out`, the
// index or one of the files is there already; ckpt.range (Exit::data), fp16_range.h; ckpt.write
// (Exit::environment).
std::vector<std::filesystem::path> merge_weights(const std::filesystem::path& checkpoint,
                                                 const std::filesystem::path& out,
                                                 std::optional<DType> dtype,
                                                 int64_t max_file_bytes);

// The files that ranks of this layout would write; or, with `shards` > 0, so many of nearly the
// same size. Tensors, optimizer, state and extra files stay as they are, bit for bit.
struct NewLayout {
  int tp = 1, pp = 1, dp = 1;
  int shards = 0;
};
void reshard_checkpoint(const std::filesystem::path& checkpoint, const NewLayout& layout,
                        const std::filesystem::path& out);

}  // namespace mtl
