// Runs the NCCL transport over streams and an NCCL that are none.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/error.h"
#include "runtime/comm/harness.h"
#include "runtime/comm/nccl/nccl_world.h"
#include "support/fake_gpu.h"

namespace mtl::test {

struct RankOfGpus {
  CommWorld& world;
  FakeGpu& gpu;
};

// As run_threads() of the harness, with a GPU that is none for each rank.
inline std::vector<Outcome> run_gpus(int size, When when,
                                     const std::function<void(RankOfGpus&)>& body,
                                     std::chrono::milliseconds timeout = kLong,
                                     const std::filesystem::path& crash_dir = {},
                                     const nccl::Api& api = fake_nccl()) {
  const std::unique_ptr<Store> store = make_local_store();
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      try {
        FakeGpu gpu(when);
        WorldOptions options;
        options.rank = rank;
        options.size = size;
        options.timeout = timeout;
        const auto world = make_nccl_world(*store, options, make_fake_streams(gpu, rank),
                                           {.api = &api, .crash_dir = crash_dir});
        RankOfGpus context{*world, gpu};
        body(context);
      } catch (const Error& error) {
        outcome = {error.diagnostics().front().code, error.what()};
      } catch (const std::exception& error) {
        outcome = {"wrong", error.what()};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace mtl::test
