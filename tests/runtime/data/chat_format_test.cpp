// Formats of conversations that people write themselves.
#include <doctest/doctest.h>

#include "common/files.h"
#include "runtime/data/chat/format.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace mtl::chat {
namespace {

using Kind = Piece::Kind;

Format written(const std::string& yaml) {
  const test::TempDir dir;
  write_file_atomic(dir / "mine.yaml", yaml);
  return load_format((dir / "mine.yaml").string());
}

TEST_CASE("chat: a format of one's own") {
  const Format format = written(
      "begin: \"{<s>}\"\n"
      "user: \"Q: {content}\\n\"\n"
      "assistant: \"A: {content}{{x}}{eod}\\n\"\n"
      "strips: true\n");
  CHECK(format.name == "mine");
  CHECK(format.begin == Pieces{{Kind::token, "<s>"}});
  CHECK(format.roles.at("user") ==
        Pieces{{Kind::text, "Q: "}, {Kind::content, ""}, {Kind::text, "\n"}});
  CHECK(format.roles.at("assistant") == Pieces{{Kind::text, "A: "},
                                               {Kind::content, ""},
                                               {Kind::text, "{x}"},
                                               {Kind::eod, ""},
                                               {Kind::text, "\n"}});
  CHECK(format.strips);
  CHECK(format.strips_system);
  CHECK(format.system_before_user);
  CHECK_FALSE(written("user: \"{content}\"\nassistant: \"{content}\"\nsystem: \"{content}\"\n")
                  .system_before_user);
}

TEST_CASE("chat: two formats are told from each other") {
  const Format chatml = load_format("chatml");
  Format other = chatml;
  CHECK(description(other) == description(chatml));
  other.roles["user"].back().text += " ";
  CHECK(description(other) != description(chatml));
  other = chatml;
  other.strips = true;
  CHECK(description(other) != description(chatml));
}

TEST_CASE("chat: what is wrong with a format is named with its line") {
  const auto refused = [](const std::string& yaml, const std::string& what) {
    CHECK(test::error_of([&] { written(yaml); }, "data.chat", Exit::data).find(what) !=
          std::string::npos);
  };
  refused("- a\n", "is not a map of roles");
  refused("user: \"{content}\"\n", "'assistant' is missing");
  refused("user: \"{content}\"\nassistant: \"{content}\"\nbot: x\n", "'bot' is none of begin, ");
  refused("user: []\n", "'user' is not a text");
  refused("user: \"hi\"\n", "'user': {content} has to stand there once");
  refused("user: \"{content}{content}\"\n", "'user': {content} has to stand there once");
  refused("begin: \"{content}\"\n", "'begin': nothing is said there");
  refused("user: \"{content\"\n", "'user': a { without a name and its }");
  refused("user: \"{}{content}\"\n", "'user': a { without a name and its }");
  refused("user: \"}{content}\"\n", "'user': a } without its {");
  refused("strips: maybe\n", "'strips': is true or false");
  CHECK(test::error_of([] { load_format("chatlm"); }, "data.chat", Exit::data)
            .find("'chatlm' is neither a format of conversations nor a file") != std::string::npos);
}

}  // namespace
}  // namespace mtl::chat
