// Layouts whose ranks have a GPU each that is none (support/fake_gpu.h).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "support/fake_gpu.h"
#include "support/layouts.h"

namespace mtl::test {

struct FakeGpuOptions {
  When when = When::late;
  bool lazy = false;  // FakeGpu
  int64_t buffered_bytes = NcclOptions().buffered_bytes;
};

// By rank. They outlive what runs on them, and so can be asked what they have seen.
using FakeGpus = std::vector<std::unique_ptr<FakeGpu>>;

// As run_layout; `gpus` are made here.
inline void run_on_fake_gpus(const TrainSpec& spec, int64_t vocab, Layout layout, FakeGpus& gpus,
                             const FakeGpuOptions& options,
                             const std::function<void(RankContext&)>& body) {
  gpus.resize(static_cast<size_t>(layout.world()));
  const auto gpu_of = [&](int rank) -> std::unique_ptr<FakeGpu>& {
    return gpus[static_cast<size_t>(rank)];
  };
  run_layout(
      spec, vocab, layout, body, 0,
      [&](Store& store, int rank, int size) {
        WorldOptions world;
        world.rank = rank;
        world.size = size;
        world.timeout = std::chrono::minutes(5);
        return make_nccl_world(
            store, world, make_fake_streams(*gpu_of(rank), rank),
            {.api = &fake_nccl(), .crash_dir = {}, .buffered_bytes = options.buffered_bytes});
      },
      [&](int rank) {
        gpu_of(rank) = std::make_unique<FakeGpu>(options.when, options.lazy);
        return make_fake_device(*gpu_of(rank));
      });
}

}  // namespace mtl::test
