// The real program with the real trainer, before a run starts: what is said, and what is refused.
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/tiny_run.h"

using namespace mtl::test;

TEST_CASE("a job that is started again says if the folder of its run was moved") {
  const Shell shell;
  write_recipe(shell, 2);
  shell.write("job/job.sbatch", "");
  const std::map<std::string, std::string> job = {
      {"SLURM_JOB_ID", "12"}, {"MTL_JOB_SCRIPT", (shell.dir() / "job/job.sbatch").string()}};
  const auto launched = [&](const char* steps) {
    const Outcome outcome = shell.mtl({"launch", "--standalone", "train.yaml", steps}, job);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    return outcome.err;
  };
  CHECK_FALSE(has(launched("train.steps=2"), "run.moved"));
  CHECK_FALSE(has(launched("train.steps=4"), "run.moved"));
  const fs::path run = run_of(shell);
  fs::rename(run, shell.dir() / "elsewhere");
  const std::string said = launched("train.steps=4");
  CHECK(has(said, "warning[run.moved]: the job has worked in " + run.string()));
  CHECK(has(said, "begins anew in " + run_of(shell).string()));
}

TEST_CASE("plan says what a run needs and starts nothing") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome text = shell.mtl({"plan", "--num_processes", "4", "train.yaml", "parallel.tp=2"});
  CAPTURE(text.err);
  CHECK(text.code == 0);
  CHECK(has(text.out, "4 ranks = 2 data x 2 tensor"));
  CHECK(has(text.out, "[0 1] [2 3]"));
  CHECK(has(text.out, "memory of a rank"));
  CHECK(has(text.out, "stage 0"));
  const Outcome data = shell.mtl({"plan", "--json", "train.yaml"});
  CHECK(data.code == 0);
  CHECK(json::parse(data.out)["schema"] == "mtl.plan/2");
  // The picture comes beside either form.
  const Outcome drawn = shell.mtl(
      {"plan", "--num_processes", "2", "--svg", "step.svg", "train.yaml", "parallel.pp=2"});
  CHECK(drawn.code == 0);
  CHECK(has(drawn.out, "schedule of a step: 1F1B, 2 stages"));
  CHECK(has(drawn.err, "schedule drawn in step.svg"));
  const std::string svg = file_text(shell.dir() / "step.svg");
  CHECK(svg.starts_with("<svg "));
  CHECK(has(svg, "1F1B, 2 stages"));
  const Outcome nowhere = shell.mtl({"plan", "--svg", "no/step.svg", "train.yaml"});
  CHECK(nowhere.code == 4);
  CHECK(has(nowhere.err, "error[file."));
  const std::string settings = file_text(shell.dir() / "train.yaml");
  const Outcome onto = shell.mtl({"plan", "--svg", "./train.yaml", "train.yaml"});
  CHECK(onto.code == 2);
  CHECK(has(onto.err, "--svg ./train.yaml would replace train.yaml"));
  CHECK(file_text(shell.dir() / "train.yaml") == settings);
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
}

TEST_CASE("all configuration errors at once, exit code 3, and nothing is started") {
  Shell shell;
  write_recipe(shell, 10);
  shell.write("bad.yaml", file_text(shell.dir() / "train.yaml") + "trian:\n  steps: 3\n");
  shell.write("launch.yaml", "num_proceses: 4\n");
  const Outcome outcome =
      shell.mtl({"launch", "--config_file", "launch.yaml", "bad.yaml", "lr.max=x"});
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "num_proceses"));
  CHECK(has(outcome.err, "trian"));
  CHECK(has(outcome.err, "lr.max"));
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
  CHECK(shell.mtl({"launch", "missing.yaml"}).code == 3);
  CHECK(shell.mtl({"launch", "train.yaml", "data.train=missing.txt"}).code == 6);
}

TEST_CASE("a required key that is misspelt is one error, and nothing is planned without it") {
  Shell shell;
  shell.write("corpus.txt", std::string(4000, 'a'));
  const std::string good =
      "model: {layers: 2, hidden: 64, heads: 4}\n"
      "train: {global_batch: 8, seq_len: 64, steps: 4}\ndata: {train: corpus.txt}\n";
  // As other trainers call them.
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"layers:", "num_layers:"},
                                                        {"layers:", "n_layer:"},
                                                        {"hidden:", "hidden_size:"},
                                                        {"heads:", "num_heads:"},
                                                        {"heads:", "headz:"},
                                                        {"global_batch:", "global_batch_size:"},
                                                        {"seq_len:", "sequence_length:"},
                                                        {"steps:", "max_steps:"},
                                                        {"{train: corpus", "{trian: corpus"}}) {
    CAPTURE(to);
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    shell.write("bad.yaml", text);
    for (const char* command : {"plan", "launch"}) {
      const Outcome outcome = shell.mtl({command, "bad.yaml"});
      CHECK(outcome.code == 3);
      CHECK(has(outcome.err, "config.unknown_key"));
      CHECK_FALSE(has(outcome.err, "config.missing"));
    }
  }
  shell.write("worse.yaml",
              "model: {num_layers: 2, hidden_size: 64, num_heads: 4}\n"
              "train: {global_batch_size: 8, max_steps: 4}\ndata: {train: corpus.txt}\n");
  CHECK(shell.mtl({"plan", "worse.yaml"}).code == 3);
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
}

TEST_CASE("what the machine has no memory for is refused before it starts") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome outcome =
      shell.mtl({"launch", "train.yaml", "model.hidden=32768", "model.layers=200"});
  CHECK(outcome.code == 5);
  CHECK(has(outcome.err, "error[memory.host]"));
  CHECK(has(outcome.err, "optimizer"));
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
  // Planning for a larger machine is still possible.
  CHECK(shell.mtl({"plan", "train.yaml", "model.hidden=32768", "model.layers=200"}).code == 0);
}

TEST_CASE("--dry-run shows the plan and the origin of each value, and starts nothing") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome outcome =
      shell.mtl({"launch", "--dry-run", "train.yaml", "lr.max=0.01"}, {{"MTL_TRAIN__SEED", "7"}});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "memory of a rank"));
  CHECK(has(outcome.out, "seed: 7"));
  CHECK(has(outcome.out, "\nstarts  1 process\n"));
  const auto starts = [&](const std::string& spawn) {
    return shell.mtl({"launch", "--dry-run", "--num_processes", "2", "train.yaml", spawn}).out;
  };
  CHECK(has(starts("launch.spawn=processes"), "\nstarts  2 processes, one per rank\n"));
  CHECK(has(starts("launch.spawn=threads"), "\nstarts  1 process with 2 ranks as threads\n"));
  // A misspelt variable is said; it may also be meant for another program.
  const Outcome misspelt =
      shell.mtl({"launch", "--dry-run", "train.yaml"}, {{"MTL_TRAIN__STEPZ", "7"}});
  CHECK(misspelt.code == 0);
  CHECK(has(misspelt.err, "MTL_TRAIN__STEPZ"));
  CHECK(has(outcome.out, "0.01"));
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
}

TEST_CASE("words for the engine that are none are said before anything starts") {
  Shell shell;
  write_recipe(shell, 5);
  const struct {
    const char *name, *code;
    int exit;
  } words[] = {{"MTL_DEVICE", "error[device.name]", 2},
               {"MTL_CPU_ISA", "error[device.cpu_isa]", 4},
               {"MTL_COMM", "error[comm.transport]", 4}};
  for (const auto& word : words) {
    CAPTURE(std::string(word.name));
    for (const bool dry : {true, false}) {
      std::vector<std::string> line = {"launch", "train.yaml"};
      if (dry) line.insert(line.begin() + 1, "--dry-run");
      const Outcome outcome = shell.mtl(line, {{word.name, "foo"}});
      CAPTURE(outcome.err);
      CHECK(outcome.code == word.exit);
      CHECK(outcome.err.starts_with(word.code));
      CHECK(outcome.err.find("error[", 1) == std::string::npos);
      CHECK_FALSE(fs::exists(shell.dir() / "runs"));
    }
    // A variable of the ranks alone is one of theirs, too.
    CHECK(has(shell.mtl({"launch", "--env", std::string(word.name) + "=foo", "train.yaml"}).err,
              word.code));
  }
  // With all else that is wrong.
  const Outcome all = shell.mtl({"launch", "train.yaml", "model.layers=0"},
                                {{"MTL_DEVICE", "foo"}, {"MTL_COMM", "foo"}});
  CHECK(all.code == 3);
  for (const char* code : {"device.name", "comm.transport", "model.layers"}) {
    CHECK(has(all.err, code));
  }
  // A plan is of any machine.
  CHECK(shell.mtl({"plan", "train.yaml"}, {{"MTL_COMM", "foo"}}).code == 0);
}

TEST_CASE("what evaluations decide wants something to evaluate on") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome best =
      shell.mtl({"launch", "train.yaml", "data.split=[1]", "checkpoint.keep_best.k=1"});
  CHECK(best.code == 3);
  CHECK(has(best.err, "error[data.no_validation]: checkpoint.keep_best.k"));
  CHECK_FALSE(fs::exists(shell.dir() / "runs"));
  const Outcome every = shell.mtl({"plan", "train.yaml", "data.split=[1]", "train.eval.every=5"});
  CHECK(every.code == 0);
  CHECK(has(every.err, "warning[data.no_validation]: train.eval.every"));
  const Outcome loss = shell.mtl({"plan", "train.yaml", "data.split=[1]",
                                  "checkpoint.keep_best.k=1", "checkpoint.keep_best.metric=loss"});
  CHECK_FALSE(has(loss.err, "no_validation"));
  // A text that is one document of a corpus is trained on as a whole.
  REQUIRE(shell.mtl({"data", "tokenize", "--tokenizer", "bytes", "-o", "one", "corpus.txt"}).code ==
          0);
  const std::vector<std::string> whole = {"plan", "train.yaml", "data.train=one",
                                          "data.tokenizer.type=auto"};
  CHECK(has(shell.mtl(whole).err,
            "warning[data.no_validation]: data.split [90, 10] leaves no sequence to evaluate on"));
  std::vector<std::string> all = whole;
  all.emplace_back("data.split=[1]");
  CHECK_FALSE(has(shell.mtl(all).err, "no_validation"));
}

TEST_CASE("what is no run, and what it is") {
  Shell shell;
  write_recipe(shell, 10);
  shell.write("folder/config.json", "{}");
  CHECK(has(shell.mtl({"generate", "folder", "a"}).err, "mtl ckpt import folder -o RUN"));
  CHECK(has(shell.mtl({"generate", "train.yaml", "a"}).err, "by its run.name: runs/NAME"));
  CHECK(has(shell.mtl({"generate", "nothing", "a"}).err, "such as runs/NAME"));
}
