// The tensors of a Hugging Face folder, and which parts of our parameters they hold. Import reads
// by this table, export writes by it.
#pragma once

#include "runtime/interchange/foreign_tensor.h"
#include "runtime/interchange/hf_config.h"

namespace mtl {

// Our parameters have the names and shapes that the families have, but for GPT-NeoX's, which are
// Megatron's in older words: queries, keys and values of a head follow each other in one matrix;
// and Phi-3's, where one matrix has the rows of all queries, then all keys, then all values, and
// another those of gate and up. GLM has the latter too, and the pairs of elements that are turned
// beside each other. Gemma's norms multiply with 1 more than their weights. gpt-oss has all experts
// of a layer in one tensor (hf_gpt_oss.h).
std::vector<ForeignTensor> hf_tensors(const HfModel& model, const std::vector<ParamRow>& table);

}  // namespace mtl
