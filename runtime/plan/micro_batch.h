// train.micro_batch: auto, where it is known how much memory a rank may take: the largest number of
// sequences at once whose planned arena fits. Pure.
//
// The memory of a plan is exact (memory.h); what is beside the arena (the libraries' own memory,
// the transport's) is in the margin that whoever knows the device leaves. The first step is the
// trial: if it runs out of memory all the same, mtl launch asks again with less than what that
// took.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/plan/plan.h"

namespace mtl {

// Of the rank that needs most: its arena, and with `host` what it has on the host beside it.
int64_t bytes_of_rank(const Plan& plan, bool host);

struct MicroBatchChoice {
  int64_t micro_batch = 0;  // sequences
  int64_t whole = 0;        // a replica's share of the batch, that auto would take at once
  int64_t bytes = 0;        // of the arena of the rank that needs most, with `micro_batch`
  int64_t whole_bytes = 0;  // ... with `whole`
};

// `whole`: the plan with all at once. Nothing: that fits, or train.micro_batch is given, or counts
// what a step is (train.accumulate), or not even one sequence fits. `host`: the arena lies
// there, too.
std::optional<MicroBatchChoice> fit_micro_batch(const ResolvedSpec& resolved, const DataFacts& data,
                                                const Plan& whole, int64_t limit_bytes, bool host);

}  // namespace mtl
