// The lines that a run opens with: what is trained, how it is laid out, and what it needs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/engine/yardstick.h"
#include "runtime/run.h"

namespace mtl {

struct StartFacts {
  std::filesystem::path run_dir;
  std::string device;                // in words
  Yardstick yardstick;               // of mfu
  std::string attention;             // which kernel computes it; empty = there is no choice
  int64_t kernel_bytes = 0;          // Device::scratch_for() the rank's largest ops
  std::filesystem::path checkpoint;  // that the run goes on from; empty = from scratch
  int64_t resume_step = 0;
};

std::vector<std::string> start_block(const CheckedRun& run, const StartFacts& facts);

}  // namespace mtl
