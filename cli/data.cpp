// mtl data: corpora and tokenizers; one file per member.
#include "cli/data.h"

#include "cli/group.h"

namespace mtl {

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
