// Which device a run takes, as a user meets it; and a whole run on a device behind a library, whose
// memory the program cannot touch (tests/support/fake_cuda.cpp).
#include "cli/tiny_run.h"

using namespace mtl::test;

namespace {

using Env = std::map<std::string, std::string>;

const Env kStandIn = {{"MTL_DEVICE", "cuda"}, {"MTL_CUDA_LIBRARY", MTL_FAKE_CUDA_LIBRARY}};

Outcome train(const Shell& shell, const Env& env, std::vector<std::string> settings = {}) {
  settings.insert(settings.begin(), {"launch", "train.yaml"});
  return shell.mtl(settings, env);
}

}  // namespace

TEST_CASE("a run on a device that the program cannot look into is the run on the CPU") {
  std::map<std::string, std::string> tensors;
  std::string words;
  for (const bool behind : {false, true}) {
    Shell shell;
    write_recipe(shell, 6);
    const Env env = behind ? kStandIn : Env{{"MTL_DEVICE", "cpu"}, {"OMP_NUM_THREADS", "1"}};
    Outcome outcome = train(shell, env, {"checkpoint.every=3", "train.steps=6"});
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.err, "device   guarded cpu: 1 thread") == behind);
    CHECK(has(outcome.err, "kernel   attention of 4 heads by nobody") == behind);
    // And goes on from its checkpoint.
    outcome = train(shell, env, {"checkpoint.every=3", "train.steps=8"});
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.err, "resume   after step 6"));
    outcome = shell.mtl({"generate", "--tokens", "20", "runs/tiny", "the "}, env);
    CHECK(outcome.code == 0);
    if (behind) {
      CHECK(tensors_of(run_of(shell) / "latest") == tensors);
      CHECK(outcome.out == words);
    }
    tensors = tensors_of(run_of(shell) / "latest");
    words = outcome.out;
    CHECK(words.size() >= 20);
  }
}

TEST_CASE("a device that cannot be had ends the run with the reason") {
  Shell shell;
  write_recipe(shell, 5);
  Outcome outcome = train(shell, {{"MTL_DEVICE", "cuda"}, {"MTL_CUDA_LIBRARY", "/nowhere.so"}});
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "error[gpu.library]"));
  CHECK(has(outcome.err, "/nowhere.so"));
  outcome = train(shell, {{"MTL_DEVICE", "quantum"}});
  CHECK(outcome.code == 2);
  CHECK(has(outcome.err, "error[device.name]"));
  CHECK(has(outcome.err, "it is auto, cpu or cuda"));
  // Ranks that are threads of one process cannot have GPUs.
  outcome =
      train(shell, kStandIn, {"parallel.dp=2", "launch.spawn=threads", "--num_processes", "2"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "error[gpu.ranks]"));
  // The stand-in is one GPU: the second process says so, and the first does not wait for it.
  outcome =
      train(shell, kStandIn, {"parallel.dp=2", "launch.spawn=processes", "--num_processes", "2"});
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "error[gpu.index]"));
  CHECK_FALSE(has(outcome.err, "did not stop in time"));
}

TEST_CASE("mfu is of the peak of a GPU that the catalogue has and of the measured rate elsewhere") {
  struct {
    const char* name;
    bool known;
  } const kGpus[] = {{"NVIDIA H200", true}, {"NVIDIA H200 MIG 1g.18gb", false}};
  for (const auto& gpu : kGpus) {
    CAPTURE(gpu.name);
    Shell shell;
    write_recipe(shell, 2);
    Env env = kStandIn;
    env["MTL_FAKE_GPU_NAME"] = gpu.name;
    const Outcome outcome = train(shell, env, {"precision.dtype=bf16"});
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.err, "bf16; mfu is of the dense peak, 989 TFLOP/s; ") == gpu.known);
    CHECK(has(outcome.err, "FLOP/s measured over all ranks, what mfu is of") != gpu.known);
    const std::string metrics = file_text(run_of(shell) / "metrics.jsonl");
    CHECK(has(metrics, R"("mfu_of":"peak","mfu_of_flops":989400000000000.0)") == gpu.known);
    CHECK(has(metrics, R"("mfu_of":"measured")") != gpu.known);
  }
}

TEST_CASE("what GPUs draw and run at is in the metrics, and one that is too hot is told") {
  Shell shell;
  write_recipe(shell, 3);
  Env env = kStandIn;
  env["LD_LIBRARY_PATH"] = MTL_FAKE_NVML_FOLDER;
  Outcome outcome = train(shell, env, {"log.every=1"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.err, " gpu_w=690 gpu_mhz=1005"));
  const std::string warning =
      "[gpu.slowed] the GPU of rank 0 is slowed down by heat (hardware), "
      "1005 of 1980 MHz";
  const size_t told = outcome.err.find(warning);
  REQUIRE(told != std::string::npos);
  CHECK(outcome.err.find(warning, told + 1) == std::string::npos);
  const std::string gpus =
      R"x("gpus":{"power_w":690.0,"memory_bytes":536870912,"temperature_c":91,"clock_mhz":1005,)x"
      R"x("slowest_rank":0,"slowed":{"heat (hardware)":1,"power limit":1}})x";
  CHECK(has(file_text(run_of(shell) / "metrics.jsonl"), gpus));
  CHECK(has(file_text(run_of(shell) / "events.jsonl"), "gpu_slowed"));
  outcome = shell.mtl({"env"}, env);
  CHECK(has(outcome.out,
            "GPU-0, 512 MiB in use, 690 of 700 W, 1005 of 1980 MHz, 91 C, slowed down "
            "by power limit, heat (hardware)"));
}

TEST_CASE("mtl env lists the GPUs of the engine or says why there is none") {
  const Shell shell;
  Outcome outcome = shell.mtl({"env"}, kStandIn);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "0: Stand-in, 1 GiB, sm_90, 1 multiprocessors, 0000:00:00.0 GPU-0"));
  outcome = shell.mtl({"env"}, {{"MTL_CUDA_LIBRARY", "/nowhere.so"}});
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "not in /nowhere.so"));
}
