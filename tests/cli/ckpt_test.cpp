// mtl ckpt on the checkpoints of a real run, and real runs that are killed or whose disk fails
// while they save in the background.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>

#include <sys/mount.h>
#include <sys/stat.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.h"
#include "tiny_run.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::vector<int64_t> steps_of(const Shell& shell, const std::string& run) {
  const Outcome listed = shell.mtl({"ckpt", "ls", "--json", run});
  REQUIRE(listed.code == 0);
  std::vector<int64_t> steps;
  const json list = json::parse(listed.out);
  for (const json& entry : list.at("checkpoints")) {
    if (entry.at("status") == "committed") steps.push_back(entry.at("step"));
  }
  return steps;
}

void flip(const fs::path& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(at);
  file.put(byte);
}

// Of rank 0, once it has said so; not that of an earlier start, which is no more.
pid_t worker_of(const fs::path& run) {
  pid_t pid = 0;
  wait_until([&] {
    const json status = json::parse(file_text(run / "status.json"), nullptr, false);
    pid = status.is_object() ? status.value("pid", 0) : 0;
    return pid > 0 && kill(pid, 0) == 0;
  });
  REQUIRE(pid > 0);
  return pid;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// A run without an end, whose disk is in trouble.
const std::vector<std::string> kForever = {MTL_PROGRAM,          "launch",
                                           "train.yaml",         "train.steps=1000000",
                                           "checkpoint.every=5", "checkpoint.keep_last=1",
                                           "log.every=1000000"};

// The run, started as `pid` with a checkpoint of step 5, says once that it cannot save, goes on,
// and saves again when `mend` has been called. Gives what it had said until then.
std::string rides_it_out(const Shell& shell, const Shell& side, const fs::path& run, pid_t pid,
                         const std::function<void()>& mend) {
  wait_for_text(shell, "[ckpt.write]");
  const std::vector<int64_t> kept = steps_of(side, run.string());
  CHECK(kept == std::vector<int64_t>{5});
  CHECK(side.mtl({"ckpt", "verify", run.string()}).code == 0);
  std::string said = file_text(shell.dir() / "stderr.txt");
  CHECK(has(said, "training goes on"));
  CHECK(kill(pid, 0) == 0);
  mend();
  const size_t before = count(said, "checkpoint=");
  wait_until([&] { return count(file_text(shell.dir() / "stderr.txt"), "checkpoint=") > before; });
  kill(pid, SIGTERM);
  const Outcome stopped = shell.finish(pid);
  CAPTURE(stopped.err);
  CHECK(stopped.code == 75);
  CHECK(count(stopped.err, "[ckpt.write]") == 1);
  CHECK(has(file_text(run / "events.jsonl"), "checkpoint_failed"));
  CHECK(steps_of(side, run.string()).front() > 5);
  CHECK(side.mtl({"ckpt", "verify", run.string()}).code == 0);
  return said;
}

}  // namespace

TEST_CASE("mtl ckpt: a run's checkpoints listed, shown, compared, rewritten and thinned out") {
  Shell shell;
  write_recipe(shell, 20);
  const Outcome trained =
      shell.mtl({"launch", "--num_processes", "2", "train.yaml", "parallel.tp=2",
                 "checkpoint.keep_last=0", "checkpoint.keep_best.k=1"});
  CAPTURE(trained.err);
  REQUIRE(trained.code == 0);
  const std::string run = run_of(shell).string();
  CHECK(steps_of(shell, run) == std::vector<int64_t>{20, 15, 10, 5});
  const Outcome table = shell.mtl({"ckpt", "ls", run});
  CHECK(has(table.out, "tp2"));
  CHECK(has(table.out, "(latest)"));
  CHECK(count(table.out, "(best)") == 1);
  const json newest = json::parse(shell.mtl({"ckpt", "ls", "--json", run}).out)["checkpoints"][0];
  CHECK(newest["valid_loss"].is_number());
  CHECK(newest["layout"]["tp"] == 2);
  CHECK(newest["bytes"] > 100'000);

  const json shown = json::parse(shell.mtl({"ckpt", "show", "--json", run}).out);
  CHECK(shown["state"]["step"] == 20);
  CHECK(shown["tensors"]["transformer.wte.weight.exp_avg"]["optimizer"] == true);
  CHECK(shown["extra_files"] == json::array({"tokenizer.json"}));

  const std::string step10 = run + "/checkpoints/step-00000010";
  const std::string step20 = run + "/checkpoints/step-00000020";
  CHECK(shell.mtl({"ckpt", "diff", step10, step10}).code == 0);
  const Outcome differs = shell.mtl({"ckpt", "diff", "--json", step10, step20});
  CHECK(differs.code == 1);
  CHECK(json::parse(differs.out)["tensors"][0]["max_abs"] > 0);

  // Rewritten into other files it is the same checkpoint, and mtl generate reads it.
  int number = 0;
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"--shards", "1"}, {"--shards", "5"}, {"--tp", "4", "--pp", "2", "--dp", "2"}}) {
    const std::string out = fmt::format("other{}", ++number);
    std::vector<std::string> args = {"ckpt", "reshard", step20, "-o", out};
    args.insert(args.end(), layout.begin(), layout.end());
    const Outcome resharded = shell.mtl(args);
    CAPTURE(resharded.err);
    CHECK(resharded.code == 0);
    CHECK(shell.mtl({"ckpt", "diff", step20, out}).code == 0);
    CHECK(shell.mtl({"ckpt", "verify", out}).code == 0);
  }
  const auto text_of = [&](const std::string& from) {
    return shell.mtl({"generate", "--tokens", "20", "--seed", "3", from, "the"}).out;
  };
  CHECK(text_of("other3") == text_of(step20));
  const Outcome piped = shell.run(
      {"/bin/sh", "-c",
       fmt::format("printf the | {} generate --tokens 20 --seed 3 {} -", MTL_PROGRAM, step20)});
  CHECK(piped.code == 0);
  CHECK(piped.out == text_of(step20));
  CHECK(shell.mtl({"ckpt", "reshard", step20, "-o", "other1"}).code == 2);
  CHECK(shell.mtl({"ckpt", "reshard", step20, "-o", "x", "--tp", "3"}).code == 2);

  // The mean of one with itself is itself; of two it is between them.
  CHECK(shell.mtl({"ckpt", "average", "-o", "same", step20, step20}).code == 0);
  const json same =
      json::parse(shell.mtl({"ckpt", "diff", "--json", "--tensors_only", step20, "same"}).out);
  for (const json& tensor : same["tensors"]) CHECK(tensor["what"] == "only in A");
  CHECK(same["tensors"].size() == 2 * same["equal_tensors"].get<size_t>());
  CHECK(shell.mtl({"ckpt", "average", "-o", "mean", step10, step20}).code == 0);
  const auto distance = [&](const std::string& a, const std::string& b) {
    const json difference = json::parse(shell.mtl({"ckpt", "diff", "--json", a, b}).out);
    for (const json& tensor : difference.at("tensors")) {
      if (tensor["tensor"] == "transformer.wte.weight") return tensor["max_abs"].get<double>();
    }
    return 0.0;
  };
  CHECK(distance(step10, "mean") == doctest::Approx(distance(step10, step20) / 2).epsilon(1e-3));
  CHECK_FALSE(text_of("mean").empty());

  CHECK(shell.mtl({"ckpt", "merge", run, "-o", "model.safetensors"}).code == 0);
  CHECK(shell.mtl({"ckpt", "merge", run, "-o", "half.safetensors", "--dtype", "bf16"}).code == 0);
  CHECK(fs::file_size(shell.dir() / "half.safetensors") <
        fs::file_size(shell.dir() / "model.safetensors") * 6 / 10);
  const Outcome many =
      shell.mtl({"ckpt", "merge", run, "-o", "out/w.safetensors", "--max_shard_size", "20KB"});
  CHECK(many.code == 0);
  const json index = json::parse(file_text(shell.dir() / "out/w.safetensors.index.json"));
  CHECK(index["weight_map"].size() == same["equal_tensors"]);
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    CHECK(fs::exists(shell.dir() / "out" / file.get<std::string>()));
  }
  CHECK(shell.mtl({"ckpt", "merge", run, "--max_shard_size", "much"}).code == 2);
  const Outcome nameless = shell.mtl({"ckpt", "merge", run, "-o", ""});
  CHECK(nameless.code == 2);
  CHECK(has(nameless.err, "mtl ckpt merge wants -o FILE"));

  const Outcome would = shell.mtl({"ckpt", "prune", "--keep_last", "1", "--keep_every", "10",
                                   "--keep_best", "0", "--dry_run", "--json", run});
  CHECK(json::parse(would.out)["deleted"].size() == 2);
  CHECK(steps_of(shell, run).size() == 4);
  CHECK(
      shell
          .mtl({"ckpt", "prune", "--keep_last", "1", "--keep_every", "10", "--keep_best", "0", run})
          .code == 0);
  CHECK(steps_of(shell, run) == std::vector<int64_t>{20, 10});

  // What is there stays: a checkpoint's own files, and any other.
  shell.write("whole.safetensors.tmp", "precious");
  CHECK(shell.mtl({"ckpt", "merge", run, "-o", "whole.safetensors"}).code == 0);
  CHECK(file_text(shell.dir() / "whole.safetensors.tmp") == "precious");
  REQUIRE(::mkfifo((shell.dir() / "pipe").c_str(), 0600) == 0);
  const Outcome into_pipe = shell.mtl({"ckpt", "merge", run, "-o", "pipe"});
  CHECK(into_pipe.code == 2);
  CHECK(has(into_pipe.err, "pipe is there already"));
  CHECK(fs::is_fifo(shell.dir() / "pipe"));
  const Outcome onto_itself =
      shell.mtl({"ckpt", "merge", step10, "-o", step10 + "/model-r00000.safetensors"});
  CHECK(onto_itself.code == 2);
  CHECK(has(onto_itself.err, "error[ckpt.exists]"));

  // Every file and every tensor that is damaged is named.
  CHECK(shell.mtl({"ckpt", "verify", run}).code == 0);
  const json manifest = json::parse(file_text(fs::path(step10) / "manifest.json"));
  const json& chunk = manifest["tensors"]["transformer.wpe.weight"]["chunks"][0];
  flip(fs::path(step10) / chunk["file"].get<std::string>(), chunk["byte_offset"]);
  flip(fs::path(step10) / "tokenizer.json", 3);
  const Outcome damaged = shell.mtl({"ckpt", "verify", run});
  CHECK(damaged.code == 6);
  CHECK(has(damaged.err, "'transformer.wpe.weight'"));
  CHECK(has(damaged.err, chunk["file"].get<std::string>()));
  CHECK(has(damaged.err, "tokenizer.json"));
  CHECK(has(damaged.out, "step-00000020  intact"));
  CHECK(has(damaged.out, "2 damaged"));
  CHECK(shell.mtl({"ckpt", "merge", step10, "-o", "bad.safetensors"}).code == 6);
  CHECK(!fs::exists(shell.dir() / "bad.safetensors"));

  // Nothing is not intact.
  fs::remove_all(fs::path(step10).parent_path());
  const Outcome none = shell.mtl({"ckpt", "verify", run, "--json"});
  CHECK(none.code == 6);
  CHECK(has(none.err, "has no complete checkpoint"));
  CHECK(json::parse(none.out)["intact"] == false);
}

TEST_CASE("a newer run of the name that never saved: the error says which run has a checkpoint") {
  Shell shell;
  write_recipe(shell, 5);
  REQUIRE(shell.mtl({"launch", "train.yaml"}).code == 0);
  const std::string run = run_of(shell).filename().string();
  shell.write("runs/tiny/99990101-000000-zzzz/resolved.yaml", "");
  for (const char* name : {"runs/tiny", "runs/tiny/99990101-000000-zzzz/"}) {
    const Outcome generated = shell.mtl({"generate", name, "a"});
    CAPTURE(generated.err);
    CHECK(generated.code == 6);
    CHECK(has(generated.err, "error[ckpt.missing]"));
    CHECK(has(generated.err, "help: give runs/tiny/" + run + ", which has one"));
  }
}

TEST_CASE("a run goes on from a checkpoint of every version of the format") {
  const fs::path stored = fs::path(MTL_SOURCE_DIR) / "tests/bwc";
  for (const char* version : {"checkpoint-v1", "checkpoint-v2"}) {
    CAPTURE(version);
    Shell shell;
    for (const char* file : {"train.yaml", "corpus.txt"}) {
      fs::copy(stored / "recipe" / file, shell.dir() / file);
    }
    // A run that got no further than this.
    REQUIRE(shell.mtl({"launch", "train.yaml", "train.steps=1"}).code == 0);
    fs::path run;
    for (const auto& entry : fs::directory_iterator(shell.dir() / "runs/old")) run = entry.path();
    fs::remove_all(run / "checkpoints");
    fs::copy(stored / version, run / "checkpoints", fs::copy_options::recursive);
    const Outcome more = shell.mtl({"launch", "train.yaml"});
    CAPTURE(more.err);
    CHECK(more.code == 0);
    CHECK(json::parse(file_text(run / "status.json"))["step"] == 6);
    CHECK(fs::exists(run / "checkpoints/step-00000003"));
    CHECK(shell.mtl({"ckpt", "verify", run.string()}).code == 0);
  }
}

// MTL_KILLS=300 is the bar; the suite has time for a few.
TEST_CASE("killed at random instants of saving in the background: the newest complete one loads") {
  const char* const wanted = std::getenv("MTL_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 6;
  Shell shell;
  write_recipe(shell, 1'000'000);
  std::mt19937_64 random(17);
  int64_t newest = 0;
  int unfinished = 0;
  for (int round = 0; round < kills; ++round) {
    CAPTURE(round);
    const pid_t pid = shell.start({MTL_PROGRAM, "launch", "train.yaml", "checkpoint.every=1",
                                   "checkpoint.keep_last=3", "log.every=1"});
    wait_for_text(shell, newest == 0 ? "checkpoint=" : fmt::format("step={} ", newest + 2));
    const pid_t worker = worker_of(run_of(shell));
    ::usleep(static_cast<useconds_t>(random() % 300'000));
    ::kill(worker, SIGKILL);
    const Outcome outcome = shell.finish(pid);
    CAPTURE(outcome.err);
    CHECK(outcome.code != 0);
    if (newest > 0) CHECK(has(outcome.err, fmt::format("step {}", newest)));
    const fs::path checkpoints = run_of(shell) / "checkpoints";
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      unfinished += has(entry.path().filename().string(), ".writing-");
    }
    // Whatever has its marker is whole, and the newest of these is where the next start goes on.
    Diagnostics passed_over;
    const fs::path path = newest_checkpoint(checkpoints, passed_over);
    REQUIRE(!path.empty());
    for (const int64_t step : steps_of(shell, run_of(shell).string())) {
      CHECK_NOTHROW(CheckpointReader(checkpoint_path(checkpoints, step)).verify());
      CHECK(checkpoint_path(checkpoints, step) <= path);
    }
    const auto step = CheckpointReader(path).state().at("step").get<int64_t>();
    CHECK(step >= newest);
    newest = step;
  }
  MESSAGE(kills << " kills, " << unfinished << " within a save; step " << newest);
}

TEST_CASE("a full disk: one warning, training goes on, and it is tried again until it succeeds") {
  Shell shell, side;  // one for the run, one to look at it
  write_recipe(shell, 5);
  REQUIRE(shell.mtl({"launch", "train.yaml"}).code == 0);
  const fs::path disk = shell.dir() / "small";
  fs::create_directories(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1400k") != 0) {
    MESSAGE("skipped: may not mount a small disk here");
    return;
  }
  const fs::path run = run_of(shell);
  fs::copy(run / "checkpoints", disk / "checkpoints", fs::copy_options::recursive);
  fs::remove_all(run / "checkpoints");
  fs::create_directory_symlink(disk / "checkpoints", run / "checkpoints");
  // What is there may stay, and nothing more fits.
  { std::ofstream(disk / "filler") << std::string(2 << 20, 'x'); }
  const pid_t pid = shell.start(kForever);
  const std::string said =
      rides_it_out(shell, side, run, pid, [&] { fs::remove(disk / "filler"); });
  CHECK(has(said, "No space left on device"));
  CHECK(has(said, "MiB needed"));
  ::umount2(disk.c_str(), MNT_DETACH);
}

TEST_CASE("a disk full of checkpoints takes a new one where fewer are to be kept") {
  Shell shell;
  const fs::path disk = shell.dir() / "disk";
  fs::create_directories(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=4m") != 0) {
    MESSAGE("skipped: may not mount a small disk here");
    return;
  }
  write_recipe(shell, 15);
  REQUIRE(shell.mtl({"launch", "train.yaml", "checkpoint.keep_last=0"}).code == 0);
  const fs::path run = run_of(shell);
  fs::copy(run / "checkpoints", disk / "checkpoints", fs::copy_options::recursive);
  fs::remove_all(run / "checkpoints");
  fs::create_directory_symlink(disk / "checkpoints", run / "checkpoints");
  { std::ofstream(disk / "filler") << std::string(4 << 20, 'x'); }
  const Outcome outcome =
      shell.mtl({"launch", "train.yaml", "train.steps=20", "checkpoint.keep_last=2"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_FALSE(has(outcome.err, "[ckpt.write]"));
  CHECK(steps_of(shell, run.string()) == std::vector<int64_t>{20, 15});
  ::umount2(disk.c_str(), MNT_DETACH);
}

#ifndef __SANITIZE_ADDRESS__  // a sanitizer wants to be the first library
TEST_CASE("a disk with errors: one warning, training goes on, and it is tried again") {
  for (const std::string call : {"fsync", "write"}) {
    CAPTURE(call);
    Shell shell, side;
    write_recipe(shell, 5);
    REQUIRE(shell.mtl({"launch", "train.yaml"}).code == 0);
    const fs::path run = run_of(shell);
    const std::string errors = (shell.dir() / "errors").string();
    shell.write("errors", call);
    const pid_t pid = shell.start(
        kForever, {{"LD_PRELOAD", MTL_FAILING_DISK_LIBRARY}, {"MTL_FAILING_DISK", errors}});
    const std::string said = rides_it_out(shell, side, run, pid, [&] { fs::remove(errors); });
    CHECK(has(said, "Input/output error"));
  }
}

TEST_CASE("weights that cannot be written are named as they were asked for") {
  Shell shell;
  write_recipe(shell, 5);
  REQUIRE(shell.mtl({"launch", "train.yaml"}).code == 0);
  const std::string run = run_of(shell).string();
  for (const std::string call : {"fsync", "write"}) {
    CAPTURE(call);
    shell.write("errors", call);
    const Outcome merge = shell.mtl({"ckpt", "merge", run, "-o", "checkpoints/w.safetensors"},
                                    {{"LD_PRELOAD", MTL_FAILING_DISK_LIBRARY},
                                     {"MTL_FAILING_DISK", (shell.dir() / "errors").string()}});
    CAPTURE(merge.err);
    CHECK(merge.code == 4);
    CHECK(has(merge.err, "error[ckpt.write]: cannot write " +
                             (shell.dir() / "checkpoints/w.safetensors").string() + ": Input"));
    CHECK(fs::is_empty(shell.dir() / "checkpoints"));
  }
}
#endif
