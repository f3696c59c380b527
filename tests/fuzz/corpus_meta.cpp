// PREFIX.meta.json: what is accepted is written and read again without a change.
#include "runtime/data/corpus_meta.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/error.h"
#include "fuzz/seeds.h"

std::vector<std::string> mtl::fuzz::seeds() {
  CorpusMeta meta;
  meta.vocab_size = 50257;
  meta.tokenizer_file = "c4.tokenizer.json";
  meta.inputs = {{"a.jsonl", 12}, {"-", 0}};
  std::vector<std::string> seeds = {corpus_meta_json(meta)};
  meta.eod = 50256;
  meta.documents_end_in_eod = true;
  meta.type = TokenType::i32;
  seeds.push_back(corpus_meta_json(meta));
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const mtl::CorpusMeta meta =
        mtl::parse_corpus_meta({reinterpret_cast<const char*>(data), size}, "x.meta.json");
    const std::string text = mtl::corpus_meta_json(meta);
    if (mtl::corpus_meta_json(mtl::parse_corpus_meta(text, "x")) != text) std::abort();
  } catch (const mtl::Error&) {
  }
  return 0;
}
