// mtl ckpt merge RUN -o FILE: all weights in one safetensors file.
#include <fmt/format.h>

#include "cli/ckpt.h"
#include "cli/command_line.h"
#include "common/error.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/run.h"

namespace mtl {

namespace {

// "5GB", "500MB", "2GiB"; 0 = one file.
int64_t parse_size(const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0},
                             {"KB", 1e3},     {"MB", 1e6},        {"GB", 1e9},
                             {"B", 1.0},      {"", 1.0}};
  size_t end = 0;
  double number = -1;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  for (const Unit& unit : kUnits) {
    if (end > 0 && number >= 0 && number < 1e12 && text.substr(end) == unit.name) {
      return static_cast<int64_t>(number * unit.bytes);
    }
  }
  throw Error(Exit::usage, {.code = "usage.value",
                            .what = fmt::format("--max_shard_size: '{}' is no size", text),
                            .help = "give one like 5GB, 500MB or 2GiB"});
}

}  // namespace

int command_ckpt_merge(const Arguments& args) {
  std::string which, out = "model.safetensors", size = "0";
  std::optional<std::string> dtype;
  CommandLine line({"ckpt merge [options] RUN | CHECKPOINT"},
                   "Writes all weights of a checkpoint, whatever layout wrote it, into one "
                   "safetensors file under their public names, without the optimizer. (For a "
                   "folder that transformers opens, see mtl ckpt export.)");
  line.example("mtl ckpt merge runs/shakespeare -o model.safetensors", "");
  line.example("mtl ckpt merge --dtype bf16 --max_shard_size 5GB RUN -o out/model.safetensors",
               "several files and an index");
  line.positional("RUN | CHECKPOINT", which, "checkpoints/step-*, or a run: its newest");
  line.option("output,o", "FILE", out, "the file", "model.safetensors");
  line.choice("dtype", {"fp32", "bf16", "fp16"}, dtype, "of the weights", "as stored");
  line.option("max_shard_size", "SIZE", size,
              "more than this becomes several files and an index; 5GB, 500MB, 2GiB", "one file");
  if (!line.parse(args)) return 0;
  std::optional<DType> wanted;
  if (dtype) wanted = *dtype == "fp32" ? DType::f32 : *dtype == "bf16" ? DType::bf16 : DType::f16;
  for (const std::filesystem::path& file :
       merge_weights(find_checkpoint(which), out, wanted, parse_size(size))) {
    fmt::print("{}\n", file.string());
  }
  return 0;
}

}  // namespace mtl
