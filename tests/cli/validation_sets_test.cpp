// Several validation sets: each has a loss of its own, and their mean is the loss of all.
#include <cmath>

#include "cli/tiny_run.h"

using namespace mtl::test;

namespace {

struct ValidLosses {
  double all = 0, fox = 0, dog = 0;
  bool operator==(const ValidLosses&) const = default;
};

// Of the steps 5 and 10.
std::vector<ValidLosses> valid_losses(const fs::path& run) {
  std::vector<ValidLosses> losses;
  for (const json& line : metrics_of(run)) {
    if (!line.contains("valid_loss")) continue;
    losses.push_back({line["valid_loss"], line.value("valid_loss/fox", std::nan("")),
                      line.value("valid_loss/dog.2", std::nan(""))});
  }
  return losses;
}

Outcome train_on_sets(const Shell& shell, int ranks, const std::string& valid,
                      const std::vector<std::string>& settings = {}) {
  write_recipe(shell, 10);
  std::string fox, dog;
  for (int i = 0; i < 20; ++i) {
    fox += "the fox jumps\n";
    dog += "lazy dog 3 over " + std::to_string(i % 7) + "\n";
  }
  shell.write("fox.txt", fox);
  shell.write("dog.txt", dog);
  std::vector<std::string> words = {"launch",
                                    "--num_processes",
                                    std::to_string(ranks),
                                    "train.yaml",
                                    "data.valid=" + valid,
                                    "train.eval.every=5",
                                    "train.eval.iters=0",
                                    "train.micro_batch=1"};
  words.insert(words.end(), settings.begin(), settings.end());
  const Outcome outcome = shell.mtl(words, {{"OMP_NUM_THREADS", "1"}});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  return outcome;
}

}  // namespace

TEST_CASE("validation sets have their own losses, and their mean is that of all") {
  const std::string sets = "{fox: fox.txt, dog.2: [dog.txt, fox.txt]}";
  Shell shell;
  const Outcome outcome = train_on_sets(shell, 1, sets, {"checkpoint.keep_best.k=1"});
  const auto one = valid_losses(run_of(shell));
  REQUIRE(one.size() == 2);
  CHECK(one[1].fox != one[1].dog);
  CHECK(one[1].all > std::min(one[1].fox, one[1].dog));
  CHECK(one[1].all < std::max(one[1].fox, one[1].dog));
  CHECK(has(outcome.err, "step=10 valid_loss="));
  CHECK(has(outcome.err, " valid_loss/fox="));
  CHECK(has(outcome.err, " valid_loss/dog.2="));
  CHECK(has(outcome.err, "  fox "));  // behind the loss of all, at the end
  CHECK(has(file_text(run_of(shell) / "report.html"), "Validation loss, dog.2"));
  {
    Shell list;
    train_on_sets(list, 1, "[fox.txt, dog.txt, fox.txt]");
    const auto together = valid_losses(run_of(list));
    REQUIRE(together.size() == 2);
    CHECK(std::abs(together[1].all - one[1].all) < 1e-12);
    CHECK(std::isnan(together[1].fox));
    Shell fox;
    train_on_sets(fox, 1, "fox.txt");
    CHECK(valid_losses(run_of(fox))[1].all == one[1].fox);
  }
  Shell stages;
  train_on_sets(stages, 2, sets, {"parallel.pp=2"});
  CHECK(valid_losses(run_of(stages)) == one);
  Shell tensor;
  train_on_sets(tensor, 2, sets, {"parallel.tp=2"});
  CHECK(std::abs(valid_losses(run_of(tensor))[1].dog - one[1].dog) < 1e-4);
  // It goes on: resolved.yaml has the sets.
  const Outcome more = shell.mtl({"launch", "train.yaml", "data.valid=" + sets,
                                  "train.eval.every=5", "train.eval.iters=0", "train.steps=15",
                                  "lr.schedule=constant", "train.micro_batch=1"});
  CHECK(more.code == 0);
  CHECK(valid_losses(run_of(shell)).size() == 3);
}

TEST_CASE("a validation set without a name, a path or a sequence is an error") {
  Shell shell;
  write_recipe(shell, 10);
  shell.write("short.txt", "the fox");
  const auto refused = [&](const std::string& valid) {
    const Outcome outcome = shell.mtl({"plan", "train.yaml", "data.valid=" + valid});
    CHECK(outcome.code != 0);
    return outcome.err;
  };
  CHECK(has(refused("{a b: corpus.txt}"), "data.valid: `a b` is no name of a set"));
  CHECK(has(refused("{a: {b: c}}"), "data.valid.a is neither a path nor a list of paths"));
  CHECK(has(refused("{a: missing.txt}"), "error[data.missing]"));
  CHECK(has(refused("{a: corpus.txt, b: short.txt}"), "'short.txt' is too short"));
  CHECK(has(refused("{}"), "data.valid is empty"));
}
