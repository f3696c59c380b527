// mtl data train-tokenizer FILES -o tokenizer.json
#include <algorithm>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/data/data.h"
#include "common/error.h"
#include "common/files.h"
#include "common/same_file.h"
#include "runtime/data/text_input.h"
#include "runtime/data/tokenizer/train_bpe.h"

namespace mtl {

namespace {

// A glob that the shell expands behind -o leaves one of the texts there.
void refuse_input(const std::string& output, const std::vector<std::string>& names) {
  for (const TextInput& input : find_inputs(names, "").files) {
    if (input.path == "-" || !same_regular_file(input.path, output)) continue;
    throw Error(Exit::usage,
                {.code = "usage.value",
                 .what = fmt::format("the tokenizer would replace {}, a text that it is to learn "
                                     "from",
                                     input.path),
                 .help = "name another file with -o, such as tokenizer.json"});
  }
}

}  // namespace

int command_data_train_tokenizer(const Arguments& args) {
  TokenizerTraining training;
  std::vector<std::string> files, special;
  std::optional<std::string> pattern;
  std::string output = "tokenizer.json";
  int64_t threads = 0;
  CommandLine line({"data train-tokenizer [options] FILES..."},
                   "Makes a byte-level BPE tokenizer for a text, in Hugging Face's format. It "
                   "spells any text, and its tokens are those that Hugging Face's trainer learns.");
  line.example("mtl data train-tokenizer --vocab 8192 input.txt -o tokenizer.json", "");
  line.example(
      "mtl data train-tokenizer --pattern llama3 --special '<|endoftext|>' a.jsonl b.jsonl", "");
  line.rest("FILES", files,
            "files, directories or globs as for mtl data tokenize: texts, and JSON Lines with a "
            "text each");
  line.option("output,o", "FILE", output, "the tokenizer that is written", "tokenizer.json");
  line.option("vocab", "N", training.vocab, 257, "tokens, special ones included", "32000");
  line.choice("pattern", tokenizer_patterns(), pattern, "how text is cut into words", "gpt2");
  line.declare({.name = "special",
                .value_name = "TOKEN",
                .help = "a special token; may be given several times",
                .shown_default = "<|endoftext|>",
                .set = [&](const std::string& value) -> std::optional<std::string> {
                  if (value.empty()) return "a token";
                  if (std::count(special.begin(), special.end(), value) == 0) {
                    special.push_back(value);
                  }
                  return std::nullopt;
                }});
  line.option("min_count", "N", training.min_count, 1, "a pair that is rarer is not merged", "2");
  line.option("key", "KEY", training.key, "where the text is in JSON Lines", "text");
  line.option("threads", "N", threads, 0, "threads that count; 0 = all", "0");
  if (!line.parse(args)) return 0;
  if (files.empty()) {
    throw Error(Exit::usage,
                {.code = "usage.missing",
                 .what = "there is no text to learn from",
                 .help = "give one or more files: mtl data train-tokenizer input.txt"});
  }
  if (pattern) training.pattern = *pattern;
  if (!special.empty()) training.special = special;
  training.threads = static_cast<int>(std::min<int64_t>(threads, 1024));
  if (training.vocab < 256 + static_cast<int64_t>(training.special.size())) {
    throw Error(Exit::usage,
                {.code = "usage.value",
                 .what = fmt::format("--vocab {} has no room for 256 bytes and {} special tokens",
                                     training.vocab, training.special.size()),
                 .help = fmt::format("use at least {}", 256 + training.special.size())});
  }
  refuse_input(output, files);
  const bool shows = ::isatty(STDERR_FILENO) != 0;
  const auto progress = [&](int64_t bytes) {
    if (shows) fmt::print(stderr, "\r{:.0f} MB read", static_cast<double>(bytes) / 1e6);
  };
  const WordCounts words = count_words(files, training, progress);
  if (shows) fmt::print(stderr, "\r{} different words\n", words.size());
  const nlohmann::json tokenizer = train_tokenizer(words, training);
  write_file_atomic(output, tokenizer.dump(1) + "\n");
  const auto tokens = static_cast<int64_t>(tokenizer.at("model").at("vocab").size());
  fmt::print(stderr, "{} has {} tokens\n", output, tokens);
  if (tokens < training.vocab) {
    fmt::print(stderr,
               "note: the text has no more pairs that occur {} times: use more text, or a "
               "smaller --vocab\n",
               training.min_count);
  }
  return 0;
}

}  // namespace mtl
