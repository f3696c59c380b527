// Lines of JSON that are conversations become a corpus that says which of its tokens are to be
// learned; runs read it so, whatever the order of their samples.
#include <algorithm>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/data/blend.h"
#include "runtime/data/corpus_case.h"
#include "runtime/data/corpus_tools.h"
#include "runtime/data/documents.h"
#include "runtime/data/inputs.h"
#include "runtime/run_data.h"

namespace mtl {
namespace {

using namespace test;
using nlohmann::json;

std::string line(const json& object) {
  return object.dump() + "\n";
}

json said(const std::string& role, const std::string& text) {
  return {{"role", role}, {"content", text}};
}

// Of each document what is to be learned, and "." for each token that is not.
Lines learned_of(const std::filesystem::path& prefix) {
  const OpenedCorpus corpus = open_corpus(prefix, false);
  REQUIRE(corpus.loss != nullptr);
  const BytesWithEod tokenizer;
  Lines lines;
  for (int64_t s = 0; s < corpus.dataset->sequences(); ++s) {
    std::vector<int32_t> ids(static_cast<size_t>(corpus.dataset->length(s))), learn(ids.size());
    corpus.dataset->read(s, 0, ids);
    corpus.loss->read(s, 0, learn);
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      text += learn[i] == 0 ? "." : tokenizer.decode({&ids[i], 1});
    }
    text.erase(
        std::unique(text.begin(), text.end(), [](char a, char b) { return a == '.' && b == '.'; }),
        text.end());
    lines.push_back(text);
  }
  return lines;
}

struct ChatCase : CorpusCase {
  ChatCase() {
    options.chat = "plain";
    options.inputs = {(dir / "in.jsonl").string()};
  }
  void given(const std::string& lines) { write_file_atomic(dir / "in.jsonl", lines); }
};

TEST_CASE("conversations: all the ways in which people keep them") {
  ChatCase c;
  c.given(line({{"messages", {said("system", "S"), said("user", "q"), said("assistant", "a1")}},
                {"other", 1}}) +
          "\n" +
          line({{"conversations",
                 {{{"from", "human"}, {"value", "q"}}, {{"from", "gpt"}, {"value", "a2"}}}},
                {"system", "S"}}) +
          line({{"prompt", "q"}, {"completion", "a3"}}) +
          line({{"prompt", {said("user", "q"), said("assistant", "no"), said("user", "q")}},
                {"completion", {said("assistant", "a4")}}}) +
          line({{"instruction", "do"}, {"input", "it"}, {"output", "a5"}}) +
          line({{"instruction", "do"}, {"input", ""}, {"output", "a6"}}) +
          line({{"messages",
                 {said("user", "q"),
                  {{"role", "assistant"}, {"content", "no"}, {"weight", 0}},
                  {{"role", "user"},
                   {"content",
                    {{{"type", "text"}, {"text", "two "}}, {{"type", "text"}, {"text", "parts"}}}}},
                  {{"role", "assistant"}, {"content", "a7"}, {"weight", 1}}}}}));
  CHECK(c.made() == Lines{"S\n\nUser:\nq\n\nAssistant:\na1|", "S\n\nUser:\nq\n\nAssistant:\na2|",
                          "User:\nq\n\nAssistant:\na3|",
                          "User:\nq\n\nAssistant:\nno|User:\nq\n\nAssistant:\na4|",
                          "User:\ndo\n\nit\n\nAssistant:\na5|", "User:\ndo\n\nAssistant:\na6|",
                          "User:\nq\n\nAssistant:\nno|User:\ntwo parts\n\nAssistant:\na7|"});
  CHECK(learned_of(c.options.prefix) ==
        Lines{".a1|", ".a2|", ".a3|", ".a4|", ".a5|", ".a6|", ".a7|"});
  const CorpusMeta meta = *read_corpus_meta(c.options.prefix);
  CHECK(meta.has_loss);
  CHECK(meta.documents == 7);
}

TEST_CASE("conversations: what people leave empty or say twice") {
  ChatCase c;
  c.given(line({{"system", "S"}, {"instruction", "do"}, {"output", "a1"}}) +
          line({{"system", "no"},
                {"messages",
                 {said("system", "S"),
                  said("user", "q"),
                  {{"role", "assistant"}, {"content", "a2"}, {"tool_calls", json::array()}}}}}) +
          R"({"prompt": "no", "prompt": "q", "completion": "a3"})"
          "\n");
  CHECK(c.made() == Lines{"S\n\nUser:\ndo\n\nAssistant:\na1|", "S\n\nUser:\nq\n\nAssistant:\na2|",
                          "User:\nq\n\nAssistant:\na3|"});
}

TEST_CASE("conversations: a corpus that has the name of what is to be learned of another stays") {
  ChatCase c;
  c.options.chat.clear();
  c.given(json_line("text"));
  c.options.prefix = c.dir / "out.loss";
  c.run();
  write_corpus_meta(c.dir / "out.loss", *read_corpus_meta(c.dir / "out.loss"));
  for (const bool fresh : {false, true}) {
    c.options.prefix = c.dir / "out";
    c.options.fresh = fresh;
    CHECK(c.refused("data.exists").what.find("out.loss.idx") != std::string::npos);
    CHECK(error_of([&] { merge_corpora({c.dir / "out.loss"}, c.dir / "out", fresh); },
                   "data.exists", Exit::data)
              .find("out.loss.idx") != std::string::npos);
  }
  c.options.chat = "plain";
  c.given(line({{"prompt", "q"}, {"completion", "a"}}));
  CHECK(c.refused("data.exists").what.find("out.loss.idx") != std::string::npos);
  CHECK(documents_of(c.dir / "out.loss") == Lines{"text"});
}

TEST_CASE("conversations: a line that is none is named, and can be passed over") {
  const std::string good = line({{"prompt", "q"}, {"completion", "a"}});
  const auto refused = [&](const json& object, const std::string& what) {
    CAPTURE(object.dump());
    ChatCase c;
    c.given(good + line(object));
    const Diagnostic problem = c.refused("data.line");
    CHECK(problem.what.find(what) != std::string::npos);
    CHECK(problem.place->line == 2);
    c.options.skip_bad = true;
    CHECK(c.made() == Lines{"User:\nq\n\nAssistant:\na|"});
    CHECK(learned_of(c.options.prefix) == Lines{".a|"});
  };
  const json user = said("user", "q"), assistant = said("assistant", "a");
  refused({{"text", "hello"}}, "is no conversation: it has none of 'messages', 'conversations'");
  refused({{"prompt", "q"}}, "is no conversation");
  refused({{"messages", "q"}}, "'messages' is no list of messages");
  refused({{"messages", json::array()}}, "without messages");
  refused({{"messages", {"q"}}}, "message 1 of 'messages' is no object");
  refused({{"messages", {{{"content", "q"}}}}}, "message 1 of 'messages' has no 'role'");
  refused({{"messages", {user, {{"role", "assistant"}, {"content", nullptr}}}}},
          "message 2 of 'messages' has no 'content'");
  refused({{"messages", {user, {{"role", "assistant"}, {"content", 7}}}}},
          "message 2 of 'messages' is no text");
  refused({{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}, assistant}}},
          "message 1 of 'messages' has a part that is no text");
  refused({{"messages", {user, {{"role", "assistant"}, {"tool_calls", {1}}}}}}, "calls tools");
  refused({{"messages", {user, {{"role", "assistant"}, {"content", "a"}, {"weight", 2}}}}},
          "the weight of message 2 of 'messages' is neither 0 nor 1");
  refused({{"messages", {user, said("critic", "c")}}}, "plain has no role 'critic'");
  refused({{"messages", {user, user}}}, "nothing to learn in it");
}

TEST_CASE("conversations: an interrupted command goes on with both files") {
  std::string lines;
  for (int i = 0; i < 9000; ++i) {
    lines += line({{"prompt", std::string(static_cast<size_t>(i % 90), 'q')},
                   {"completion", std::to_string(i)}});
  }
  ChatCase whole, broken;
  whole.given(lines);
  broken.given(lines + "{\n");
  whole.run();
  broken.options.journal_every_s = 0;
  broken.refused("data.line");
  ChatCase other;
  broken.options.chat = (other.dir / "mine.yaml").string();
  write_file_atomic(broken.options.chat, "user: \"{content}\"\nassistant: \"{content}{eod}\"\n");
  CHECK(broken.refused("data.resume").what.find("had other settings") != std::string::npos);
  broken.options.chat = "plain";
  broken.options.skip_bad = true;
  const TokenizeReport report = broken.run();
  CHECK(report.resumed_at > 0);
  for (const char* file : {"out.bin", "out.idx", "out.loss.bin", "out.loss.idx"}) {
    CAPTURE(file);
    CHECK(read_file(whole.dir / file) == read_file(broken.dir / file));
  }
  // All digits, and an end for each.
  CHECK(report.learned_tokens == 9000 + 10 + 90 * 2 + 900 * 3 + 8000 * 4);
}

TEST_CASE("conversations: a corpus of texts in their place leaves nothing of them") {
  ChatCase c;
  c.given(line({{"prompt", "q"}, {"completion", "a"}}));
  c.run();
  c.options.chat.clear();
  c.options.fresh = true;
  c.given(json_line("text"));
  CHECK(c.made() == Lines{"text"});
  CHECK(open_corpus(c.options.prefix, false).loss == nullptr);
  CHECK_FALSE(std::filesystem::exists(c.dir / "out.loss.bin"));
}

TEST_CASE("conversations: what is to be learned belongs to its corpus") {
  ChatCase c;
  c.given(line({{"prompt", "q"}, {"completion", "a"}}) +
          line({{"prompt", "qq"}, {"completion", "aa"}}));
  c.run();
  const auto problem = [&] {
    return error_of([&] { open_corpus(c.options.prefix, false); }, "data.loss", Exit::data);
  };
  const auto write = [&](TokenType type, const std::vector<size_t>& lengths) {
    IndexedDatasetWriter writer(c.dir / "out.loss", type);
    for (const size_t length : lengths) {
      writer.add_sequence(std::vector<int32_t>(length, 1));
      writer.end_document();
    }
    writer.finish();
  };
  const size_t first = documents_of(c.options.prefix)[0].size();
  write(TokenType::u8, {first});
  CHECK(problem().find("has 1 sequences, and the corpus 2") != std::string::npos);
  write(TokenType::u8, {first, 3});
  CHECK(problem().find("sequence 1 has 3 values") != std::string::npos);
  write(TokenType::u16, {first, first + 2});
  CHECK(problem().find("its values are not u8") != std::string::npos);
  write(TokenType::u8, {first, first + 2});
  CHECK(open_corpus(c.options.prefix, false).loss != nullptr);
  remove_loss(c.options.prefix);
  CHECK(problem().find("is not there") != std::string::npos);
}

TEST_CASE("conversations: corpora are merged with what is to be learned, and counted") {
  ChatCase a, b, text;
  a.given(line({{"prompt", "q"}, {"completion", "a"}}));
  b.given(line({{"prompt", "qq"}, {"completion", "bb"}}));
  text.options.chat.clear();
  text.given(json_line("text"));
  a.run();
  b.run();
  text.run();
  for (const ChatCase* one : {&a, &b, &text}) {
    CorpusMeta meta = *read_corpus_meta(one->options.prefix);
    meta.tokenizer_file.clear();  // of a test
    write_corpus_meta(one->options.prefix, meta);
  }
  merge_corpora({a.options.prefix, b.options.prefix}, a.dir / "both", false);
  CHECK(documents_of(a.dir / "both") ==
        Lines{"User:\nq\n\nAssistant:\na|", "User:\nqq\n\nAssistant:\nbb|"});
  CHECK(learned_of(a.dir / "both") == Lines{".a|", ".bb|"});
  const CorpusStats stats = corpus_stats(open_corpus(a.dir / "both", false), 256, 1, {});
  CHECK(*stats.learned_share == doctest::Approx(5.0 / static_cast<double>(stats.tokens)));
  CHECK(error_of(
            [&] {
              merge_corpora({a.options.prefix, text.options.prefix}, a.dir / "no", false);
            },
            "data.merge", Exit::data)
            .find("only one says which tokens are to be learned") != std::string::npos);
}

// Each order gives the same tokens, and where a target is not to be learned, -1.
TEST_CASE("conversations: runs learn the answers alone, in every order") {
  ChatCase c;
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += line({{"prompt", std::string(static_cast<size_t>(i % 7 + 1), 'q')},
                   {"completion", std::string(static_cast<size_t>(i % 5 + 1), 'a')}});
  }
  c.given(lines);
  c.run();
  for (const char* sampler :
       {"random", "sequential", "megatron", "cyclic", "feistel", "best_fit"}) {
    CAPTURE(sampler);
    ResolvedSpec resolved;
    resolved.spec.data.train = c.options.prefix.string();
    resolved.spec.data.vocab = 257;
    resolved.spec.data.sampler = sampler;
    resolved.spec.data.eod = 256;
    resolved.spec.train.seq_len = 48;
    Diagnostics diagnostics;
    RunData data = load_run_data(resolved, diagnostics);
    order_samples(data, resolved, 12, diagnostics, json::object());
    diagnostics.throw_if_errors(Exit::data);
    int64_t learned = 0;
    for (int64_t sample = 0; sample < 12; ++sample) {
      std::vector<int32_t> inputs(48), targets(48);
      data.train->fill(sample, 1, {inputs, targets});
      for (size_t i = 0; i < inputs.size(); ++i) {
        REQUIRE(inputs[i] >= 0);
        const bool answer = targets[i] == 'a' || targets[i] == 256;
        const bool passed_over = targets[i] == -1;
        REQUIRE((answer || passed_over));
        learned += answer;
        // The last target of a document that is taken whole is no input.
        const bool inside = i + 1 < inputs.size() && sampler != std::string("best_fit");
        if (answer && inside) CHECK(inputs[i + 1] == targets[i]);
      }
    }
    CHECK(learned > 12 * 4);
  }
}

TEST_CASE("conversations: of several corpora best_fit gives each as much as it has") {
  ChatCase large, small;
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += line({{"prompt", "q"}, {"completion", "a"}});
  large.given(lines);
  small.given(line({{"prompt", "q"}, {"completion", "b"}}));
  large.run();
  small.run();
  ResolvedSpec resolved;
  resolved.spec.data.train_list = {{large.options.prefix.string(), 0},
                                   {small.options.prefix.string(), 0}};
  resolved.spec.data.vocab = 257;
  resolved.spec.data.split = {1};
  resolved.spec.data.sampler = "best_fit";
  resolved.spec.train.seq_len = 64;
  Diagnostics diagnostics;
  RunData data = load_run_data(resolved, diagnostics);
  order_samples(data, resolved, 40, diagnostics, json::object());
  diagnostics.throw_if_errors(Exit::data);
  // Three conversations of 21 inputs each in a sequence, and the one that is alone.
  CHECK(data.train_sequences == 10 + 1);
  int64_t of_small = 0;
  for (int64_t sample = 0; sample < 11; ++sample) {
    std::vector<int32_t> inputs(64), targets(64);
    data.train->fill(sample, 1, {inputs, targets});
    of_small += std::count(targets.begin(), targets.end(), 'b');
  }
  CHECK(of_small == 1);
}

TEST_CASE("conversations: best_fit takes documents, and says what it cuts") {
  ChatCase c;
  c.given(line({{"prompt", std::string(50, 'q')}, {"completion", "a"}}) +
          line({{"prompt", "q"}, {"completion", "a"}}));
  c.run();
  ResolvedSpec resolved;
  resolved.spec.data.train = c.options.prefix.string();
  resolved.spec.data.vocab = 257;
  resolved.spec.data.sampler = "best_fit";
  resolved.spec.data.split = {1};
  resolved.spec.train.seq_len = 32;
  Diagnostics diagnostics;
  RunData data = load_run_data(resolved, diagnostics);
  order_samples(data, resolved, 4, diagnostics, json::object());
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].code == "data.cut");
  CHECK(diagnostics.all()[0].severity == Diagnostic::Severity::warning);
  CHECK(diagnostics.all()[0].what.find("1 of 2 documents") != std::string::npos);
  CHECK(diagnostics.all()[0].what.find("1 of them have nothing to learn") != std::string::npos);
  resolved.spec.train.seq_len = 4;
  Diagnostics nothing;
  load_run_data(resolved, nothing);
  REQUIRE(nothing.has_errors());
  CHECK(nothing.all()[0].code == "data.loss");
  resolved.spec.train.seq_len = 32;
  write_file_atomic(c.dir / "in.txt", "one row of text, which is no document to take whole");
  resolved.spec.data.train = (c.dir / "in.txt").string();
  resolved.spec.data.vocab = 0;
  Diagnostics refused;
  load_run_data(resolved, refused);
  REQUIRE(refused.has_errors());
  CHECK(refused.all()[0].code == "data.documents");
}

TEST_CASE("conversations: another choice of what to learn is other data to a run") {
  ChatCase c;
  c.given(line({{"prompt", "qqqqqqqq"}, {"completion", "aaaaaaa"}}));
  c.run();
  const auto hash = [&] {
    ResolvedSpec resolved;
    resolved.spec.data.train = c.options.prefix.string();
    resolved.spec.data.vocab = 257;
    resolved.spec.data.split = {1};
    resolved.spec.train.seq_len = 8;
    Diagnostics diagnostics;
    RunData data = load_run_data(resolved, diagnostics);
    order_samples(data, resolved, 1, diagnostics, json::object());
    diagnostics.throw_if_errors(Exit::data);
    return data.identity().at("sources")[0].at("hash").get<std::string>();
  };
  const std::string before = hash();
  CHECK(hash() == before);
  IndexedDatasetWriter writer(c.dir / "out.loss", TokenType::u8);
  writer.add_sequence(std::vector<int32_t>(documents_of(c.options.prefix)[0].size(), 1));
  writer.end_document();
  writer.finish();
  CHECK(hash() != before);
}

}  // namespace
}  // namespace mtl
