// A model's tokenizer goes with it, and decides how much of the vocabulary there is.
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/data/data.h"
#include "runtime/engine/init.h"
#include "runtime/generate.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/hf_tokenizer.h"
#include "runtime/interchange/import.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

// A checkpoint of a random small model over bytes, with a vocabulary that is larger than that.
fs::path make_checkpoint(const fs::path& run, int64_t vocab, float times = 1) {
  ModelShape shape;
  shape.layers = 1;
  shape.heads = shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.hidden = 16;
  shape.ffn = 64;
  shape.vocab = vocab;
  shape.vocab_pad_to = 1;
  shape.padded_vocab = vocab;
  shape.max_seq = 32;
  shape.init_std = 0.3;
  std::vector<std::vector<float>> storage;
  std::vector<CheckpointTensor> tensors;
  const auto table = shard_table(shape, false);
  for (const ParamRow& row : table) {
    storage.emplace_back(static_cast<size_t>(row.numel()));
    initialise(row, row.shape, local_rects(row, GridSizes{}, Coord{}), 3, 0, row.numel(),
               storage.back().data());
    for (float& weight : storage.back()) weight *= times;
    CheckpointTensor tensor;
    tensor.name = row.name;
    tensor.shape = tensor.local_shape = row.shape;
    tensor.rects = {{std::vector<int64_t>(row.shape.size(), 0),
                     std::vector<int64_t>(row.shape.size(), 0), row.shape}};
    tensor.data = storage.back().data();
    tensors.push_back(std::move(tensor));
  }
  const CheckpointAttempt attempt{checkpoint_path(run / "checkpoints", 7), 0};
  prepare_checkpoint(attempt);
  const auto chunks = write_shards(attempt, 0, tensors);
  commit_checkpoint(
      attempt, chunks,
      {{"step", 7}, {"model", to_json(shape)}, {"tokenizer", make_byte_tokenizer()->to_json()}},
      {});
  return attempt.dir;
}

std::string text_of(const fs::path& run) {
  std::string text;
  generate({.run = run, .prompt = "Hello", .tokens = 12, .sampling = {.temperature = 0}},
           [&](std::string_view piece) { text += piece; });
  return text;
}

}  // namespace

TEST_CASE("a model goes out and comes back with its tokenizer and generates the same text") {
  const Scratch scratch;
  const fs::path checkpoint = make_checkpoint(scratch / "run", 256);
  const ExportReport exported = export_hf({.checkpoint = checkpoint, .out = scratch / "hf"});
  CHECK(exported.warnings.empty());
  const auto config = nlohmann::json::parse(read_file(scratch / "hf/tokenizer_config.json"));
  CHECK(config.at("tokenizer_class") == "PreTrainedTokenizerFast");
  CHECK(config.at("model_max_length") == 32);
  const ImportReport imported =
      import_model({.source = scratch / "hf", .out = scratch / "back", .tokenizer = {}});
  CHECK(imported.tokenizer);
  CHECK(imported.warnings.empty());
  CHECK(all_weights(imported.checkpoint) == all_weights(checkpoint));
  CHECK(text_of(scratch / "back") == text_of(checkpoint));
  const std::string yaml = read_file(scratch / "back/train.yaml");
  CHECK(yaml.find("from: \"" + (scratch / "back").string() + "\"") != std::string::npos);
}

TEST_CASE("ends of texts that mtl does not know are said") {
  const Scratch scratch;
  export_hf({.checkpoint = make_checkpoint(scratch / "run", 256), .out = scratch / "hf"});
  const auto warned = [&](const std::string& generation, const std::string& out) {
    std::ofstream(scratch / "hf/generation_config.json") << generation;
    const ImportReport imported =
        import_model({.source = scratch / "hf", .out = scratch / out, .tokenizer = {}});
    return imported.warnings.empty() ? std::string() : imported.warnings[0].what;
  };
  CHECK(warned("{}", "none").empty());
  CHECK(warned(R"({"eos_token_id": [7, 9]})", "two") ==
        "transformers also ends a text at id 7, 9, and mtl at its length alone");
  CHECK(warned(R"({"eos_token_id": 7})", "one").find("at id 7,") != std::string::npos);
}

TEST_CASE("rows of the vocabulary without tokens are cut and tokens without rows refused") {
  const Scratch scratch;
  const fs::path checkpoint = make_checkpoint(scratch / "run", 300);
  export_hf({.checkpoint = checkpoint, .out = scratch / "hf"});
  const ImportReport imported =
      import_model({.source = scratch / "hf", .out = scratch / "back", .tokenizer = {}});
  REQUIRE(imported.warnings.size() == 1);
  CHECK(imported.warnings[0].code == "import.vocab");
  CHECK(imported.shape.vocab == 256);
  auto whole = all_weights(checkpoint);
  whole.at("transformer.wte.weight").resize(256 * 16);
  CHECK(all_weights(imported.checkpoint) == whole);
  // 96 rows for 256 bytes.
  CHECK(code_of([&] {
          import_model({.source = reference_folder("llama"),
                        .out = scratch / "bytes",
                        .tokenizer = "bytes"});
        }) == "import.vocab");
  CHECK(!fs::exists(scratch / "bytes"));
}

TEST_CASE("a prompt that is longer than the model reads is said, and its end is what counts") {
  const Scratch scratch;
  const fs::path checkpoint = make_checkpoint(scratch / "run", 256);
  const auto said = [&](const std::string& prompt, std::string& text) {
    std::string warnings;
    generate(
        {.run = checkpoint, .prompt = prompt, .tokens = 1, .sampling = {.temperature = 0}},
        [&](std::string_view piece) { text += piece; },
        [&](const Diagnostic& warning) { warnings += warning.code + ": " + warning.what; });
    return warnings;
  };
  const std::string seen(32, 'b');
  std::string whole, end;
  CHECK(said(seen, end) == "");
  CHECK(said(std::string(9, 'a') + seen, whole) ==
        "generate.context: the prompt has 41 tokens, and the model reads 32: the last ones");
  CHECK(whole == end);
}

TEST_CASE("a model whose scores are not finite generates an error and no text") {
  const Scratch scratch;
  const fs::path checkpoint =
      make_checkpoint(scratch / "run", 256, std::numeric_limits<float>::quiet_NaN());
  for (const double temperature : {0.0, 0.8}) {
    std::string text;
    try {
      generate({.run = checkpoint,
                .prompt = "Hello",
                .tokens = 3,
                .sampling = {.temperature = temperature}},
               [&](std::string_view piece) { text += piece; });
      FAIL("it generates");
    } catch (const Error& error) {
      CHECK(error.diagnostics()[0].code == "generate.numbers");
      CHECK(error.exit() == Exit::run_failed);
    }
    CHECK(text == "");
  }
}

// A SentencePiece model of <unk> and "a", as Protocol Buffers write it.
const char kTwoPieces[] =
    "\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02"
    "\n\x0a\n\x01"
    "a\x15\0\0\0\0\x18\x01"
    "\x1a\x0a\n\x08identity";

TEST_CASE("tokens beside a SentencePiece model are refused if the model has them not") {
  const TempDir dir;
  write_file_atomic(dir / "tokenizer.model", {kTwoPieces, sizeof kTwoPieces - 1});
  try {
    CHECK(find_tokenizer(dir.path(), "")->vocab_size() == 2);
  } catch (const Error& error) {
    MESSAGE(error.diagnostics().front().what);  // built without it
    return;
  }
  for (const char* known : {"{}", R"({"<unk>": 0, "a": 1})"}) {
    write_file_atomic(dir / "added_tokens.json", known);
    CHECK(find_tokenizer(dir.path(), "")->vocab_size() == 2);
  }
  for (const char* added : {R"({"a": 1, "<pad>": 2})", R"({"<pad>": -1})", "[2]", "{"}) {
    write_file_atomic(dir / "added_tokens.json", added);
    CHECK(code_of([&] { find_tokenizer(dir.path(), ""); }) == "data.tokenizer");
  }
}
