// A disk that fails: this test program's own open, write, fsync, rename ... stand before those of
// the C library (static symbols win), count every call that changes the disk, and at call number
// `at` fail or end the process.
#pragma once

#include <cstdint>
#include <functional>

#include "support/sanitized.h"

namespace mtl::test {

enum class Fault {
  count,       // nothing happens
  error,       // call `at` fails once
  full,        // from call `at` on, whatever needs space fails with ENOSPC
  crash,       // the process ends at call `at`, a write half done
  freeze,      // before call `at` the process stands still, and the world goes on: freeze_at()
  power_loss,  // as crash, and whatever was not fsynced is lost: file contents are cut in half, new
               // directory entries are gone, renames undone
};
constexpr int kCrashExit = 77;

// Tests go through all changes of the disk; with sanitizers, for which neighbours are alike,
// through every third.
constexpr int64_t kStride = kSanitized ? 3 : 1;

void arm(Fault fault, int64_t at, int error_number = 0);
// `meanwhile` is what happens while it is frozen; its own calls are not counted.
void freeze_at(int64_t at, std::function<void()> meanwhile);
// The number of calls since arm().
int64_t disarm();

}  // namespace mtl::test
