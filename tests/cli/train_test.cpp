// The real program with the real trainer: plan, launch, resume, stop, generate.
#include <csignal>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/tiny_run.h"

using namespace mtl::test;

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

TEST_CASE("a run trains, reports, is complete, and goes on with more steps") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome first = shell.mtl({"launch", "--num_processes", "2", "train.yaml"});
  CAPTURE(first.err);
  REQUIRE(first.code == 0);
  CHECK(first.out.empty());
  CHECK_FALSE(has(first.err, "\r"));
  CHECK_FALSE(has(first.err, "\033"));
  CHECK(has(first.err, "Z step=1 loss="));
  CHECK(has(first.err, "Z step=10 loss="));
  const fs::path run = run_of(shell);
  const auto lines = metrics_of(run);
  REQUIRE(lines.size() >= 4);
  CHECK(lines[0]["step"] == 1);
  CHECK(lines[0]["loss"].get<double>() > lines[lines.size() - 2]["loss"].get<double>());
  CHECK(lines.back()["valid_loss"].is_number());
  CHECK(json::parse(file_text(run / "status.json"))["state"] == "done");
  CHECK(fs::exists(run / "logs/rank-00001.log"));
  CHECK(has(file_text(run / "report.html"), "<span class='state done'>"));
  CHECK(std::distance(fs::directory_iterator(run / "tb"), {}) == 1);

  const Outcome again = shell.mtl({"launch", "--num_processes", "2", "train.yaml"});
  CHECK(again.code == 0);
  CHECK(has(again.err, "is complete"));
  CHECK(has(again.err, "--fresh"));
  CHECK(metrics_of(run).size() == lines.size());

  const Outcome more = shell.mtl(
      {"launch", "--num_processes", "2", "train.yaml", "train.steps=15", "lr.schedule=constant"});
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(has(file_text(run / "events.jsonl"), "\"resumed\""));
  int at_15 = 0;
  for (const json& line : metrics_of(run_of(shell))) {
    at_15 += line["step"] == 15 && line.contains("loss") ? 1 : 0;
  }
  CHECK(at_15 == 1);

  const Outcome words = shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "});
  CAPTURE(words.err);
  CHECK(words.code == 0);
  CHECK(words.out.size() >= 20);
  // A prompt longer than the context (16) is cut at its beginning.
  const Outcome tail =
      shell.mtl({"generate", "runs/tiny", std::string(100, 'e') + " the", "--tokens", "40"});
  CHECK(tail.code == 0);
  CHECK(tail.out.size() >= 40);
  CHECK(shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "}).out == words.out);
  // Fewer tokens are the beginning of more, whether or not those fill the context.
  for (const char* tokens : {"1", "2", "12", "13", "14"}) {
    CAPTURE(tokens);
    const Outcome few = shell.mtl({"generate", "--tokens", tokens, "runs/tiny", "the "});
    REQUIRE(few.code == 0);
    REQUIRE(few.out.size() > 1);
    CHECK(words.out.starts_with(few.out.substr(0, few.out.size() - 1)));
  }
}

TEST_CASE(
    "generate takes memory for the text that is asked of it, not for all that fits the model") {
  Shell shell;
  write_recipe(shell, 2);
  // A context so long and heads so wide that no address space holds the keys of all of it.
  const Outcome launched =
      shell.mtl({"launch", "train.yaml", "model.position.type=alibi", "model.max_seq=134217728",
                 "model.layers=1", "model.hidden=8", "model.heads=2", "model.head_dim=65536"});
  REQUIRE_MESSAGE(launched.code == 0, launched.err);
  const Outcome words = shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "});
  CAPTURE(words.err);
  CHECK(words.code == 0);
  CHECK(words.out.size() >= 20);
  const Outcome all = shell.mtl({"generate", "--tokens", "134217728", "runs/tiny", "the "});
  CAPTURE(all.err);
  CHECK(all.code == 5);
  CHECK(has(all.err, "a context of 134 217 728 tokens takes "));
  CHECK(has(all.err, "fewer --tokens"));
  CHECK_FALSE(has(all.err, "micro-batch"));
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
}

TEST_CASE("a run starts from the weights of another one by its name, and says so") {
  Shell shell;
  write_recipe(shell, 10);
  REQUIRE(shell.mtl({"launch", "train.yaml", "run.dir=out"}).code == 0);
  const std::string checkpoint = fs::relative(
      fs::directory_iterator(shell.dir() / "out/tiny")->path() / "checkpoints/step-00000010",
      shell.dir());
  // Newer runs of that name: one that was stopped before it had a checkpoint, and the run itself.
  fs::create_directories(shell.dir() / "out/tiny/99990101-000000-dead/checkpoints");
  shell.write("out/tiny/99990101-000000-dead/resolved.yaml", "");
  for (const auto& [from, name] :
       {std::pair("tiny", "more"), {"out/tiny", "more"}, {"tiny", "tiny"}}) {
    CAPTURE(std::string(from));
    CAPTURE(std::string(name));
    const Outcome outcome = shell.mtl({"launch", "--fresh", "train.yaml", "run.dir=out",
                                       std::string("run.name=") + name, "train.steps=2",
                                       "log.every=1", std::string("init.from=") + from});
    CHECK(outcome.code == 0);
    CAPTURE(outcome.out);
    const std::string all = outcome.out + outcome.err;
    CHECK(has(all, "start    from the weights of out/tiny/"));
    if (name == std::string("more")) CHECK(has(all, checkpoint));
  }
  CHECK(has(shell.mtl({"launch", "train.yaml", "run.name=other", "init.from=nothing"}).err,
            "init.missing"));
}

TEST_CASE("threads compute the bits of processes") {
  for (const char* layout : {"parallel.dp=2", "parallel.tp=2"}) {
    CAPTURE(layout);
    std::map<std::string, std::vector<json>> losses;
    std::map<std::string, std::map<std::string, std::string>> tensors;
    for (const std::string spawn : {"processes", "threads"}) {
      Shell shell;
      write_recipe(shell, 10);
      const Outcome outcome = shell.mtl({"launch", "--num_processes", "2", "train.yaml", layout,
                                         "log.every=1", "launch.spawn=" + spawn});
      CAPTURE(outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK(has(outcome.err, spawn == "threads" ? "2 threads of one process" : "2 processes"));
      const fs::path run = run_of(shell);
      CHECK(fs::exists(run / "logs/rank-00001.log") == (spawn == "processes"));
      for (json line : metrics_of(run)) {
        for (const char* timed : {"time", "tokens_per_s", "step_time_s", "mfu", "mfu_of_flops"})
          line.erase(timed);
        losses[spawn].push_back(line);
      }
      tensors[spawn] = tensors_of(run / "latest");
    }
    CHECK(losses["processes"].size() == 11);
    CHECK(losses["threads"] == losses["processes"]);
    CHECK(tensors["processes"].size() > 20);
    CHECK(tensors["threads"] == tensors["processes"]);
  }
}

TEST_CASE("ranks as threads obey signals together and go on as processes") {
  Shell shell;
  write_recipe(shell, 100000);
  const pid_t pid = shell.start(
      {MTL_PROGRAM, "launch", "--num_processes", "2", "train.yaml", "launch.spawn=threads"});
  wait_for_text(shell, "step=5 ");
  kill(pid, SIGUSR1);
  wait_for_text(shell, "checkpoint=");
  CHECK(has(file_text(shell.dir() / "stderr.txt"), "checkpoint="));
  kill(pid, SIGTERM);
  const Outcome stopped = shell.finish(pid);
  CAPTURE(stopped.err);
  REQUIRE(stopped.code == 75);
  CHECK(has(stopped.err, "asked 2 ranks to stop"));
  const json status = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(status["state"] == "stopped");
  const int64_t step = status["step"];
  const Outcome more = shell.mtl(
      {"launch", "--num_processes", "2", "train.yaml", "train.steps=" + std::to_string(step + 3)});
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["step"] == step + 3);
}

TEST_CASE("a rank that fails is the headline among processes and among threads") {
  for (const std::string spawn : {"processes", "threads"}) {
    CAPTURE(spawn);
    Shell shell;
    write_recipe(shell, 1000);
    const pid_t pid = shell.start({MTL_PROGRAM, "launch", "--num_processes", "2", "train.yaml",
                                   "checkpoint.every=0", "launch.spawn=" + spawn});
    wait_for_text(shell, "step=5 ");
    // Only rank 0 makes the folder of a checkpoint.
    const fs::path checkpoints = run_of(shell) / "checkpoints";
    fs::remove_all(checkpoints);
    shell.write(checkpoints.string(), "in the way");
    // The last one has to be written: without it the run has failed.
    const Outcome outcome = shell.finish(pid);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 4);
    const size_t headline = outcome.err.rfind("error[rank.died]");
    REQUIRE(headline != std::string::npos);
    const std::string report = outcome.err.substr(headline);
    CHECK(has(report, spawn == "threads" ? ": ranks 0-1 (pid " : ": rank 0 (pid "));
    CHECK(has(report, "error[ckpt.write]"));
    CHECK(has(report, checkpoints.string()));
    CHECK(has(report, "]: rank 0: ") == (spawn == "threads"));
    CHECK_FALSE(has(outcome.err, "comm.peer_lost"));
    CHECK(json::parse(file_text(run_of(shell) / "status.json"))["state"] == "failed");
  }
}

TEST_CASE("a process of rank threads that is killed is the headline") {
  Shell shell;
  write_recipe(shell, 100000);
  const pid_t pid =
      shell.start({MTL_PROGRAM, "launch", "--num_processes", "3", "train.yaml",
                   "launch.spawn=threads", "train.global_batch=6", "train.micro_batch=1"});
  wait_for_text(shell, "step=5 ");
  pid_t victim = 0;
  int workers = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string environment = file_text(entry.path() / "environ");
    if (has(environment, std::string("HF_HOME=") + (shell.dir() / "hf").string()) &&
        has(environment, std::string("\0RANK=", 6))) {
      ++workers;
      victim = std::stoi(entry.path().filename().string());
      CHECK(has(environment, std::string("\0MTL_RANK_THREADS=3\0", 20)));
      CHECK(has(environment, std::string("\0WORLD_SIZE=3\0", 14)));
      CHECK_FALSE(has(environment, "MTL_TOKEN_FD="));
    }
  }
  REQUIRE(workers == 1);
  // Also where there is more to complain about.
  fs::create_directories(run_of(shell) / "report.html/in the way");
  kill(victim, SIGKILL);
  const Outcome outcome = shell.finish(pid);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 137);
  CHECK(has(outcome.err, "report.html"));
  CHECK(outcome.err.rfind("warning: ") < outcome.err.rfind("error["));
  CHECK(has(outcome.err, "ranks 0-2 (pid " + std::to_string(victim) + ") was killed by SIGKILL"));
}

TEST_CASE("a worker told to run some ranks of several processes as threads refuses") {
  Shell shell;
  write_recipe(shell, 10);
  const Outcome outcome =
      shell.mtl({"worker", "."}, {{"MTL_RANK_THREADS", "2"}, {"WORLD_SIZE", "4"}});
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "error[worker.environment]"));
  CHECK(has(outcome.err, "MTL_RANK_THREADS=2"));
}

TEST_CASE("TERM stops with a complete checkpoint and code 75, and the same command goes on") {
  Shell shell;
  write_recipe(shell, 100000);
  const pid_t pid = shell.start({MTL_PROGRAM, "launch", "--num_processes", "2", "train.yaml"});
  wait_for_text(shell, "step=5 ");
  // Meanwhile the run is nobody else's.
  kill(pid, SIGUSR1);  // writes a checkpoint, so that there is something to resume
  wait_for_text(shell, "checkpoint=");
  CHECK(has(file_text(shell.dir() / "stderr.txt"), "checkpoint="));
  const Outcome second = shell.mtl({"launch", "train.yaml"});
  CHECK(second.code == 4);
  CHECK(has(second.err, "error[run.busy]"));
  kill(pid, SIGTERM);
  const Outcome stopped = shell.finish(pid);
  CAPTURE(stopped.err);
  REQUIRE(stopped.code == 75);
  CHECK(has(stopped.err, "the same command goes on"));
  const fs::path run = run_of(shell);
  const json status = json::parse(file_text(run / "status.json"));
  CHECK(status["state"] == "stopped");
  const int64_t step = status["step"];
  CHECK(step >= 5);
  const Outcome more = shell.mtl(
      {"launch", "--num_processes", "2", "train.yaml", "train.steps=" + std::to_string(step + 3)});
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["step"] == step + 3);
}

namespace {

// The age that the launcher gave the job's ranks of this start; -1: there are none.
int age_of_job(const Shell& shell, const std::string& start) {
  const std::string text = "TORCHELASTIC_RESTART_COUNT=" + start;
  const pid_t worker = worker_with(shell, text + std::string("\0", 1));
  const std::string environment = file_text("/proc/" + std::to_string(worker) + "/environ");
  const std::string name = "MTL_JOB_AGE_S=";
  const size_t at = environment.find(name);
  return at == std::string::npos ? -1 : std::atoi(environment.c_str() + at + name.size());
}

}  // namespace

TEST_CASE("health.max_time counts from the begin of the job, also if its ranks start again") {
  Shell shell;
  write_recipe(shell, 100000);
  const pid_t pid = shell.start(
      {MTL_PROGRAM, "launch", "--max_restarts", "1", "train.yaml", "health.max_time=1h"});
  wait_for_text(shell, "step=5 ");
  const int first = age_of_job(shell, "0");
  CHECK(first >= 1);
  sleep(1);
  const pid_t victim = worker_with(shell, std::string("\0RANK=0\0", 8));
  REQUIRE(victim > 0);
  kill(victim, SIGKILL);
  wait_for_text(shell, "restart 1 of 1");
  const auto goes_on = [&] {
    const std::string text = file_text(shell.dir() / "stderr.txt");
    return has(text.substr(text.find("restart 1 of 1")), "step=");
  };
  for (int i = 0; i < 600 && !goes_on(); ++i) usleep(50'000);
  CHECK(age_of_job(shell, "1") > first);
  kill(pid, SIGTERM);
  CHECK(shell.finish(pid).code == 75);
  // So ranks of a job that is as old as that do one more step.
  const json before = json::parse(file_text(run_of(shell) / "status.json"));
  const Outcome old = shell.mtl({"worker", run_of(shell).string()}, {{"MTL_JOB_AGE_S", "3600"}});
  CAPTURE(old.err);
  CHECK(old.code == 75);
  const json after = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(after["step"].get<int>() == before["step"].get<int>() + 1);
}

TEST_CASE("health.max_time stops a run as a request would, and not before") {
  Shell shell;
  write_recipe(shell, 3);
  CHECK(shell.mtl({"launch", "train.yaml", "health.max_time=1h", "run.name=short"}).code == 0);
  write_recipe(shell, 100000);
  const Outcome stopped =
      shell.mtl({"launch", "--num_processes", "2", "train.yaml", "health.max_time=1s"});
  CAPTURE(stopped.err);
  REQUIRE(stopped.code == 75);
  CHECK(has(stopped.err, "stopped by health.max_time after step "));
  CHECK(has(stopped.err, "the same command goes on"));
  const json status = json::parse(file_text(run_of(shell) / "status.json"));
  CHECK(status["state"] == "stopped");
  CHECK(status["step"] >= 1);
}

TEST_CASE("a loss that jumps is a warning, and the run goes on") {
  // The second half of the text is of other letters, and read in order.
  Shell shell;
  write_recipe(shell, 90);
  std::string text;
  const size_t half = 70 * 8 * 16;  // 70 steps
  while (text.size() < half) text += "abababab";
  while (text.size() < 3 * half) text += "xyzzyxyz";
  shell.write("corpus.txt", text);
  const Outcome run =
      shell.mtl({"launch", "train.yaml", "data.sampler=sequential", "data.split=[1]",
                 "train.seq_len=16", "train.global_batch=8", "lr.max=0.01"});
  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  CHECK(has(run.err, "[loss.spike] step 7"));
  CHECK(has(file_text(run_of(shell) / "events.jsonl"), "\"spike\""));
}

TEST_CASE("a rank that is killed is the headline, and the run is recorded as failed") {
  Shell shell;
  write_recipe(shell, 100000);
  const pid_t pid =
      shell.start({MTL_PROGRAM, "launch", "--num_processes", "2", "--grace", "2", "train.yaml"});
  wait_for_text(shell, "step=5 ");
  const pid_t victim = worker_with(shell, std::string("\0RANK=1\0", 8));
  REQUIRE(victim > 0);
  // The token is in no environment and on no command line.
  const std::string environment = file_text("/proc/" + std::to_string(victim) + "/environ");
  CHECK(has(environment, "MTL_TOKEN_FD="));
  CHECK_FALSE(has(environment, "MTL_TOKEN="));
  CHECK(file_text("/proc/" + std::to_string(victim) + "/cmdline").size() < 300);
  kill(victim, SIGKILL);
  const Outcome outcome = shell.finish(pid);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 137);
  CHECK(has(outcome.err, "rank 1"));
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["state"] == "failed");
  CHECK(has(file_text(run_of(shell) / "report.html"), "Failed with exit code 137."));
}

TEST_CASE("a run that was killed with its launcher is lost, and goes on from its checkpoint") {
  Shell shell;
  const std::string state = (shell.dir() / "state").string();
  write_recipe(shell, 100000);
  const pid_t pid = shell.start({MTL_PROGRAM, "launch", "train.yaml"}, {{"XDG_STATE_HOME", state}});
  wait_for_text(shell, "checkpoint=");
  const auto said = [&] {
    Outcome report = shell.mtl({"report", "runs/tiny", "--json"});
    CHECK_MESSAGE(report.code == 0, report.err);
    return json::parse(report.out)["runs"][0]["state"].get<std::string>();
  };
  CHECK(said() == "running");
  kill(pid, SIGKILL);
  shell.finish(pid);
  for (int i = 0; i < 600 && worker_with(shell, "MTL_RUN_FENCE=") != 0; ++i) usleep(20'000);
  CHECK(said() == "lost");
  CHECK(json::parse(file_text(run_of(shell) / "status.json"))["state"] == "running");
  CHECK(shell.mtl({"report", "runs/tiny"}).code == 0);
  CHECK(has(file_text(run_of(shell) / "report.html"), "No longer running since about "));
  const Outcome jobs = shell.mtl({"ps", "--all"}, {{"XDG_STATE_HOME", state}});
  CHECK(has(jobs.out, "LOST"));
  const Outcome more = shell.mtl({"launch", "train.yaml", "health.max_time=1s"});
  CHECK(more.code == 75);
  CHECK(said() == "stopped");
}

TEST_CASE("a batch that does not fit at once is cut where train.micro_batch is auto") {
  Shell shell;
  write_recipe(shell, 5);
  // A million sequences at once need more than this machine has.
  const Outcome cut = shell.mtl({"launch", "--dry-run", "train.yaml", "train.global_batch=1048576",
                                 "train.micro_batch=auto"});
  CAPTURE(cut.err);
  CHECK(cut.code == 0);
  CHECK(has(cut.err, "train.micro_batch auto: "));
  CHECK(has(cut.err, "of 1048576 sequences at once"));
  CHECK(has(cut.out, "  # auto: "));
  // A plan may be of another machine.
  const Outcome plan =
      shell.mtl({"plan", "train.yaml", "train.global_batch=1048576", "train.micro_batch=auto"});
  CHECK(plan.code == 0);
  CHECK_FALSE(has(plan.err, "train.micro_batch auto"));
  // What somebody wrote stays, and is refused if it does not fit.
  CHECK(
      shell.mtl({"launch", "train.yaml", "train.global_batch=1048576", "train.micro_batch=1048576"})
          .code == 5);
}

TEST_CASE("in a control group with little memory a run is cut to it and learns the same") {
  Shell shell;
  write_recipe(shell, 5);
  const std::string small =
      "unshare -m sh -c 'mount -t tmpfs tmpfs /sys/fs/cgroup && "
      "echo 8000000 > /sys/fs/cgroup/memory.max";
  // Only where mount namespaces are allowed.
  if (shell.run({"/bin/sh", "-c", small + "'"}).code != 0) return;
  const std::string launch = std::string(" launch train.yaml train.global_batch=256 ") +
                             "train.micro_batch=auto run.name=";
  const Outcome cut =
      shell.run({"/bin/sh", "-c", small + " && exec " + MTL_PROGRAM + launch + "cut'"});
  CAPTURE(cut.err);
  REQUIRE(cut.code == 0);
  CHECK(has(cut.err, "of 256 sequences at once"));
  REQUIRE(
      shell.run({"/bin/sh", "-c", std::string("exec ") + MTL_PROGRAM + launch + "whole"}).code ==
      0);
  std::vector<double> losses;
  for (const char* name : {"cut", "whole"}) {
    for (const auto& entry : fs::recursive_directory_iterator(shell.dir() / "runs" / name)) {
      if (entry.path().filename() != "metrics.jsonl") continue;
      std::istringstream lines(file_text(entry.path()));
      for (std::string line; std::getline(lines, line);) {
        const auto record = nlohmann::json::parse(line);
        if (record.contains("loss") && record["step"] == 5) losses.push_back(record["loss"]);
      }
    }
  }
  REQUIRE(losses.size() == 2);
  // Another order of sums, and nothing else.
  CHECK(losses[0] == doctest::Approx(losses[1]).epsilon(1e-4));
}

#ifndef __SANITIZE_ADDRESS__  // which wants the whole address space
TEST_CASE("a first step that does not get its memory is tried again with a smaller micro-batch") {
  Shell shell;
  write_recipe(shell, 2);
  // The arena of all 256 sequences is planned to fit into the machine, and does not get half of it.
  const std::vector<std::string> wide = {"train.global_batch=256", "train.seq_len=256",
                                         "model.hidden=64"};
  std::string launch = std::string("exec ") + MTL_PROGRAM + " launch --cpu train.yaml";
  for (const std::string& setting : wide) launch += " " + setting;
  std::vector<std::string> planned = {"plan", "--json", "train.yaml", "train.micro_batch=auto"};
  planned.insert(planned.end(), wide.begin(), wide.end());
  const Outcome plan = shell.mtl(planned);
  REQUIRE_MESSAGE(plan.code == 0, plan.err);
  const auto bytes = json::parse(plan.out)["stages"][0]["memory_per_rank"]["total_bytes"];
  // A program's own address space is about 300 MB.
  const int64_t limit = 300'000 + bytes.get<int64_t>() / 1024 / 2;
  const std::string less = "ulimit -v " + std::to_string(limit) + " && ";
  const Outcome run =
      shell.run({"/bin/sh", "-c", less + launch + " train.micro_batch=auto run.name=auto"});
  CAPTURE(run.err);
  CHECK(run.code == 0);
  CHECK(has(run.err, "the first step ran out of memory; again with train.micro_batch auto: "));
  CHECK(has(run.err, "done     2 steps"));
  // Who asked for 256 gets an answer, not another number.
  const Outcome asked =
      shell.run({"/bin/sh", "-c", less + launch + " train.micro_batch=256 run.name=asked"});
  CHECK(asked.code == 5);
  CHECK_FALSE(has(asked.err, "again with"));
  // And nothing is tried for ever.
  const Outcome never = shell.run({"/bin/sh", "-c",
                                   "ulimit -v 300000 && " + launch +
                                       " model.hidden=1024 train.micro_batch=auto run.name=never"});
  CAPTURE(never.err);
  CHECK(never.code == 5);
}
#endif
