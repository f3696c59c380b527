// The facts of a plan that take a sentence rather than a table.
#pragma once

#include <string>

#include "runtime/plan/forecast/beside_steps.h"
#include "runtime/plan/plan.h"

namespace mtl {

// "1 layer", "12 layers", "2 micro-batches".
std::string count_of(int64_t count, const char* one);

std::string model_words(const ModelShape& model);
// Norm, activation, positions and what else the family leaves open.
std::string blocks_words(const ModelShape& model);
// "8 ranks = 2 pipeline x 2 data x 2 tensor"; axes of degree 1 are not named.
std::string grid_words(const Grid& grid);
// "tensor", "pipeline".
const char* axis_word(Axis axis);
std::string precision_words(const Plan& plan);
std::string optimizer_words(const Plan& plan);
// How gradients travel between replicas; only where there are several.
std::string bucket_words(const Plan& plan);
// Who holds the tokens between the parts that TP divides; only with tp > 1.
std::string sequence_words(const Plan& plan);
// Who has which experts, and for how many rows there is room; only with ep > 1.
std::string expert_words(const Plan& plan);
std::string recompute_words(const Recompute& recompute);
std::string schedule_words(const ScheduleShape& shape);
// Evaluations and checkpoints: how many, and what part of the run's work they are; "" if there is
// nothing to evaluate and one checkpoint, at the end.
std::string beside_words(const Plan& plan, const BesideSteps& beside);

}  // namespace mtl
