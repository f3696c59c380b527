// mtl generate RUN PROMPT: text from a trained model, streamed to stdout as it is sampled.
#include "runtime/generate.h"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/jobs/run_of_job.h"
#include "common/error.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

std::string read_stdin() {
  std::string text;
  char block[1 << 16];
  while (const size_t got = std::fread(block, 1, sizeof block, stdin)) text.append(block, got);
  if (std::ferror(stdin) == 0) return text;
  throw Error(Exit::environment, {.code = "generate.prompt",
                                  .what = "the prompt cannot be read from standard input",
                                  .help = "give the text itself, or - behind a pipe or a file"});
}

}  // namespace

int command_generate(const Arguments& args) {
  GenerateOptions options;
  std::string run;
  Sampling& sampling = options.sampling;
  auto seed = static_cast<int64_t>(sampling.seed);
  CommandLine line({"generate [options] RUN PROMPT"},
                   "Continues a prompt with a trained model. The text goes to stdout, piece by "
                   "piece; the prompt is not repeated.");
  line.example("mtl generate runs/shakespeare \"ROMEO:\"", "the newest run of that name");
  line.example("mtl generate --tokens 500 --temperature 0 RUN \"The\"",
               "always the likeliest token");
  line.positional("RUN", run, "a run directory, runs/NAME (its newest run) or a checkpoint");
  line.example("mtl generate --chat llama3 RUN \"What is a glacier?\"",
               "an answer, of a model that has learned conversations");
  line.example("mtl generate RUN - < prompt.txt", "a prompt that is longer than a command line");
  line.positional("PROMPT", options.prompt,
                  "the text to continue; - reads it from standard input, to its last byte");
  line.option("tokens", "N", options.tokens, 1, "how many tokens to sample", "200");
  line.option("temperature", "T", sampling.temperature, 0.0,
              "below 1 plays safe, above 1 takes risks, 0 takes the likeliest", "0.8");
  line.option("top_k", "K", sampling.top_k, 0, "sample among the K likeliest tokens only; 0 = all",
              "0");
  line.option("top_p", "P", sampling.top_p, 0.0, 1.0,
              "and among the likeliest that have P of the probability together; 1 = all", "1");
  line.option(
      "chat", "FORMAT", options.chat,
      "PROMPT is what a user says, and the text the answer: the FORMAT of mtl data tokenize "
      "that the model has learned",
      "the prompt goes on");
  line.option("system", "TEXT", options.system, "with --chat: what \"system\" says before",
              "nothing");
  line.option("seed", "S", seed, 0, "the same seed gives the same text", "1234");
  if (!line.parse(args)) return 0;
  options.run = run_of_job(run);
  sampling.seed = static_cast<uint64_t>(seed);
  if (!options.system.empty() && options.chat.empty()) {
    throw Error(Exit::usage, {.code = "usage.option",
                              .what = "--system, and no --chat that says how it is written",
                              .help = "name the format that the model has learned: --chat chatml"});
  }
  std::error_code ignored;
  if (!fs::exists(run, ignored) && !fs::exists(fs::path("runs") / run, ignored) &&
      fs::is_directory(options.prompt, ignored)) {
    throw Error(Exit::usage,
                {.code = "usage.order",
                 .what = fmt::format("'{}' is no run, and '{}' a folder", run, options.prompt),
                 .help = "RUN stands before PROMPT: mtl generate RUN PROMPT"});
  }
  if (options.prompt == "-") options.prompt = read_stdin();
  generate(
      options,
      [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      },
      [](const Diagnostic& warning) { fmt::print(stderr, "{}", render(warning)); });
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace mtl
