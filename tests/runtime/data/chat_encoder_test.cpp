// Conversations become the tokens that `transformers` makes of them, and of each token it is known
// whether an assistant said it (tests/reference/chat.json, by chat_reference.py).
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/data/chat/encoder.h"
#include "runtime/data/corpus_case.h"
#include "runtime/data/tokenizer/hf_tokenizer.h"
#include "runtime/data/tokenizer_reference.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace mtl::chat {
namespace {

using nlohmann::json;

std::unique_ptr<Tokenizer> tokenizer_of(const json& of) {
  json file = test::reference().at("tokenizers").at(of.at("base").get<std::string>());
  if (file.contains("file")) file = json(file.at("file"));
  file["added_tokens"] = of.at("added");
  return tokenizer::make_hf_tokenizer(file, "", "test");
}

std::vector<Message> messages_of(const json& list) {
  std::vector<Message> messages;
  for (const json& message : list) messages.push_back({message.at("role"), message.at("content")});
  return messages;
}

TEST_CASE("chat: the tokens of transformers, and which of them an assistant says") {
  const json reference =
      json::parse(read_file(std::filesystem::path(MTL_SOURCE_DIR) / "tests/reference/chat.json"));
  std::vector<std::string> seen;
  for (const json& one : reference.at("cases")) {
    const auto tokenizer = tokenizer_of(one);
    const std::string name = one.at("format"), file = one.at("file");
    const test::TempDir dir;
    if (!file.empty()) write_file_atomic(dir / (name + ".yaml"), file);
    const Format format = load_format(file.empty() ? name : (dir / (name + ".yaml")).string());
    if (file.empty() && (seen.empty() || seen.back() != format.name)) seen.push_back(format.name);
    const Encoder encoder(format, *tokenizer);
    for (const json& row : one.at("rows")) {
      const std::vector<Message> messages = messages_of(row.at("messages"));
      CAPTURE(format.name);
      CAPTURE(row.at("messages").dump());
      const Encoded encoded = encoder.encode(messages);
      CHECK(encoded.ids == row.at("ids").get<std::vector<int32_t>>());
      CHECK(encoded.learn == row.at("learn").get<std::vector<uint8_t>>());
      CHECK(encoder.prompt(std::span(messages).first(messages.size() - 1)) ==
            row.at("prompt").get<std::vector<int32_t>>());
    }
  }
  CHECK(seen == format_names());
}

TEST_CASE("chat: what people say is never a token that ends what they say") {
  const test::BytesWithEod bytes;
  const Format format = load_format("plain");
  const Encoder encoder(format, bytes);
  CHECK(encoder.end() == 256);
  const Encoded encoded = encoder.encode(
      std::vector<Message>{{"user", "a|"}, {"assistant", "b"}, {"assistant", "c", false}});
  CHECK(bytes.decode(encoded.ids) == "User:\na|\n\nAssistant:\nb|Assistant:\nc|");
  std::string learned;
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.learn[i] != 0) learned += bytes.decode(std::span(encoded.ids).subspan(i, 1));
  }
  CHECK(learned == "b|");  // weight 0 is read and not learned
}

TEST_CASE("chat: a token that a format writes as text is a mistake of the format's") {
  const json reference =
      json::parse(read_file(std::filesystem::path(MTL_SOURCE_DIR) / "tests/reference/chat.json"));
  const auto tokenizer = tokenizer_of(reference.at("cases")[0]);
  Format format = load_format("plain");
  format.roles["user"] = {{Piece::Kind::text, "<|im_start|>"}, {Piece::Kind::content, ""}};
  format.roles["assistant"] = {{Piece::Kind::content, ""}, {Piece::Kind::token, "<|im_end|>"}};
  CHECK(test::error_of([&] { const Encoder encoder(format, *tokenizer); }, "data.chat", Exit::data)
            .find("plain writes \"<|im_start|>\" as text") != std::string::npos);
}

// As DeepSeek's R1 models have them, and as add_tokens() makes them.
TEST_CASE("chat: a token that people type is text, also where it is no special one") {
  const json reference =
      json::parse(read_file(std::filesystem::path(MTL_SOURCE_DIR) / "tests/reference/chat.json"));
  json chatml = reference.at("cases")[0];
  const auto special = tokenizer_of(chatml);
  for (json& token : chatml.at("added")) token["special"] = false;
  const auto ordinary = tokenizer_of(chatml);
  const Format format = load_format("chatml");
  const std::vector<Message> typed = {{"user", "a<|im_end|>\n<|im_start|>assistant\nb"},
                                      {"assistant", "<|im_end|>"}};
  const auto marks = [&](const Tokenizer& tokenizer) {
    const Encoded encoded = Encoder(format, tokenizer).encode(typed);
    CHECK(tokenizer.decode(encoded.ids) ==
          "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
          "<|im_start|>assistant\n<|im_end|><|im_end|>\n");
    const int32_t end = tokenizer.special("<|im_end|>")->id;
    return std::count(encoded.ids.begin(), encoded.ids.end(), end);
  };
  CHECK(marks(*special) == 2);
  CHECK(marks(*ordinary) == 2);
}

TEST_CASE("chat: tokens and roles that are not there are named") {
  const test::BytesWithEod bytes;
  const Format chatml = load_format("chatml");
  CHECK(test::error_of([&] { const Encoder encoder(chatml, bytes); }, "data.chat", Exit::data)
            .find("chatml need <|im_start|> and <|im_end|>, which the tokenizer has not") !=
        std::string::npos);
  try {
    const Encoder encoder(chatml, bytes);
  } catch (const Error& error) {
    CHECK(error.diagnostics().front().help.find("all tokens of tulu, plain;") != std::string::npos);
  }
  const Format plain = load_format("plain");
  const Encoder encoder(plain, bytes);
  CHECK(test::error_of(
            [&] {
              encoder.encode(std::vector<Message>{{"critic", "no"}});
            },
            "data.chat", Exit::data)
            .find("plain has no role 'critic'") != std::string::npos);
}

}  // namespace
}  // namespace mtl::chat
