// libFuzzer: tokenizer.json of a stranger. It is refused with the reason, or reads, and then
// encodes and decodes without a crash. The first line of the input is the file, the rest a text
// (a file without a newline encodes a fixed text).
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/token_text.h"
#include "runtime/data/tokenizer/hf_tokenizer.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "seeds.h"

std::vector<std::string> mtl::fuzz::seeds() {
  const std::string model =
      R"("model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,)"
      R"("vocab":{"<unk>":0,"a":1,"b":2,"ab":3,"\u2581":4,"<0x41>":5},"merges":["a b"]}})";
  const std::string added =
      R"({"added_tokens":[{"id":9,"content":"<a>","lstrip":true,"rstrip":true,"single_word":true,)"
      R"("normalized":true,"special":false}],)";
  const auto bytes = make_byte_tokenizer();
  return {
      to_hf_tokenizer(*bytes).dump() + "\nsome text",
      added +
          R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"},)"
          R"({"type":"StripAccents"},{"type":"Strip"},{"type":"Prepend","prepend":"x"},)"
          R"({"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "}]},)"
          R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","split":true},)"
          R"("decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},)"
          R"({"type":"Strip","content":" ","start":1,"stop":0}]},)" +
          model + "\na <a> b",
      added +
          R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
          R"({"Regex":"\\p{N}{1,3}|\\w+"},"behavior":"MergedWithNext","invert":true},)"
          R"({"type":"Digits"},{"type":"Punctuation","behavior":"Contiguous"},)"
          R"({"type":"Whitespace"}]},)" +
          model + "\nab 12, b",
  };
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t newline = input.find('\n');
  const std::string_view text = newline == std::string_view::npos
                                    ? "the  text's\n\n\xF0\x9F\x98\x80 12345 \xff <a>"
                                    : input.substr(newline + 1);
  try {
    const auto json = mtl::tokenizer::parse_json(input.substr(0, newline), "fuzz");
    const auto tokenizer = mtl::tokenizer_from_json(json);
    const auto ids = tokenizer->encode(text);
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer->vocab_size()) __builtin_trap();
    }
    tokenizer->decode(ids);
    tokenizer->encode_with_special(text);
    mtl::TokenText stream(*tokenizer, {});
    for (size_t i = 0; i < ids.size() && i < 100; ++i) stream.add(ids[i]);
    mtl::tokenizer_from_json(tokenizer->to_json());
  } catch (const mtl::Error&) {
    // refused with the reason
  }
  return 0;
}
