// The GPU engine from the outside, where there is no GPU: the sources of libmtl_cuda.so over a
// CUDA, a cuBLASLt and an NCCL on the host (tests/host_cuda), loaded by the program as the real one
// is.
#if defined(MTL_HOST_CUDA_LIBRARY)

#include <algorithm>
#include <cmath>

#include "cli/tiny_run.h"

using namespace mtl::test;

namespace {

using Env = std::map<std::string, std::string>;

Env on_gpus(int count, const Env& more = {}) {
  Env env = {{"MTL_DEVICE", "cuda"},
             {"MTL_CUDA_LIBRARY", MTL_HOST_CUDA_LIBRARY},
             {"LD_LIBRARY_PATH", MTL_HOST_NCCL_FOLDER},
             {"MTL_HOST_CUDA_DEVICES", std::to_string(count)}};
  for (const auto& [name, value] : more) env[name] = value;
  return env;
}

Outcome launch_on(const Shell& shell, int ranks, const Env& env,
                  std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"launch", "--num_processes", std::to_string(ranks),
                                     "train.yaml", "train.seq_len=32", "log.every=1"});
  return shell.mtl(settings, env);
}

// Of steps and evaluations, as they come.
std::vector<double> losses_of(const Shell& shell) {
  std::vector<double> losses;
  for (const json& line : metrics_of(run_of(shell))) {
    for (const char* name : {"loss", "valid_loss"}) {
      if (line.contains(name)) losses.push_back(line[name].get<double>());
    }
  }
  return losses;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

TEST_CASE("the GPU engine trains as the CPU, and however its work is enqueued with the same bits") {
  // Heads of 64 in bf16: the tensor cores' attention; more than one micro-batch: recorded passes.
  const std::vector<std::string> settings = {"model.hidden=64", "model.heads=1",
                                             "precision.dtype=bf16", "model.dropout.hidden=0.1",
                                             "checkpoint.every=3"};
  const auto trained = [&](const Env& env, int stop_at) {
    Shell shell;
    write_recipe(shell, 5);
    if (stop_at > 0) {
      std::vector<std::string> some = settings;
      some.insert(some.end(), {"train.steps=" + std::to_string(stop_at), "lr.decay=5"});
      REQUIRE(launch_on(shell, 1, env, some).code == 0);
    }
    std::vector<std::string> all = settings;
    all.insert(all.end(), {"train.steps=5", "lr.decay=5"});
    const Outcome outcome = launch_on(shell, 1, env, all);
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.err, "resume   after step 3") == (stop_at > 0));
    CHECK_FALSE(has(outcome.err, "warning"));
    if (env.contains("MTL_CUDA_LIBRARY")) {
      CHECK(has(outcome.err, "device   cuda:0 NVIDIA H200, 1 GiB, sm_90, "));
      CHECK(has(outcome.err, "replayed as CUDA graphs") == !env.contains("MTL_CUDA_GRAPHS"));
      CHECK(has(outcome.err, "ours multiplies with wgmma"));
    }
    return std::pair(losses_of(shell), tensors_of(run_of(shell) / "latest"));
  };
  const auto [cpu, unused] = trained({{"MTL_DEVICE", "cpu"}}, 0);
  const auto [losses, tensors] = trained(on_gpus(1), 0);
  CHECK(cpu.size() == 6);
  CHECK(distance(losses, cpu) < 2e-3);
  CHECK(trained(on_gpus(1, {{"MTL_CUDA_GRAPHS", "off"}}), 0).second == tensors);
  CHECK(trained(on_gpus(1, {{"MTL_HOST_CUDA_LATE_MS", "2"}}), 3).second == tensors);
}

TEST_CASE("what nvcc has made of the GPU engine trains as the CPU") {
  // Its kernels' PTX is run, of Hopper with its own attention, and of Ampere.
  const std::vector<std::string> settings = {"model.hidden=64",         "model.heads=1",
                                             "precision.dtype=bf16",    "model.dropout.hidden=0.1",
                                             "model.activation=swiglu", "optimizer.type=muon",
                                             "train.steps=2",           "lr.decay=2"};
  const auto trained = [&](const Env& env) {
    Shell shell;
    write_recipe(shell, 2);
    const Outcome outcome = launch_on(shell, 1, env, settings);
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK_FALSE(has(outcome.err, "warning"));
    if (env.contains("MTL_CUDA_LIBRARY")) {
      CHECK(has(outcome.err, "sm_" + env.at("MTL_HOST_CUDA_CAPABILITY")));
      CHECK(has(outcome.err, "replayed as CUDA graphs"));
    }
    return losses_of(shell);
  };
  const std::vector<double> cpu = trained({{"MTL_DEVICE", "cpu"}});
  CHECK(cpu.size() == 3);
  for (const char* const capability : {"90", "80"}) {
    const Env env = on_gpus(1, {{"MTL_CUDA_LIBRARY", MTL_PTX_CUDA_LIBRARY},
                                {"MTL_HOST_CUDA_CAPABILITY", capability},
                                {"MTL_PTX_WATCH", "races"}});
    CHECK(distance(trained(env), cpu) < 2e-3);
  }
}

TEST_CASE(
    "blocks side by side with exact GELU, Gemma's, OLMo 2's and gpt-oss's on GPUs are those of the "
    "CPU") {
  std::vector<std::string> model = {"model.position.type=rope", "train.micro_batch=2"};
  const auto trained = [&](int ranks, const Env& env, std::vector<std::string> settings) {
    settings.insert(settings.end(), model.begin(), model.end());
    Shell shell;
    write_recipe(shell, 5);
    const Outcome outcome = launch_on(shell, ranks, env, settings);
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    return losses_of(shell);
  };
  SUBCASE("side by side") {
    model.insert(model.end(), {"model.activation=gelu_exact", "model.parallel_residual=true"});
  }
  SUBCASE("Gemma") {
    model.insert(model.end(),
                 {"model.activation=geglu", "model.embedding_scale=4", "model.norm.type=rmsnorm",
                  "model.bias=false", "model.head_dim=256"});
  }
  SUBCASE("OLMo 2") {
    model.insert(model.end(),
                 {"model.activation=swiglu", "model.norm.type=rmsnorm", "model.norm.place=output",
                  "model.qk_norm=true", "model.qk_norm_whole=true", "model.bias=false"});
  }
  SUBCASE("Muon") {
    model.insert(model.end(), {"optimizer.type=muon", "model.activation=swiglu",
                               "model.norm.type=rmsnorm", "model.bias=false"});
  }
  SUBCASE("gpt-oss") {
    model.insert(model.end(),
                 {"model.activation=quick_geglu", "model.glu_offset=1", "model.glu_clamp=0.1",
                  "model.attention_sinks=true", "model.sliding_window=9", "model.norm.type=rmsnorm",
                  "model.full_attention.every=2", "model.moe.experts=4"});
  }
  const std::vector<double> cpu = trained(1, {{"MTL_DEVICE", "cpu"}}, {});
  CHECK(cpu.size() == 6);
  CHECK(distance(trained(1, on_gpus(1), {}), cpu) < 1e-5);
  CHECK(distance(trained(2, on_gpus(2), {"parallel.tp=2", "parallel.sp=false"}), cpu) < 1e-5);
  CHECK(distance(trained(2, on_gpus(2), {"parallel.tp=2"}), cpu) < 1e-5);
}

TEST_CASE("cuDNN is not asked for attention with sinks, and the start says so") {
  Shell shell;
  write_recipe(shell, 1);
  const Outcome outcome = launch_on(shell, 1, on_gpus(1, {{"MTL_ATTENTION", "auto"}}),
                                    {"precision.dtype=bf16", "model.head_dim=64",
                                     "model.position.type=rope", "model.attention_sinks=true"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err,
            "attention by our kernel: this kind is not for cuDNN; ours multiplies with "
            "wgmma"));
}

TEST_CASE("ranks on GPUs of their own train as one") {
  const std::vector<std::string> dense = {"train.global_batch=8", "train.micro_batch=1"};
  const std::vector<std::string> mixture = {"train.global_batch=8",   "train.micro_batch=1",
                                            "model.moe.experts=4",    "model.activation=swiglu",
                                            "model.bias=false",       "model.moe.shared_ffn=32",
                                            "model.moe.aux_loss=0.01"};
  const struct {
    std::vector<std::string> model;
    std::vector<std::vector<std::string>> layouts;
  } kAll[] = {{dense,
               {{"parallel.tp=2", "parallel.pp=2"},
                {"parallel.dp=4", "parallel.zero=3"},
                {"parallel.cp=2", "parallel.dp=2", "optimizer.offload=cpu"}}},
              {mixture, {{"parallel.ep=2", "parallel.tp=2"}}}};
  for (const auto& [model, layouts] : kAll) {
    std::vector<double> alone;
    const auto train = [&](int ranks, std::vector<std::string> settings, const char* late) {
      settings.insert(settings.end(), model.begin(), model.end());
      settings.emplace_back("train.steps=3");
      CAPTURE(settings);
      Shell shell;
      write_recipe(shell, 3);
      const Outcome outcome = launch_on(shell, ranks, on_gpus(ranks, {{late, "3"}}), settings);
      CAPTURE(outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK_FALSE(has(outcome.err, "warning"));
      const std::vector<double> losses = losses_of(shell);
      CHECK(losses.size() == 4);
      if (ranks == 1) alone = losses;
      CHECK(distance(losses, alone) < 1e-5);
    };
    const char* late = "MTL_HOST_CUDA_LATE_MS";
    train(1, {}, late);
    for (const auto& layout : layouts) {
      // What computes is late, or what communicates: either shows who does not wait for the other.
      train(4, layout, late);
      late = "MTL_HOST_CUDA_URGENT_LATE_MS";
    }
  }
}

TEST_CASE("what a GPU does not give, or a GPU that fails, ends a run with the reason") {
  Shell shell;
  write_recipe(shell, 5);
  Outcome outcome = launch_on(shell, 1, on_gpus(1, {{"MTL_HOST_CUDA_MEMORY_MB", "150"}}),
                              {"model.hidden=512", "model.layers=12"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 5);
  CHECK(has(outcome.err, "error[device.out_of_memory]: NVIDIA H200 gives no "));

  // Of several ranks the transport asks for it, and what follows from that is the same.
  outcome = launch_on(shell, 2, on_gpus(2, {{"MTL_HOST_CUDA_MEMORY_MB", "150"}}),
                      {"model.hidden=512", "model.layers=12", "parallel.dp=2"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 5);
  CHECK(has(outcome.err, "error[device.out_of_memory]: NVIDIA H200 gives no "));

  outcome = launch_on(shell, 2, on_gpus(4, {{"CUDA_VISIBLE_DEVICES", "3"}}), {"parallel.dp=2"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "error[gpu.index]: local rank 1 has no GPU: 1 is visible to it"));
  CHECK(has(outcome.err, "CUDA_VISIBLE_DEVICES is '3'"));

  // The others wait for it in NCCL, and leave.
  outcome = launch_on(shell, 4, on_gpus(4, {{"MTL_HOST_CUDA_FAILS", "2:300"}}),
                      {"parallel.tp=2", "parallel.pp=2", "train.micro_batch=1"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 1);
  CHECK(has(outcome.err, "rank 2"));
  CHECK(has(outcome.err, "error[device.cuda]"));
  CHECK(has(outcome.err, "it was told to"));
  CHECK_FALSE(has(outcome.err, "did not stop in time"));
}

#endif
