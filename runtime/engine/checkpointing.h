// The state of a Trainer as tensors of a checkpoint, and back: what is written by whom follows from
// the shard table. It is saved by CheckpointSaver.
#pragma once

#include <filesystem>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/engine/trainer.h"

namespace mtl {

// Lets a checkpoint be written from, or read into, memory of `device`.
void point_at(CheckpointTensor& tensor, Device& device, Tensor elements);
void point_at(CheckpointTensor& tensor, Device& device, const Masters& masters);

// What this rank writes: every tensor is written once, by one of the ranks that hold it (spread
// over them).
std::vector<CheckpointTensor> saved_tensors(Trainer& trainer, const Plan& plan);
// Of the same, what is not trained, in the type that the model computes in: it never changes.
std::vector<CheckpointTensor> frozen_tensors(Trainer& trainer, const Plan& plan);

// All ranks together: whether every master and moment of every rank is a finite number.
bool state_is_finite(Trainer& trainer, Communicator& world);

// Each rank reads its part, whatever layout wrote the checkpoint.
void load_checkpoint(const std::filesystem::path& dir, Trainer& trainer);

}  // namespace mtl
