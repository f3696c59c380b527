// The steps of writing a checkpoint, for what is written outside a run: commands that make
// checkpoints, and single safetensors files, out of others.
#pragma once

#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl {

// write_shards() into a folder that is there.
std::vector<ChunkRecord> write_shards_into(const std::filesystem::path& dir, int rank,
                                           const std::vector<CheckpointTensor>& tensors);
// The extra files, manifest.json and COMMITTED of a folder that has its shards.
void write_manifest(const std::filesystem::path& dir, const std::vector<ChunkRecord>& chunks,
                    const nlohmann::json& state, const std::vector<ExtraFile>& extras);
// A whole checkpoint that belongs to no run, in a folder that is not there yet (ckpt.exists): all
// of it or nothing. `ranks`: what each shard file holds.
void write_new_checkpoint(const std::filesystem::path& out, const nlohmann::json& state,
                          const std::vector<ExtraFile>& extras,
                          const std::vector<std::vector<CheckpointTensor>>& ranks);
// Whole tensors in one file as everybody reads it; complete and on the disk, or removed.
// `named`: what errors call it, where it gets another name once it is complete.
void write_safetensors(const std::filesystem::path& path, const std::filesystem::path& named,
                       const std::vector<CheckpointTensor>& tensors);

}  // namespace mtl
