// What to train on.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section data_section() {
  return {
      .docs =
          {
              {"data", "What to train on."},
              {"data.tokenizer", "The tokenizer."},
          },
      .rows =
          {
              {.key = "data.train",
               .field = [](TrainSpec& s) -> Field {
                 return TextOrSources{&s.data.train, &s.data.train_list};
               },
               .doc = "What to train on: a UTF-8 text, Megatron's PREFIX.bin and .idx, token files "
                      "of nanoGPT or llm.c (one, a folder or a pattern like `train_*.bin`), or "
                      "several of them, mixed by weight. A relative path starts at the working "
                      "directory.",
               .example = "input.txt",
               .required = true,
               .is_path = true,
               .known_as = {"data_path", "train_data_path", "train_file", "dataset", "dataset_name",
                            "path"}},
              {.key = "data.valid",
               .field = [](TrainSpec& s) -> Field {
                 return TextOrSources{&s.data.valid, &s.data.valid_list, &s.data.valid_sets};
               },
               .doc =
                   "What to evaluate on, all of it; `data.train` is then trained on as a whole. Of "
                   "sets with names, like `{web: a.txt, code: [b.txt, c.txt]}`, each has its own "
                   "`valid_loss/NAME`, and `valid_loss` is the mean over the tokens of all.",
               .is_path = true,
               .auto_doc = "a part of `data.train`: `data.split`",
               .known_as = {"valid_data_path", "validation_file", "eval_dataset"}},
              {.key = "data.format",
               .field = [](TrainSpec& s) -> Field { return &s.data.format; },
               .doc = "What the files are.",
               .choices = {{"auto", "by their content"},
                           {"text", "UTF-8 texts"},
                           {"megatron", "PREFIX.bin and PREFIX.idx"},
                           {"nanogpt", "token ids of 2 bytes"},
                           {"llmc", "llm.c's header, then token ids of 2 or 4 bytes"}}},
              {.key = "data.vocab",
               .field = [](TrainSpec& s) -> Field { return &s.data.vocab; },
               .doc = "Token ids are 0 to this, not included, of a corpus without a tokenizer.",
               .auto_doc = "the tokenizer decides",
               .min = 1,
               .max = 2147483647,
               .known_as = {"vocab_size", "null_tokenizer"}},
              {.key = "data.eod",
               .field = [](TrainSpec& s) -> Field { return &s.data.eod; },
               .doc = "Id of the token that ends a document; -1: the tokenizer's.",
               .min = -1,
               .max = 2147483647,
               .known_as = {"eod_id", "eos_token_id"}},
              {.key = "data.split",
               .field = [](TrainSpec& s) -> Field { return &s.data.split; },
               .doc = "Weights of the part to train on, the part to evaluate on and a part that is "
                      "left out: of the documents of Megatron's corpora, of the tokens of others.",
               .min = 0,
               .max = 1e12,
               .known_as = {"train_valid_test_split", "splits"}},
              {.key = "data.sampler",
               .field = [](TrainSpec& s) -> Field { return &s.data.sampler; },
               .doc = "Order of the sequences; the same for every layout of ranks.",
               .choices = {{"random", "windows at random places, decided by `train.seed`"},
                           {"sequential", "one window after the other"},
                           {"megatron",
                            "Megatron-LM's: documents shuffled and packed, samples "
                            "shuffled, once per epoch"},
                           {"single", "Megatron-LM's name for its order taken once: `megatron`"},
                           {"cyclic", "the order of `megatron`, permuted again for every round"},
                           {"feistel",
                            "every window once per epoch, permuted without an index in "
                            "memory"},
                           {"best_fit",
                            "documents whole, as many as fit into a sequence and each seen by "
                            "itself, once per epoch"}},
               .refused = {{"shuffle", "random", ""}},
               .known_as = {"dataloader_type", "shuffle"}},
              {.key = "data.cache",
               .field = [](TrainSpec& s) -> Field { return &s.data.cache; },
               .doc = "Folder where the indices of `data.sampler: megatron` are kept for the next "
                      "start.",
               .is_path = true,
               .auto_doc = "they are made at each start",
               .known_as = {"data_cache_path"}},
              {.key = "data.workers",
               .field = [](TrainSpec& s) -> Field { return &s.data.workers; },
               .doc = "Threads per rank that read the samples of the next step meanwhile; 0: none.",
               .min = 0,
               .max = 64,
               .known_as = {"num_workers", "dataloader_num_workers"}},
              {.key = "data.on_change",
               .field = [](TrainSpec& s) -> Field { return &s.data.on_change; },
               .doc =
                   "When a run is resumed whose data, split, order or sequence length is another "
                   "than in its checkpoint.",
               .choices = {{"refuse", "an error that names each difference"},
                           {"accept",
                            "go on with the new data behind as many sequences as were "
                            "consumed"}}},
              {.key = "data.reset_positions_at_eod",
               .field = [](TrainSpec& s) -> Field { return &s.data.reset_positions_at_eod; },
               .doc = "Behind the token that ends a document, positions begin with 0 again.",
               .known_as = {"reset_position_ids"}},
              {.key = "data.reset_attention_at_eod",
               .field = [](TrainSpec& s) -> Field { return &s.data.reset_attention_at_eod; },
               .doc = "Tokens do not see the documents before their own.",
               .known_as = {"reset_attention_mask"}},
              {.key = "data.mask_eod_loss",
               .field = [](TrainSpec& s) -> Field { return &s.data.mask_eod_loss; },
               .doc = "What comes behind the token that ends a document is not to be learned: it "
                      "does not count in the loss.",
               .known_as = {"eod_mask_loss"}},
              {.key = "data.tokenizer.type",
               .field = [](TrainSpec& s) -> Field { return &s.data.tokenizer.type; },
               .doc = "How text becomes tokens.",
               .choices = {{"auto", "the corpus's own, or as its files say, else `bytes`"},
                           {"bytes", "one token per byte: 256 tokens, any text"},
                           {"chars", "one token per character that occurs in the training text"},
                           {"gpt2-bpe", "GPT-2's files, `data.tokenizer.vocab` and `.merges`"},
                           {"hf", "Hugging Face's `tokenizer.json`, `data.tokenizer.file`"},
                           {"sentencepiece", "a SentencePiece model, `data.tokenizer.file`"}},
               .refused = {{"byte", "bytes", ""},
                           {"char", "chars", ""},
                           {"gpt2", "gpt2-bpe", ""},
                           {"gpt2bpetokenizer", "gpt2-bpe", ""},
                           {"bpe", "hf", ""},
                           {"huggingface", "hf", ""},
                           {"huggingfacetokenizer", "hf", ""},
                           {"sentencepiecetokenizer", "sentencepiece", ""},
                           {"tiktoken", "", kNotYet}},
               .known_as = {"tokenizer_type"}},
              {.key = "data.tokenizer.file",
               .field = [](TrainSpec& s) -> Field { return &s.data.tokenizer.file; },
               .doc = "With `hf`: a `tokenizer.json`, or a model's folder that has one or "
                      "`vocab.json` with `merges.txt`. With `sentencepiece`: a `*.model` file.",
               .example = "tokenizer.json",
               .is_path = true,
               .auto_doc = "none",
               .known_as = {"tokenizer_model", "tokenizer_name_or_path", "tokenizer"}},
              {.key = "data.tokenizer.vocab",
               .field = [](TrainSpec& s) -> Field { return &s.data.tokenizer.vocab; },
               .doc = "With `gpt2-bpe`: its `vocab.json`.",
               .example = "vocab.json",
               .is_path = true,
               .auto_doc = "none",
               .known_as = {"vocab_file"}},
              {.key = "data.tokenizer.merges",
               .field = [](TrainSpec& s) -> Field { return &s.data.tokenizer.merges; },
               .doc = "With `gpt2-bpe`: its `merges.txt`.",
               .example = "merges.txt",
               .is_path = true,
               .auto_doc = "none",
               .known_as = {"merge_file", "merges_file"}},
              {.key = "data.tokenizer.eod",
               .field = [](TrainSpec& s) -> Field { return &s.data.tokenizer.eod; },
               .doc = "The token that ends a document.",
               .example = "<|endoftext|>",
               .auto_doc = "as the tokenizer's files say",
               .known_as = {"eos_token", "eod_token"}},
          },
      .unavailable =
          {
              {"data.test",
               "a run evaluates on `data.valid`; the third weight of `data.split` "
               "leaves a part out"},
          },
  };
}

}  // namespace mtl::spec
