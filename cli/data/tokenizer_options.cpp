#include "cli/data/tokenizer_options.h"

#include "common/error.h"

namespace mtl {

void declare_tokenizer_flags(CommandLine& line, TokenizerFlags& flags) {
  line.group("Tokenizer (data.tokenizer of train.yaml)");
  line.option(
      "tokenizer", "FILE", flags.tokenizer,
      "tokenizer.json of Hugging Face or of mtl, a folder with one, a SentencePiece .model; "
      "or `bytes`");
  line.choice("tokenizer_type", {"bytes", "gpt2-bpe", "hf", "sentencepiece", "mtl"}, flags.type,
              "what it is", "told by the file");
  line.option("tokenizer_vocab", "FILE", flags.options.vocab, "vocab.json of GPT-2's kind");
  line.option("tokenizer_merges", "FILE", flags.options.merges, "merges.txt that goes with it");
  line.option("tokenizer_eod", "TOKEN", flags.options.eod, "the token that ends a document",
              "as the files say");
}

bool any_given(const TokenizerFlags& flags) {
  return !flags.tokenizer.empty() || flags.type || !flags.options.vocab.empty() ||
         !flags.options.merges.empty();
}

std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerFlags& flags) {
  if (!any_given(flags)) {
    throw Error(Exit::usage, {.code = "usage.missing",
                              .what = "no tokenizer is given",
                              .help = "--tokenizer tokenizer.json, --tokenizer_vocab vocab.json "
                                      "--tokenizer_merges merges.txt, or --tokenizer bytes"});
  }
  TokenizerOptions options = flags.options;
  options.type = flags.type.value_or("");
  if (flags.tokenizer == "bytes" && options.type.empty()) {
    options.type = "bytes";
  } else {
    options.file = flags.tokenizer;
  }
  if (options.type.empty() && !options.vocab.empty()) options.type = "gpt2-bpe";
  return load_tokenizer(options);
}

}  // namespace mtl
