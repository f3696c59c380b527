// The tables of a plan: a row for each stage or phase, neighbours with the same numbers in one row,
// the middle of a long table left out.
#pragma once

#include <string>

#include "runtime/plan/plan.h"

namespace mtl {

// Lines with a newline at the end of each, at most `columns` wide.
//
// Which ranks talk to each other, for every axis with more than one.
std::string group_lines(const Grid& grid, int columns);
// The phases of a batch that changes, with the bubble of each.
std::string phase_table(const Plan& plan);
// Layers, embedding and head of each chunk, the parameters that a rank holds, and what it keeps of
// the micro-batches that are under way.
std::string layer_table(const Plan& plan, int columns);
// Bytes by category.
std::string memory_table(const Plan& plan);
// What a GPU's kernels and products take beside it.
std::string gpu_line(const Plan& plan);
// What offloaded state and the copy for checkpoints take beside it; empty if there is neither.
std::string host_lines(const Plan& plan);
// What a rank puts on its links per step, and all ranks together.
std::string link_table(const Plan& plan, int columns);

}  // namespace mtl
