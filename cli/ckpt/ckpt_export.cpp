// mtl ckpt export RUN -o DIR: a trained model in a format of others.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "cli/jobs/run_of_job.h"
#include "common/error.h"
#include "runtime/find_run.h"
#include "runtime/interchange/export.h"

namespace mtl {

int command_ckpt_export(const Arguments& args) {
  ExportOptions options;
  std::string run, out, max_shard;
  std::optional<std::string> format, dtype;
  int64_t tp = 1, pp = 1;
  bool json = false;
  CommandLine line({"ckpt export [options] RUN -o DIR"},
                   "Writes a model as a Hugging Face folder, which transformers and everything "
                   "around it loads, adapters merged into it; or the adapters alone, for PEFT; or "
                   "the model as Megatron's split over ranks.");
  line.example("mtl ckpt export runs/shakespeare -o shakespeare-hf", "the newest checkpoint");
  line.example("mtl ckpt export --dtype bf16 RUN -o DIR", "half the size, rounded");
  line.example("mtl ckpt export --format megatron-split --tp 2 --pp 2 RUN -o DIR",
               "pytorch_model_tp_X_pp_Y.safetensors");
  line.example("mtl ckpt export --format peft RUN -o DIR", "what lora.rank has trained");
  line.positional("RUN", run, "a run directory, runs/NAME (its newest run) or a checkpoint");
  line.option("out,o", "DIR", out, "the folder to make; it is there whole or not at all");
  line.choice("format", {"hf", "peft", "megatron-split"}, format, "what to write", "hf");
  line.choice("dtype", {"fp32", "bf16", "fp16"}, dtype, "type of the weights", "fp32");
  line.option("max_shard_size", "SIZE", max_shard,
              "with hf: a larger model is cut into files of this size", "5GB");
  line.option("chat", "FORMAT", options.chat,
              "with hf: the format of mtl data tokenize --chat that the model has learned becomes "
              "the tokenizer's chat template",
              "none");
  line.option("tp", "N", tp, 1, "tensor parallel ranks of megatron-split", "1");
  line.option("pp", "N", pp, 1, "pipeline stages of megatron-split", "1");
  line.flag("json", json, "say what was written as JSON on stdout");
  if (!line.parse(args)) return 0;
  if (out.empty()) {
    throw Error(Exit::usage, {.code = "usage.missing",
                              .what = "mtl ckpt export needs the folder to make",
                              .help = "mtl ckpt export RUN -o DIR"});
  }
  options.out = out;
  options.max_shard_bytes = parse_bytes(max_shard.empty() ? "5GB" : max_shard, "max_shard_size");
  if (dtype == "bf16") options.dtype = DType::bf16;
  if (dtype == "fp16") options.dtype = DType::f16;
  const bool split = format == "megatron-split";
  if (!split && (tp > 1 || pp > 1)) {
    throw Error(Exit::usage, {.code = "usage.value",
                              .what = "--tp and --pp belong to --format megatron-split",
                              .help = "leave them out: other folders have no ranks"});
  }
  const bool hf = format.value_or("hf") == "hf";
  if (!hf && !max_shard.empty()) {
    throw Error(Exit::usage, {.code = "usage.value",
                              .what = "--max_shard_size belongs to --format hf",
                              .help = "leave it out: the others' files are not cut"});
  }
  if (!hf && !options.chat.empty()) {
    throw Error(Exit::usage, {.code = "usage.value",
                              .what = "--chat belongs to --format hf",
                              .help = "leave it out: the others have no tokenizer"});
  }
  options.tp = static_cast<int>(std::min<int64_t>(tp, 1 << 20));
  options.pp = static_cast<int>(std::min<int64_t>(pp, 1 << 20));
  options.checkpoint = find_intact_checkpoint(run_of_job(run));
  const ExportReport report = split              ? export_megatron_split(options)
                              : format == "peft" ? export_peft(options)
                                                 : export_hf(options);
  for (const Diagnostic& warning : report.warnings) fmt::print(stderr, "{}", render(warning));
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"out", out},
                                      {"kind", report.kind},
                                      {"checkpoint", options.checkpoint.string()},
                                      {"parameters", report.parameters},
                                      {"files", report.files},
                                      {"bytes", report.bytes}}
                           .dump());
  } else {
    fmt::print(stderr, "{}: {}, {} parameters, {:.1f} MB in {} file{}, of {}\n", out, report.kind,
               report.parameters, static_cast<double>(report.bytes) / 1e6, report.files,
               report.files == 1 ? "" : "s", options.checkpoint.string());
  }
  return 0;
}

}  // namespace mtl
