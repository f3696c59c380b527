// mtl ckpt merge RUN -o FILE: all weights in one safetensors file.
#include <fmt/format.h>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "cli/jobs/run_of_job.h"
#include "common/error.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/find_run.h"

namespace mtl {

int command_ckpt_merge(const Arguments& args) {
  std::string which, out = "model.safetensors", size;
  std::optional<std::string> dtype;
  CommandLine line({"ckpt merge [options] RUN | CHECKPOINT"},
                   "Writes all weights of a checkpoint, whatever layout wrote it, into one "
                   "safetensors file under their public names, without the optimizer. (For a "
                   "folder that transformers opens, see mtl ckpt export.)");
  line.example("mtl ckpt merge runs/shakespeare -o model.safetensors", "");
  line.example("mtl ckpt merge --dtype bf16 --max_shard_size 5GB RUN -o out/model.safetensors",
               "several files and an index");
  line.positional("RUN | CHECKPOINT", which, "checkpoints/step-*, or a run: its newest");
  line.option("output,o", "FILE", out, "the file; not there yet", "model.safetensors");
  line.choice("dtype", {"fp32", "bf16", "fp16"}, dtype, "of the weights", "as stored");
  line.option("max_shard_size", "SIZE", size,
              "more than this becomes several files and an index; 5GB, 500MB, 2GiB", "one file");
  if (!line.parse(args)) return 0;
  if (out.empty()) fail_missing_option("merge", "-o FILE");
  const int64_t most = size.empty() ? 0 : parse_bytes(size, "max_shard_size");
  std::optional<DType> wanted;
  if (dtype) wanted = *dtype == "fp32" ? DType::f32 : *dtype == "bf16" ? DType::bf16 : DType::f16;
  for (const std::filesystem::path& file :
       merge_weights(find_checkpoint(run_of_job(which)), out, wanted, most)) {
    fmt::print("{}\n", file.string());
  }
  return 0;
}

}  // namespace mtl
