// Layouts and ways to spawn ranks from the outside: what only divides the work writes the same run.
#include <functional>

#include "cli/tiny_run.h"

using namespace mtl::test;

namespace {

// The settings of a small model of the LLaMA family, and more.
std::vector<std::string> llama(const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings = {"model.kv_heads=2",
                                       "model.activation=swiglu",
                                       "model.norm.type=rmsnorm",
                                       "model.position.type=rope",
                                       "model.bias=false",
                                       "model.tie_embeddings=false",
                                       "model.ffn=64"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// What must not depend on the clock.
std::vector<json> timeless_metrics(const fs::path& run) {
  std::vector<json> lines = metrics_of(run);
  for (json& line : lines) {
    for (const char* timed :
         {"time", "tokens_per_s", "step_time_s", "mfu", "mfu_of_flops", "memory_bytes"}) {
      line.erase(timed);
    }
  }
  return lines;
}

// Trains on four ranks as processes and as threads, which must write the same and say what they
// are. `then`: with the last of the runs.
void check_spawns(const std::vector<std::string>& settings, const std::vector<std::string>& said,
                  const std::function<void(const Shell&)>& then = {}) {
  std::vector<json> metrics;
  std::map<std::string, std::string> tensors;
  for (const std::string spawn : {"processes", "threads"}) {
    CAPTURE(spawn);
    Shell shell;
    write_recipe(shell, 10);
    const Outcome outcome = launch(shell, 4, {"log.every=1", "launch.spawn=" + spawn}, settings);
    CHECK(has(outcome.err, "4 " + spawn));
    for (const std::string& what : said) CHECK_MESSAGE(has(outcome.err, what), outcome.err);
    const fs::path run = run_of(shell);
    if (spawn == "threads") {
      CHECK(timeless_metrics(run) == metrics);
      CHECK(tensors_of(run / "latest") == tensors);
      if (then) then(shell);
    }
    metrics = timeless_metrics(run);
    tensors = tensors_of(run / "latest");
    CHECK(metrics.size() == 11);
    CHECK(tensors.size() > 20);
  }
}

}  // namespace

TEST_CASE("two pipeline stages write the run of one process") {
  std::vector<json> metrics;
  std::map<std::string, std::string> tensors;
  for (const int stages : {1, 2}) {
    CAPTURE(stages);
    Shell shell;
    write_recipe(shell, 10);
    const Outcome outcome =
        launch(shell, stages,
               {"parallel.pp=" + std::to_string(stages), "train.micro_batch=1", "log.every=1"});
    CHECK(has(outcome.err, "2 pipeline stages, bubble ") == (stages == 2));
    const fs::path run = run_of(shell);
    if (stages == 2) {
      CHECK(timeless_metrics(run) == metrics);
      CHECK(tensors_of(run / "latest") == tensors);
    }
    metrics = timeless_metrics(run);
    tensors = tensors_of(run / "latest");
    CHECK(metrics.size() == 11);
    CHECK(metrics[0].size() == 5);  // step, loss, lr, grad_norm, mfu_of: nothing was skipped
  }
}

TEST_CASE("a LLaMA on four ranks has the same bits as processes and as threads and it writes") {
  check_spawns(
      llama({"parallel.tp=2", "parallel.pp=2"}),
      {"1 data x 2 tensor parallel x 2 pipeline stages", "sequence parallel"},
      [](const Shell& shell) {
        const Outcome words = shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "});
        CAPTURE(words.err);
        CHECK(words.code == 0);
        CHECK(words.out.size() >= 20);
      });
}

TEST_CASE("ranks that share sequences have the same bits as processes and as threads") {
  check_spawns(llama({"parallel.cp=2", "parallel.zero=3", "train.micro_batch=1"}),
               {"2 data x 1 tensor parallel x 2 context parallel, ZeRO-3"});
}

TEST_CASE("ranks that divide experts have the same bits as processes and as threads") {
  check_spawns(llama({"parallel.ep=2", "parallel.ep_room=1", "train.micro_batch=1",
                      "model.moe.experts=4", "model.moe.topk=2"}),
               {"2 data x 1 tensor parallel x 2 expert parallel, ZeRO-1"});
}

TEST_CASE("ZeRO-1 writes the run of whole replicas") {
  std::vector<json> metrics;
  for (const std::string zero : {"0", "1"}) {
    Shell shell;
    write_recipe(shell, 6);
    const Outcome outcome =
        launch(shell, 8,
               {"parallel.tp=2", "parallel.pp=2", "launch.spawn=threads", "parallel.zero=" + zero},
               llama());
    CHECK(has(outcome.err, "ZeRO-1") == (zero == "1"));
    if (zero == "1") CHECK(timeless_metrics(run_of(shell)) == metrics);
    metrics = timeless_metrics(run_of(shell));
  }
}

TEST_CASE("a run of two stages goes on as two replicas") {
  double whole = 0;
  for (const bool interrupted : {false, true}) {
    Shell shell;
    write_recipe(shell, 10);
    const std::vector<std::string> constant = {"lr.schedule=constant", "log.every=1"};
    if (interrupted) launch(shell, 2, {"parallel.pp=2"}, constant);
    launch(shell, 2, {interrupted ? "parallel.dp=2" : "parallel.pp=2", "train.steps=15"}, constant);
    const fs::path run = run_of(shell);
    CHECK(has(file_text(run / "events.jsonl"), "\"resumed\"") == interrupted);
    double last = 0;
    for (const json& line : metrics_of(run)) {
      if (line["step"] == 15 && line.contains("loss")) last = line["loss"];
    }
    if (interrupted) {
      CHECK(last == doctest::Approx(whole).epsilon(1e-5));
    } else {
      whole = last;
    }
  }
}

TEST_CASE("a stage without parameters has nothing on the host and trains") {
  Shell shell;
  write_recipe(shell, 2);
  const Outcome outcome =
      shell.mtl({"launch", "--num_processes", "3", "train.yaml", "parallel.pp=3",
                 "parallel.stage_layout=[1,0,1]", "optimizer.offload=cpu"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
}
