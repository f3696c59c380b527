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
               .field = [](TrainSpec& s) -> Field { return &s.data.train; },
               .doc = "The text to train on: a UTF-8 file. A relative path starts at the working "
                      "directory.",
               .example = "input.txt",
               .required = true,
               .is_path = true,
               .known_as = {"data_path", "train_data_path", "train_file", "dataset", "dataset_name",
                            "path"}},
              {.key = "data.split",
               .field = [](TrainSpec& s) -> Field { return &s.data.split; },
               .doc = "Weights of the training and the validation part of the text.",
               .min = 0,
               .max = 1e12,
               .known_as = {"train_valid_test_split", "splits"}},
              {.key = "data.sampler",
               .field = [](TrainSpec& s) -> Field { return &s.data.sampler; },
               .doc = "Order of the sequences; the same for every layout of ranks.",
               .choices = {{"random", "windows at random places, decided by `train.seed`"},
                           {"sequential", "one window after the other"}},
               .refused = {{"single", "sequential", ""},
                           {"cyclic", "random", ""},
                           {"shuffle", "random", ""}},
               .known_as = {"dataloader_type", "shuffle"}},
              {.key = "data.tokenizer.type",
               .field = [](TrainSpec& s) -> Field { return &s.data.tokenizer.type; },
               .doc = "How text becomes tokens.",
               .choices = {{"bytes", "one token per byte: 256 tokens, any text"},
                           {"chars", "one token per character that occurs in the training text"}},
               .refused = {{"byte", "bytes", ""},
                           {"char", "chars", ""},
                           {"gpt2-bpe", "", kNotYet},
                           {"gpt2", "", kNotYet},
                           {"bpe", "", kNotYet},
                           {"tiktoken", "", kNotYet},
                           {"sentencepiece", "", kNotYet},
                           {"hf", "", kNotYet}},
               .known_as = {"tokenizer_type"}},
          },
      .unavailable =
          {
              {"data.valid", "the validation text is a part of `data.train`, see `data.split`"},
              {"data.cache", "texts are tokenised when a run starts"},
              {"data.workers", "batches are cut from memory"},
              {"data.reset_positions_at_eod", "documents are not told apart"},
              {"data.mask_eod_loss", "documents are not told apart"},
              {"data.tokenizer.vocab", "tokenizers need no files"},
              {"data.tokenizer.merges", "tokenizers need no files"},
          },
  };
}

}  // namespace mtl::spec
