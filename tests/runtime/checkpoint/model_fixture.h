// A small model whose values follow from (tensor, element, salt), held by any number of ranks in
// any layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl::test {

struct GlobalTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  bool optimizer;
};
std::vector<GlobalTensor> small_model();

// The true bytes of a whole tensor.
std::vector<char> true_bytes(const GlobalTensor& tensor, uint64_t salt);

// What one rank holds.
struct RankTensors {
  std::vector<CheckpointTensor> tensors;
  std::vector<std::vector<char>> storage;
};

// Cuts every tensor at random into rectangles that tile it and deals them to `ranks`; a rank lays
// its own out one after the other with gaps between them. The gaps hold 0xEE.
std::vector<RankTensors> random_layout(const std::vector<GlobalTensor>& model, int ranks,
                                       std::mt19937_64& random);
// One rank with everything.
RankTensors whole_layout(const std::vector<GlobalTensor>& model);

// Fills what the rectangles cover.
void fill(RankTensors& rank, const std::vector<GlobalTensor>& model, uint64_t salt);
// Everything that the rectangles cover is right, and the gaps are untouched.
bool correct(const RankTensors& rank, const std::vector<GlobalTensor>& model, uint64_t salt);

// Prepares, writes and commits a checkpoint of `step` with state {"step": step}. Its values depend
// on step and fence. `still_ours` is called where CheckpointSaver calls it.
void save(const std::filesystem::path& checkpoints_dir, int64_t step,
          const std::vector<GlobalTensor>& model, std::vector<RankTensors>& ranks,
          int64_t keep_last = 0, int64_t fence = 0, const std::function<void()>& still_ours = {});
// The checkpoint in `dir` is complete, has the state of a step and the values of that step and its
// fence.
bool intact(const std::filesystem::path& dir, const std::vector<GlobalTensor>& model);
// What lies in a folder.
std::set<std::string> names_in(const std::filesystem::path& dir);

}  // namespace mtl::test
