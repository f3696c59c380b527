// Which settings of accelerate's launcher become which variables of a worker.
#pragma once

#include <string>
#include <vector>

namespace mtl {

// One variable that follows one setting (the name of accelerate's flag).
struct WorkerVariable {
  enum class Spelling {
    as_given,
    lower,  // and YAML's truth values as true / false
    upper,
    python_truth,  // True / False
  };
  const char* setting;
  const char* variable;
  const char* fallback;  // the value where nothing is set; nullptr = the variable is left out
  Spelling spelling = Spelling::as_given;
};

// Those that are set when ...
const std::vector<WorkerVariable>& dynamo_variables();          // always, but for DeepSpeed
const std::vector<WorkerVariable>& fsdp_variables();            // FSDP is used
const std::vector<WorkerVariable>& megatron_variables();        // Megatron-LM is used
const std::vector<WorkerVariable>& deepspeed_variables();       // DeepSpeed is used
const std::vector<WorkerVariable>& fp8_variables();             // mixed_precision is fp8
const std::vector<WorkerVariable>& parallelism_variables();     // ParallelismConfig is used
const std::vector<WorkerVariable>& parallelism_cp_variables();  // ... with cp_size > 1
const std::vector<WorkerVariable>& parallelism_sp_variables();  // ... with sp_size > 1

// Variables of schedulers and MPI that describe one process of theirs, which none of our ranks is.
// Python libraries take them for the ranks of this job. "X_*" is a prefix.
const std::vector<std::string>& foreign_rank_variables();

}  // namespace mtl
