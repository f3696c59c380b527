// Saves and loads the state of a Trainer: what is written by whom follows from the shard table.
#pragma once

#include <filesystem>

#include <nlohmann/json_fwd.hpp>

#include "runtime/engine/trainer.h"

namespace mtl {

// All ranks together. Every tensor is written once, by one of the ranks that hold it (spread over
// data-parallel replicas). `state` matters
// on rank 0, which also returns the warnings: what could not be tidied up around a complete
// checkpoint.
std::vector<Diagnostic> save_checkpoint(const std::filesystem::path& dir,
                                        const nlohmann::json& state, int64_t keep_last,
                                        Trainer& trainer, const Plan& plan, Communicator& world);

// Each rank reads its part, whatever layout wrote the checkpoint.
void load_checkpoint(const std::filesystem::path& dir, Trainer& trainer);

}  // namespace mtl
