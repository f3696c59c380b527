// Names of variables and keys whose values are not shown.
#pragma once

#include <string>

namespace mtl {

// "HF_TOKEN", "aws_secret_access_key", "PGPASSWORD", "MY_TOKEN_2" ...; not
// "TOKENIZERS_PARALLELISM", nor the name of a file or descriptor ("MTL_TOKEN_FILE"), nor a launch's
// own setting ("MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS", "mtl_kubernetes_env_secret").
bool is_secret(const std::string& name);

}  // namespace mtl
