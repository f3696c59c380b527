// Models that go to Hugging Face's transformers and come from it.
#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "cli/tiny_run.h"
#include "clients/clients.h"

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
