// Saves and loads the state of a Trainer: what is written by whom follows from the shard table.
#pragma once

#include <filesystem>
#include <functional>

#include <nlohmann/json_fwd.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/engine/trainer.h"

namespace mtl {

// Lets a checkpoint be written from, or read into, memory of `device`.
void point_at(CheckpointTensor& tensor, Device& device, Tensor elements);

// What this rank writes: every tensor is written once, by one of the ranks that hold it (spread
// over them).
std::vector<CheckpointTensor> saved_tensors(Trainer& trainer, const Plan& plan);

// All ranks together, until it is done; CheckpointSaver is the same while training goes on. `state`
// matters on rank 0, which also returns the warnings: what could not be tidied up around a complete
// checkpoint. `still_ours` throws if the run has gone on without us. Rank 0 calls it before it
// changes anything in the run's directory and before the commit, and any rank whose part fails:
// that may be why.
std::vector<Diagnostic> save_checkpoint(const CheckpointAttempt& attempt,
                                        const nlohmann::json& state, int64_t keep_last,
                                        Trainer& trainer, const Plan& plan, Communicator& world,
                                        const std::function<void()>& still_ours = {});

// All ranks together: whether every master and moment of every rank is a finite number.
bool state_is_finite(Trainer& trainer, Communicator& world);

// Each rank reads its part, whatever layout wrote the checkpoint.
void load_checkpoint(const std::filesystem::path& dir, Trainer& trainer);

}  // namespace mtl
