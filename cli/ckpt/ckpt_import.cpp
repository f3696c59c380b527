// mtl ckpt import DIR -o RUN_DIR: a model of others as a run of ours.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "common/shell_word.h"
#include "runtime/interchange/hf_architectures.h"
#include "runtime/interchange/import.h"

namespace mtl {

int command_ckpt_import(const Arguments& args) {
  ImportOptions options;
  std::string source, out;
  bool json = false;
  CommandLine line(
      {"ckpt import [options] DIR -o RUN_DIR"},
      "Reads a model from a Hugging Face folder or from a Megatron checkpoint in torch format, and "
      "makes a run directory of it: `mtl generate` works at once, and its train.yaml trains on. "
      "Files are read as data: nothing that is in them is executed.");
  line.example("mtl ckpt import ./Llama-3.2-1B -o runs/llama", "then: mtl generate runs/llama ...");
  line.example("mtl launch runs/llama/train.yaml data.train=corpus.txt", "trains on from there");
  line.example("mtl ckpt import megatron/checkpoints --tokenizer tokenizer.json -o runs/gpt",
               "a directory with latest_checkpointed_iteration.txt");
  line.positional("DIR", source, "the folder of the model");
  line.option("out,o", "RUN_DIR", out, "the run directory to make");
  line.option("tokenizer", "FILE", options.tokenizer,
              "a tokenizer.json, a SentencePiece model, a folder with one, or `bytes`",
              "what DIR has");
  line.flag("json", json, "say what was made as JSON on stdout");
  line.footnote(
      fmt::format("Of Hugging Face's models those whose config.json has a model_type of "
                  "{}.",
                  hf_types()));
  if (!line.parse(args)) return 0;
  if (out.empty()) {
    throw Error(Exit::usage, {.code = "usage.missing",
                              .what = "mtl ckpt import needs the run directory to make",
                              .help = "mtl ckpt import DIR -o RUN_DIR"});
  }
  options.source = source;
  options.out = out;
  const ImportReport report = import_model(options);
  for (const Diagnostic& warning : report.warnings) fmt::print(stderr, "{}", render(warning));
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"out", out},
                                      {"kind", report.kind},
                                      {"checkpoint", report.checkpoint.string()},
                                      {"parameters", report.parameters},
                                      {"tokenizer", report.tokenizer},
                                      {"model", to_json(report.shape)}}
                           .dump());
  } else {
    fmt::print(stderr, "{}: {}, {} parameters\n", out, report.kind, report.parameters);
    if (report.tokenizer) {
      fmt::print(stderr, "generate  mtl generate {} \"...\"\n", shell_word(out));
    }
    fmt::print(stderr, "train on  mtl launch {} data.train=FILE\n",
               shell_word(out + "/train.yaml"));
  }
  return 0;
}

}  // namespace mtl
