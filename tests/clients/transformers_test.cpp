// Models that go to Hugging Face's transformers and come from it.
#include <cmath>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/tiny_run.h"
#include "clients/clients.h"
#include "runtime/data/chat/format.h"

using namespace mtl::test;

namespace {

// What `python script ...` prints, a line of JSON each.
std::vector<json> lines_of_json(const std::string& text) {
  std::vector<json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
  return all;
}

double last_valid_loss(const fs::path& run) {
  double loss = NAN;
  for (const json& line : metrics_of(run)) loss = line.value("valid_loss", loss);
  return loss;
}

}  // namespace

TEST_CASE("transformers' models are trained on and open there unchanged") {
  const auto env = accelerate_environment();
  const std::string python = env.at("PATH").substr(0, env.at("PATH").find(':')) + "/python";
  Shell shell;
  const Outcome made =
      shell.run({python, client("transformers_models.py"), "make", shell.dir().string()}, env);
  REQUIRE_MESSAGE(made.code == 0, made.err);
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("line {} of a text, {}\n", i, i * i % 97);
  shell.write("train.txt", text);
  shell.write("valid.txt", text.substr(1000, 1500));
  const auto must = [&](const std::vector<std::string>& args) {
    const Outcome outcome = shell.mtl(args);
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  };
  const std::vector<std::string> families = {"gpt2",    "gpt_neox", "llama",  "llama3",
                                             "mistral", "qwen2",    "mixtral"};
  for (const std::string& family : families) {
    CAPTURE(family);
    must({"ckpt", "import", family, "--tokenizer", "bytes", "-o", "in-" + family});
    must({"ckpt", "export", "in-" + family, "-o", family + "-back"});
    must({"launch", "in-" + family + "/train.yaml", "data.train=train.txt", "data.valid=valid.txt",
          "train.steps=5", "train.seq_len=32", "train.global_batch=4", "lr.warmup=0",
          "lr.max=0.001", "run.name=" + family});
    must({"ckpt", "export", "runs/" + family, "-o", family + "-trained"});
  }
  const Outcome checked = shell.run(
      {python, client("transformers_models.py"), "check", shell.dir().string(), "valid.txt", "32"},
      env);
  REQUIRE_MESSAGE(checked.code == 0, checked.err);
  const std::vector<json> all = lines_of_json(checked.out);
  REQUIRE(all.size() == families.size());
  for (const json& one : all) {
    const std::string family = one.at("family");
    CAPTURE(family);
    CHECK(one.at("tensors") == true);
    CHECK(one.at("logits") == 0.0);
    const double here =
        last_valid_loss(fs::directory_iterator(shell.dir() / "runs" / family)->path());
    CHECK(here == doctest::Approx(one.at("loss").get<double>()).epsilon(1e-5));
    CHECK(here < std::log(256.0) + 4);  // a number, and of a model that has not run away
  }
}

TEST_CASE("transformers writes conversations as mtl has learned them, in every format") {
  const auto env = accelerate_environment();
  const std::string python = env.at("PATH").substr(0, env.at("PATH").find(':')) + "/python";
  Shell shell;
  const auto must = [&](const std::vector<std::string>& args) {
    const Outcome outcome = shell.mtl(args);
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    return outcome.out;
  };
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("What is {} and {}?\nIt is {}.\n", i, i, 2 * i);
  shell.write("text.txt", text);
  // One tokenizer with the tokens of all.
  std::vector<std::string> train = {"data",         "train-tokenizer", "--vocab",  "300",
                                    "-o",           "tok.json",        "text.txt", "--special",
                                    "<|endoftext|>"};
  std::set<std::string> names;
  for (const std::string& name : mtl::chat::format_names()) {
    const mtl::chat::Format format = mtl::chat::load_format(name);
    const auto collect = [&](const mtl::chat::Pieces& pieces) {
      for (const mtl::chat::Piece& piece : pieces) {
        if (piece.kind == mtl::chat::Piece::Kind::token) names.insert(piece.text);
      }
    };
    collect(format.begin);
    for (const auto& role : format.roles) collect(role.second);
  }
  for (const std::string& name : names) train.insert(train.end(), {"--special", name});
  must(train);
  const json user = {{"role", "user"}, {"content", " What is 1\n"}};
  const json answer = {{"role", "assistant"}, {"content", "\n\"It's\" 2. {{x}} "}};
  const json system = {{"role", "system"}, {"content", "In 'short'. "}};
  shell.write("lines.jsonl", json{{"messages", {user, answer}}}.dump() + "\n" +
                                 json{{"messages", {system, user, answer, user, answer}}}.dump() +
                                 "\n");
  must({"data", "tokenize", "--tokenizer", "tok.json", "--chat", "chatml", "-o", "talk",
        "lines.jsonl"});
  shell.write("train.yaml",
              "model: {layers: 1, hidden: 16, heads: 2}\n"
              "data: {train: talk, split: [1], sampler: best_fit}\n"
              "train: {steps: 1, seq_len: 64, global_batch: 1}\n"
              "run: {name: x}\n");
  must({"launch", "train.yaml"});
  for (const std::string& name : mtl::chat::format_names()) {
    CAPTURE(name);
    if (name == "tulu" || name == "olmo2") continue;  // whose words are phi3's tokens here
    must({"ckpt", "export", "--chat", name, "runs/x", "-o", "x-" + name});
    must({"data", "tokenize", "--tokenizer", "tok.json", "--chat", name, "-o", "talk-" + name,
          "lines.jsonl"});
    std::vector<std::string> ids;  // of each line, as mtl prints them
    std::istringstream preview(must({"data", "preview", "talk-" + name, "--tokens", "1000"}));
    for (std::string line; std::getline(preview, line);) {
      if (line.starts_with("  ids ")) ids.push_back(line.substr(6));
    }
    const Outcome theirs =
        shell.run({python, client("transformers_chat.py"), "x-" + name, "lines.jsonl"}, env);
    REQUIRE_MESSAGE(theirs.code == 0, theirs.err);
    const std::vector<json> all = lines_of_json(theirs.out);
    REQUIRE(all.size() == 2);
    for (size_t i = 0; i < all.size(); ++i) {
      CHECK(fmt::format("{}", fmt::join(all[i].at("ids").get<std::vector<int>>(), " ")) ==
            ids.at(i));
      // What it gives a model to answer is where the answer begins in what was learned.
      const auto prompt =
          fmt::format("{} ", fmt::join(all[i].at("prompt").get<std::vector<int>>(), " "));
      CHECK(ids.at(i).starts_with(prompt));
      const json ends = all[i].at("ends");
      CHECK((ends.is_array() || ends == 0));
    }
  }
}
