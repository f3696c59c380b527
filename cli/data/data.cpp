// mtl data: corpora and tokenizers; one file per member.
#include "cli/data/data.h"

#include <fmt/format.h>

#include "cli/group.h"
#include "common/error.h"
#include "runtime/data/indexed_dataset.h"

namespace mtl {

std::filesystem::path output_prefix(const std::string& output) {
  const std::string name = std::filesystem::path(output).filename().string();
  if (!name.empty() && name != "." && name != "..") return indexed_prefix(output);
  throw Error(Exit::usage, {.code = "usage.value",
                            .what = fmt::format("--output {} is a folder", output),
                            .help = "give the corpus a name in it: FOLDER/NAME"});
}

int command_data(const Arguments& args) {
  static const std::vector<Command> kMembers = {
      {"tokenize", "text to a corpus", command_data_tokenize},
      {"preview", "the first documents of a corpus, as text", command_data_preview},
      {"stats", "what is in a corpus: lengths, frequent tokens", command_data_stats},
      {"verify", "whether a corpus is whole and fits its vocabulary", command_data_verify},
      {"merge", "several corpora into one", command_data_merge},
      {"train-tokenizer", "make a tokenizer for a text", command_data_train_tokenizer},
  };
  return run_group("data",
                   "Makes corpora out of text, looks into them, and trains tokenizers. A corpus is "
                   "a pair of files, PREFIX.bin and PREFIX.idx, in Megatron's format.",
                   kMembers, args);
}

}  // namespace mtl
